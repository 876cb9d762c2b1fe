"""Who asks through Open WebUI: its user, by the headers that it sends with a key that may act for users."""

import hmac
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from ricordo.api.call import RequestContext, scope_of_user
from ricordo.api.guard import USER_HEADER
from ricordo.domain.clock import SECOND
from ricordo.domain.scope import ACTING_SCOPE, IMPERSONATE, NOBODY
from ricordo.errors import Forbidden
from ricordo.features.openai_api.options import OpenAIApiSettings

SIGNED_USER = "x-openwebui-user-jwt"
# Its plain headers, the surest first: an address may not have been checked.
PLAIN_USER = ("x-openwebui-user-id", "x-openwebui-user-email")
_ISSUER = "open-webui"
# So its users are named here, by its pipe (features/openwebui/pipe.py) too; none of them can be a user of another name.
PREFIX = "open-webui:"
_LEEWAY = 60  # seconds by which its clock and ours may differ
_LONGEST = 10_000


async def acting(context: RequestContext) -> RequestContext:
    """Return the call as that of Open WebUI's user, where the key may act for users and one is named. Raises Forbidden.

    From a key that may not, the headers count for nothing.
    """
    if not context.scope.may(IMPERSONATE) or USER_HEADER.decode() in context.request.headers:
        return context
    name = _user_of(context.request.headers, context.store.clock.now() // SECOND)
    if name is None:
        return context
    scope = await scope_of_user(
        context.store, context.scope, PREFIX + name, makes=context.request.method != "GET"
    )
    context.request.scope[ACTING_SCOPE] = scope
    return replace(context, scope=scope or replace(context.scope, subject_id=NOBODY))


def _user_of(headers: Mapping[str, str], now: int) -> str | None:
    """The id or address of the user that Open WebUI asks for; None where it names none."""
    signed = headers.get(SIGNED_USER)
    plain = next((headers[name] for name in PLAIN_USER if headers.get(name)), None)
    if signed is None and plain is None:
        return None
    secret = OpenAIApiSettings.current().openwebui_secret
    if secret is None:
        if signed is not None:
            raise _refused("this server does not know its secret; set RICORDO_OPENWEBUI_SECRET")
        return plain
    if signed is None:
        raise _refused("it has to be signed; set FORWARD_USER_INFO_HEADER_JWT_SECRET there")
    return verified_user(signed, secret.get_secret_value(), now)


def verified_user(token: str, secret: str, now: int) -> str:
    """Return whom a token (JWT, HS256) of Open WebUI names; `now` is in seconds. Raises Forbidden."""
    pieces = token.split(".") if len(token) <= _LONGEST else []
    if len(pieces) != 3:
        raise _refused("the token is malformed")
    # By this algorithm alone: "none" is no signature.
    if _object(pieces[0]).get("alg") != "HS256":
        raise _refused("the token is not signed with HS256")
    expected = hmac.digest(secret.encode(), f"{pieces[0]}.{pieces[1]}".encode(), sha256)
    if not hmac.compare_digest(expected, _bytes(pieces[2])):
        raise _refused("the token was signed with another secret")
    claims = _object(pieces[1])
    expires, user = claims.get("exp"), claims.get("sub")
    if claims.get("iss") != _ISSUER or not isinstance(user, str) or not user:
        raise _refused("the token names no user of Open WebUI")
    if not isinstance(expires, int | float) or expires + _LEEWAY <= now:
        raise _refused("the token expired; check the clocks")
    return user


def _refused(why: str) -> Forbidden:
    return Forbidden(f"The user that Open WebUI names is refused: {why}.")


def _bytes(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text.encode("utf-8", "replace") + b"=" * (-len(text) % 4))
    except ValueError:
        raise _refused("the token is malformed") from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(_bytes(text))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _refused("the token is malformed")
    return found
