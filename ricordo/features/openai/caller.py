"""The user of Open WebUI on whose behalf a key acts.

Open WebUI names the user in headers; the key must be allowed to act for users.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

from ricordo.api.call import RequestContext, scope_of_user
from ricordo.api.guard import USER_HEADER
from ricordo.domain.scope import ACTING_SCOPE, IMPERSONATE, NOBODY
from ricordo.errors import Forbidden, Invalid
from ricordo.features.openai.options import OpenAIApiSettings
from ricordo.signed_tokens import read_token

SIGNED_USER = "x-openwebui-user-jwt"
# The plain headers with the user, the most reliable first. An e-mail address may be unverified.
PLAIN_USER = ("x-openwebui-user-id", "x-openwebui-user-email")
_PLAIN_NAME = "x-openwebui-user-name"
_ISSUER = "open-webui"
# The prefix of the identifiers of Open WebUI's users; the pipe writes it too
# (features/openwebui/mirror/pipe.py). With it, none of them can be another user of this server.
PREFIX = "open-webui:"


async def acting(context: RequestContext) -> RequestContext:
    """If the request names an Open WebUI user, return the call on that user's behalf.

    The headers count only if the key may act for users, and if the request has no header
    `x-ricordo-user`.

    Args:
        context: The call. Its request gets the user's scope for the audit log.

    Returns:
        The call on the user's behalf; the same call if no user is named. In a GET request an
        unknown user sees only shared data; in others the user is created.

    Raises:
        Forbidden: The headers are not signed as the settings require, or the user is disabled.
        Invalid: No user can have this identifier.
        Collision: The identifier looks like another user's.
    """
    if not context.scope.may(IMPERSONATE) or USER_HEADER.decode() in context.request.headers:
        return context
    user = _user_of(context.request.headers)
    if user is None:
        return context
    scope = await scope_of_user(
        context.store,
        context.scope,
        PREFIX + user.id,
        makes=context.request.method != "GET",
        person_name=user.name,
    )
    context.request.scope[ACTING_SCOPE] = scope
    return replace(context, scope=scope or replace(context.scope, subject_id=NOBODY))


@dataclass(frozen=True, slots=True)
class OpenWebUIUser:
    """A user of Open WebUI: the id (or the address, if there is no id), and the name for people."""

    id: str
    name: str = ""


def _user_of(headers: Mapping[str, str]) -> OpenWebUIUser | None:
    """Return the user in the headers, or None."""
    signed = headers.get(SIGNED_USER)
    plain = next((headers[name] for name in PLAIN_USER if headers.get(name)), None)
    if signed is None and plain is None:
        return None
    secret = OpenAIApiSettings.current().openwebui_secret
    if secret is None:
        if signed is not None:
            raise _refused(
                "this server has no secret to check it with; set RICORDO_OPENWEBUI_SECRET"
            )
        # Open WebUI percent-encodes names, since headers are ASCII.
        return OpenWebUIUser(plain, unquote(headers.get(_PLAIN_NAME, ""))) if plain else None
    if signed is None:
        raise _refused("it must be signed; set FORWARD_USER_INFO_HEADER_JWT_SECRET in Open WebUI")
    return verified_user(signed, secret.get_secret_value())


def verified_user(token: str, secret: str) -> OpenWebUIUser:
    """Return the user that a token of Open WebUI names.

    Args:
        token: A JWT, signed with HS256.
        secret: The secret that Open WebUI and this server share.

    Raises:
        Forbidden: The token is not valid, has expired, or names no user.
    """
    try:
        claims = read_token(token, [secret.encode()], algorithms=("HS256",), issuer=_ISSUER)
    except Invalid as error:
        raise _refused(f"its token is not valid, since {error}") from error
    user = claims.get("sub")
    if not isinstance(user, str) or not user:
        raise _refused("the token names no user of Open WebUI")
    name = claims.get("name")
    return OpenWebUIUser(user, name if isinstance(name, str) else "")


def _refused(reason: str) -> Forbidden:
    return Forbidden(f"The user that Open WebUI names is refused: {reason}.")
