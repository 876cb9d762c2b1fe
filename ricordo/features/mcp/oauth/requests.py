"""Values of a request, used by the routes and by the SDK's provider."""

from fastapi import Request

from ricordo.secret import Secret


def public_address(request: Request) -> str:
    """Return this server's address as the caller or a trusted proxy names it.

    Args:
        request: The request, whose headers name the host.
    """
    return str(request.base_url).rstrip("/")


def derive(request: Request, purpose: str) -> bytes:
    """Return the key that signs texts of this purpose.

    Args:
        request: A request to the running server, which has the secret key.
        purpose: The purpose, such as "client" or "code". Keys of different purposes differ.

    Raises:
        Invalid: The file of the secret key holds no key.
        Unavailable: The secret key cannot be read or created.
    """
    secret = Secret(request.app.state.runtime.settings.data_dir)
    return secret.derive(f"oauth {purpose}")
