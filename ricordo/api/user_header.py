"""The header that names the user for whom a service or the administrator acts.

A header holds ASCII, and a name may hold any letters. So a client percent-encodes the name, as in
an address. Names in raw UTF-8 or Latin-1, as curl and some clients send them, are read too.
"""

from collections.abc import Iterable
from urllib.parse import quote, unquote

USER_HEADER = b"x-ricordo-user"


def named_user(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the user that the headers of a request name; None if they name no one.

    Args:
        headers: The names, in lower case, and the contents, as in an ASGI scope.
    """
    sent = next((content for name, content in headers if name == USER_HEADER), None)
    return None if sent is None else _decoded(sent)


def encoded_name(user: str) -> str:
    """Return the content of the header for this user's id or identifier."""
    return quote(user, safe=" @:+,;=!$&'()*")


def _decoded(sent: bytes) -> str:
    try:
        text = sent.decode()
    except UnicodeDecodeError:
        return sent.decode("latin-1")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text
