"""ID tokens of OpenID Connect.

A token must be signed by the provider with a public key, for this server and this login.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ricordo.errors import Forbidden, Invalid
from ricordo.signed_tokens import Json, read_header, read_token

_ALGORITHMS = ("RS256", "ES256")


@dataclass(frozen=True, slots=True)
class Expected:
    """The required claims of a token: issuer, client and login."""

    issuer: str
    client_id: str
    nonce: str


def verify_token(token: str, jwks: Sequence[Any], expected: Expected) -> Json:
    """Return the claims of the token.

    Args:
        token: The ID token, a signed JWT.
        jwks: The provider's public keys as it sent them; keys of other kinds are skipped.
        expected: The claims that the token must have.

    Raises:
        Forbidden: if none of the keys signed it, or if it belongs to another login.
    """
    try:
        claims = read_token(
            token,
            _keys_for(read_header(token), jwks),
            algorithms=_ALGORITHMS,
            issuer=expected.issuer,
            audience=expected.client_id,
        )
    except Invalid as error:
        raise _refused(str(error)) from error
    _require_login(claims, expected)
    return claims


def _keys_for(header: Json, jwks: Sequence[Any]) -> list[Any]:
    """Return the provider's keys that may have signed a token with this header."""
    import jwt

    algorithm = header.get("alg")
    if algorithm not in _ALGORITHMS:
        raise Invalid(f"it is not signed with {' or '.join(_ALGORITHMS)}")
    keys = []
    for jwk in jwks:
        if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
            continue
        if "kid" in header and jwk.get("kid") != header["kid"]:
            continue
        try:
            key = jwt.PyJWK(jwk)
        except jwt.PyJWTError:  # skip keys of kinds that are not used here
            continue
        if key.algorithm_name == algorithm:
            keys.append(key)
    return keys


def _require_login(claims: Json, expected: Expected) -> None:
    """Raise Forbidden for a token that was requested by another client or for another login."""
    audience = claims["aud"]
    audiences = audience if isinstance(audience, list) else [audience]
    # A token for several clients must name the authorized one.
    only_audience = audiences[0] if len(audiences) == 1 else None
    if claims.get("azp", only_audience) != expected.client_id:
        raise _refused("it was issued to another client")
    if claims.get("nonce") != expected.nonce:
        raise _refused("it was made for another login")


def _refused(reason: str) -> Forbidden:
    return Forbidden(
        f"The provider's token is refused: {reason}. Log in again, or tell the administrator."
    )
