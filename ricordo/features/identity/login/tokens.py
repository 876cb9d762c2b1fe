"""ID tokens of OpenID Connect.

A token must be signed by the provider with a public key, for this server and this login.
"""

from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ricordo.errors import Forbidden

# Seconds by which the clocks of the provider and this server may differ.
_LEEWAY = 60
_LEAST_RSA_BITS = 2048
_LONGEST = 50_000
_P256_BYTES = 32
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """The required claims of a token: issuer, client and login.

    `now` is in seconds.
    """

    issuer: str
    client_id: str
    nonce: str
    now: float


def verify_token(token: str, jwks: Sequence[Any], expected: Expected) -> Json:
    """Return the claims of the token.

    Raises Forbidden if none of the keys signed it, or if it is for another login.
    """
    pieces = token.split(".") if len(token) <= _LONGEST else []
    if len(pieces) != 3:
        raise _refused("it is no signed token")
    header = _object(pieces[0])
    claims = _object(pieces[1])
    # Only these algorithms: "none" is no signature, and with HS256 the public key would be a
    # password.
    verify = _ALGORITHMS.get(str(header.get("alg")))
    if verify is None or "crit" in header:
        raise _refused(f"its signature is none of {', '.join(_ALGORITHMS)}")
    signed = f"{pieces[0]}.{pieces[1]}".encode("utf-8", "replace")
    signature = _bytes(pieces[2])
    candidates = [jwk for jwk in jwks if isinstance(jwk, dict) and jwk.get("use", "sig") == "sig"]
    if "kid" in header:
        candidates = [jwk for jwk in candidates if jwk.get("kid") == header["kid"]]
    if not any(verify(jwk, signature, signed) for jwk in candidates):
        raise _refused("it was not signed with a key of the provider")
    _require(claims, expected)
    return claims


def _require(claims: Json, expected: Expected) -> None:
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != expected.issuer:
        raise _refused("another issuer made it")
    if expected.client_id not in audiences:
        raise _refused("it was made for another client")
    # A token for several clients must name the authorized one.
    only_audience = None
    if len(audiences) == 1:
        only_audience = audiences[0]
    if claims.get("azp", only_audience) != expected.client_id:
        raise _refused("another client asked for it")
    if not _is_number(claims.get("exp")) or claims["exp"] + _LEEWAY <= expected.now:
        raise _refused("it expired")
    for name in ("iat", "nbf"):
        if name in claims and (
            not _is_number(claims[name]) or claims[name] - _LEEWAY > expected.now
        ):
            raise _refused("it is from the future; check the clocks")
    if claims.get("nonce") != expected.nonce:
        raise _refused("it was made for another login")


def _rs256(jwk: Json, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
    from cryptography.hazmat.primitives.hashes import SHA256

    if jwk.get("kty") != "RSA":
        return False
    modulus = _number(jwk.get("n"))
    exponent = _number(jwk.get("e"))
    try:
        if modulus.bit_length() < _LEAST_RSA_BITS:
            return False
        RSAPublicNumbers(exponent, modulus).public_key().verify(
            signature, signed, PKCS1v15(), SHA256()
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def _es256(jwk: Json, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import (
        ECDSA,
        SECP256R1,
        EllipticCurvePublicNumbers,
    )
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    if (jwk.get("kty"), jwk.get("crv"), len(signature)) != ("EC", "P-256", 2 * _P256_BYTES):
        return False
    first_half = int.from_bytes(signature[:_P256_BYTES])
    second_half = int.from_bytes(signature[_P256_BYTES:])
    try:
        key = EllipticCurvePublicNumbers(
            _number(jwk.get("x")), _number(jwk.get("y")), SECP256R1()
        ).public_key()
        key.verify(encode_dss_signature(first_half, second_half), signed, ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


_ALGORITHMS: Mapping[str, Callable[[Json, bytes, bytes], bool]] = {"RS256": _rs256, "ES256": _es256}


def _refused(reason: str) -> Forbidden:
    return Forbidden(
        f"The provider's token is refused: {reason}. Log in again, or tell the administrator."
    )


def _is_number(claim: Any) -> bool:
    return isinstance(claim, int | float) and not isinstance(claim, bool)


def _number(text: Any) -> int:
    return int.from_bytes(_bytes(text)) if isinstance(text, str) else 0


def _bytes(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise _refused("it is malformed") from None


def _object(text: str) -> dict[str, Any]:
    try:
        decoded = orjson.loads(_bytes(text))
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise _refused("it is malformed")
    return decoded
