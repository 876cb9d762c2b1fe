"""Values of a request, used by the routes and by the SDK's provider."""

from fastapi import Request

from ricordo.secret import Secret


def public_address(request: Request) -> str:
    """Return this server's address as the caller or a trusted proxy names it."""
    return str(request.base_url).rstrip("/")


def derive(request: Request, purpose: str) -> bytes:
    """Return the key that signs texts of this purpose."""
    secret = Secret(request.app.state.runtime.settings.data_dir)
    return secret.derive(f"oauth {purpose}")
