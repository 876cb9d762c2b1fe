"""Signed tokens (JWT) of other servers.

PyJWT checks the form, the signature and the usual claims. The caller names the allowed algorithms:
"none" has no signature, and HS256 would use a public key as the shared secret.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ricordo.errors import Invalid

# Seconds by which the clocks of the two servers may differ.
_LEEWAY = 60
_LONGEST = 50_000
_TIMES = ("exp", "iat", "nbf")
# PyJWT refuses HMAC keys below this length. A short key is padded with zeros: HMAC itself pads each
# key with zeros to 64 bytes, so the padding changes no signature.
_HMAC_BYTES = 32
Json = Mapping[str, Any]


def read_header(token: str) -> Json:
    """Return the header of a token that is not verified yet.

    Args:
        token: Any text of a caller.

    Raises:
        Invalid: The token is malformed or too long. The message is the reason, as a clause.
    """
    import jwt

    _require_short(token)
    try:
        return jwt.get_unverified_header(token)
    except (jwt.InvalidTokenError, UnicodeEncodeError) as error:
        raise Invalid("it is malformed") from error


def read_token(
    token: str,
    keys: Sequence[Any],
    *,
    algorithms: Sequence[str],
    issuer: str,
    audience: str | None = None,
) -> Json:
    """Return the claims of a token if one of the keys signed it.

    Args:
        token: The token.
        keys: Keys of PyJWT, or the bytes of secrets.
        algorithms: The allowed algorithms.
        issuer: The required issuer.
        audience: The required audience; None accepts any.

    Raises:
        Invalid: The token is refused. The message is the reason, as a clause.
    """
    import jwt

    if "crit" in read_header(token):
        raise Invalid("it uses an extension that this server does not know")
    for key in keys:
        try:
            claims: Json = jwt.decode(
                token,
                key.ljust(_HMAC_BYTES, b"\0") if isinstance(key, bytes) else key,
                algorithms=algorithms,
                issuer=issuer,
                audience=audience,
                leeway=_LEEWAY,
                options={
                    "require": ["exp"],
                    "verify_aud": audience is not None,
                    "verify_sub": False,
                    "verify_jti": False,
                    "enforce_minimum_key_length": True,
                },
            )
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError):
            continue
        except (jwt.InvalidTokenError, UnicodeEncodeError) as error:
            raise Invalid(_reason_of(error, algorithms)) from error
        _require_numbers(claims)
        return claims
    raise Invalid("it was signed with another secret or key")


def _require_short(token: str) -> None:
    if len(token) > _LONGEST:
        raise Invalid("it is too long")


def _require_numbers(claims: Json) -> None:
    """Raise Invalid for a time that is not a number, since PyJWT also accepts strings of digits."""
    for name in _TIMES:
        if name in claims and type(claims[name]) not in (int, float):
            raise Invalid("it is malformed")


def _reason_of(error: Exception, algorithms: Sequence[str]) -> str:
    """Return why PyJWT refused a token."""
    import jwt

    missing = error.claim if isinstance(error, jwt.MissingRequiredClaimError) else None
    if isinstance(error, jwt.ExpiredSignatureError) or missing == "exp":
        return "it has expired or has no expiry time; check both servers' clocks"
    if isinstance(error, jwt.ImmatureSignatureError):
        return "it is not valid yet; check both servers' clocks"
    if isinstance(error, jwt.InvalidIssuerError) or missing == "iss":
        return "it has another issuer"
    if isinstance(error, jwt.InvalidAudienceError) or missing == "aud":
        return "it was made for another client"
    if isinstance(error, jwt.InvalidAlgorithmError):
        return f"it is not signed with {' or '.join(algorithms)}"
    return "it is malformed"
