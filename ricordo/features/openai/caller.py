"""The user of Open WebUI on whose behalf a key asks.

Open WebUI names the user in headers; the key must be allowed to act for users.
"""

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
from ricordo.features.openai.options import OpenAIApiSettings

SIGNED_USER = "x-openwebui-user-jwt"
# Its plain headers, the most reliable first: an e-mail address may not have been verified.
PLAIN_USER = ("x-openwebui-user-id", "x-openwebui-user-email")
_ISSUER = "open-webui"
# The prefix of its users' identifiers, in its pipe (features/openwebui/mirror/pipe.py) too. So none of
# them can be another user of this server.
PREFIX = "open-webui:"
_LEEWAY = 60  # seconds by which the clocks of both servers may differ
_LONGEST = 10_000


async def acting(context: RequestContext) -> RequestContext:
    """Return the call in the name of Open WebUI's user, if there is one.

    The headers count only with a key that may act for users. Raises Forbidden.
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
    """Return the id or address of the user in the headers, or None."""
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
    """Return the user that a token (JWT, HS256) of Open WebUI names.

    `now` is in seconds. Raises Forbidden.
    """
    pieces = token.split(".") if len(token) <= _LONGEST else []
    if len(pieces) != 3:
        raise _refused("the token is malformed")
    # Only this algorithm: "none" is no signature.
    if _object(pieces[0]).get("alg") != "HS256":
        raise _refused("the token is not signed with HS256")
    expected = hmac.digest(secret.encode(), f"{pieces[0]}.{pieces[1]}".encode(), sha256)
    if not hmac.compare_digest(expected, _bytes(pieces[2])):
        raise _refused("the token was signed with another secret")
    claims = _object(pieces[1])
    expires = claims.get("exp")
    user = claims.get("sub")
    if claims.get("iss") != _ISSUER or not isinstance(user, str) or not user:
        raise _refused("the token names no user of Open WebUI")
    if not isinstance(expires, int | float) or expires + _LEEWAY <= now:
        raise _refused("the token expired; check the clocks")
    return user


def _refused(reason: str) -> Forbidden:
    return Forbidden(f"The user that Open WebUI names is refused: {reason}.")


def _bytes(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text.encode("utf-8", "replace") + b"=" * (-len(text) % 4))
    except ValueError:
        raise _refused("the token is malformed") from None


def _object(text: str) -> dict[str, Any]:
    try:
        decoded = orjson.loads(_bytes(text))
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise _refused("the token is malformed")
    return decoded
