"""One-time links: their tokens, the hashes that are stored, and their addresses.

The page of such a link explains it, and only the page's form uses the link up. So programs that
fetch links for previews do not use it up.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode

from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.secret import Secret


def new_token() -> str:
    return secrets.token_urlsafe(32)


def derived_token(secret: Secret, purpose: str, name: str) -> str:
    """Return the token for this name; a repeated job gets the same token.

    Args:
        secret: The server's secret.
        purpose: The kind of links, so that tokens of two kinds differ.
        name: An id that occurs once among links of this kind.
    """
    digest = hmac.digest(secret.derive(purpose), name.encode(), "sha256")
    return urlsafe_b64encode(digest).decode().rstrip("=")


def hash_of(token: str) -> str:
    """Return the stored form of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def path_of(page: str, token: str) -> str:
    return f"{page}?token={token}"


def address_of(page: str, token: str, settings: NotificationSettings) -> str | None:
    """Return the link's address; None if the server has no public address.

    Args:
        page: The path of the link's page, such as "/decide".
        token: The token, which is not encoded again.
        settings: The settings with the public address.
    """
    if settings.public_url is None:
        return None
    return f"{settings.public_url.rstrip('/')}{path_of(page, token)}"
