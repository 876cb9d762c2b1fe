"""A browser's session: its cookie, and how long it lasts."""

from fastapi import Request, Response

from ricordo.api.authentication import LONG_SESSION_SECONDS, SESSION_SECONDS
from ricordo.api.guard import COOKIE

# The field of a form: "Stay signed in on this device".
STAYS = "stays"


def session_seconds(choice: str | None) -> int:
    """Return a session's length: 30 days if the person chose to stay logged in, else 12 hours."""
    return LONG_SESSION_SECONDS if choice else SESSION_SECONDS


def set_session(request: Request, response: Response, key: str, seconds: int) -> None:
    """Give the browser the session's key, in a cookie that no script can read."""
    response.set_cookie(
        COOKIE,
        key,
        max_age=seconds,
        path=f"{request.scope.get('root_path', '').rstrip('/')}/",
        secure=request.url.scheme == "https",  # a trusted proxy may set the scheme
        httponly=True,
        samesite="lax",
    )
