"""Signed tokens of other servers: valid ones, and the reasons for refusing others."""

import hmac
import time
from base64 import urlsafe_b64encode
from functools import cache
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ricordo.errors import Forbidden, Invalid
from ricordo.features.identity.login.tokens import Expected, verify_token
from ricordo.features.openai.caller import verified_user
from ricordo.signed_tokens import read_token

# A secret of this length is shorter than PyJWT recommends.
SECRET = "a-secret"
ISSUER, CLIENT, NONCE = "https://login.example.org", "ricordo", "of-this-login"
EXPECTED = Expected(ISSUER, CLIENT, NONCE)
Json = dict[str, Any]


@cache
def rsa_key(bits: int = 2048, number: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key(curve: str = "P-256") -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key({"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}[curve])


def jwk(key: Any, **more: Any) -> Json:
    algorithms = jwt.algorithms
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    kind = algorithms.RSAAlgorithm if is_rsa else algorithms.ECAlgorithm
    return {**kind.to_jwk(key.public_key(), as_dict=True), **more}


def claims(**changes: Any) -> Json:
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": CLIENT, "nonce": NONCE, "sub": "42", "iat": now, "exp": now + 60}
    return {name: claim for name, claim in (usual | changes).items() if claim is not ...}


def b64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def by_hand(header: Any, payload: Any, secret: bytes | None = None) -> str:
    """Return a token with any header, signed with HMAC or not at all."""
    signed = f"{b64(orjson.dumps(header))}.{b64(orjson.dumps(payload))}"
    proof = hmac.digest(secret, signed.encode(), "sha256") if secret is not None else b""
    return f"{signed}.{b64(proof)}"


def login(payload: Json | None = None, keys: Any = None, token: str | None = None) -> Any:
    if token is None:
        token = jwt.encode(payload or claims(), rsa_key(), "RS256")
    return verify_token(token, [jwk(rsa_key())] if keys is None else keys, EXPECTED)


def reason(payload: Json | None = None, keys: Any = None, token: str | None = None) -> str:
    with pytest.raises(Forbidden) as refused:
        login(payload, keys, token)
    return str(refused.value)


def test_tokens_signed_with_a_provider_key_are_accepted() -> None:
    keys = [jwk(ec_key(), kid="b"), jwk(rsa_key(number=1), kid="a"), jwk(rsa_key(), kid="c")]
    assert login()["sub"] == "42"
    assert login(keys=keys)["sub"] == "42"
    assert login(keys=[{"kty": "OKP"}, "no key", {"kty": "oct", "k": "eA"}, *keys])["sub"] == "42"
    with_id = jwt.encode(claims(), ec_key(), "ES256", headers={"kid": "b"})
    assert login(keys=keys, token=with_id)["sub"] == "42"
    for payload in (
        claims(aud=[CLIENT]),
        claims(aud=[CLIENT, "other"], azp=CLIENT),
        claims(exp=int(time.time()) - 30),  # the clocks differ
        claims(exp=time.time() + 60.5, iat=time.time() + 30.5),
        claims(iat=...),
        claims(sub=42),
    ):
        assert login(payload)["iss"] == ISSUER


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, 0, [], {}, "n"])
def test_a_token_without_a_signature_is_refused(name: Any) -> None:
    token = by_hand({"alg": name}, claims())
    assert "signed" in reason(token=token) or "malformed" in reason(token=token)
    with pytest.raises(Forbidden):
        verified_user(by_hand({"alg": name}, claims(iss="open-webui")), SECRET)


def test_tokens_signed_with_the_public_key_are_refused() -> None:
    """With HS256, anybody could sign a token with the public key."""
    public = rsa_key().public_key()
    forms = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        orjson.dumps(jwk(rsa_key())),
        jwk(rsa_key())["n"].encode(),
        b"",
    ]
    keys = [jwk(rsa_key()), {"kty": "oct", "k": ""}]
    for form in forms:
        for algorithm in ("HS256", "HS384", "HS512", "RS256", "ES256", "PS256"):
            token = by_hand({"alg": algorithm}, claims(), form)
            assert "sign" in reason(keys=keys, token=token)


def test_tokens_with_other_algorithms_keys_or_signatures_are_refused() -> None:
    for algorithm in ("RS384", "RS512", "PS256", "PS512"):
        assert "not signed with RS256 or ES256" in reason(
            token=jwt.encode(claims(), rsa_key(), algorithm)
        )
    other_curve = jwt.encode(claims(), ec_key("P-384"), "ES384")
    assert "not signed" in reason(keys=[jwk(ec_key("P-384"))], token=other_curve)
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        short = jwt.encode(claims(), rsa_key(1024), "RS256")
    assert "another secret or key" in reason(keys=[jwk(rsa_key(1024))], token=short)
    for keys in (
        [],
        [jwk(rsa_key(number=1))],
        [jwk(rsa_key(), use="enc")],
        [jwk(rsa_key(), alg="RS512")],
        [jwk(ec_key())],
    ):
        assert "another secret or key" in reason(keys=keys)
    named = jwt.encode(claims(), rsa_key(), "RS256", headers={"kid": "new"})
    assert "another secret or key" in reason(keys=[jwk(rsa_key(), kid="old")], token=named)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": 0}, "expired"),
        ({"exp": int(time.time()) - 3600}, "expired"),
        ({"exp": ...}, "has no expiry time"),
        ({"exp": None}, "has no expiry time"),
        ({"exp": "9999999999"}, "malformed"),
        ({"exp": True}, "expired"),
        ({"exp": [9999999999]}, "malformed"),
        ({"exp": "soon"}, "malformed"),
        ({"iat": int(time.time()) + 3600}, "not valid yet"),
        ({"nbf": int(time.time()) + 3600}, "not valid yet"),
        ({"iat": "now"}, "malformed"),
        ({"nbf": "0"}, "malformed"),
        ({"iss": "https://elsewhere.org"}, "another issuer"),
        ({"iss": ISSUER + "/"}, "another issuer"),
        ({"iss": [ISSUER]}, "another issuer"),
        ({"iss": ...}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "someone-else"}, "another client"),
        ({"aud": CLIENT.upper()}, "another client"),
        ({"aud": []}, "another client"),
        ({"aud": ...}, "another client"),
        ({"aud": {CLIENT: 1}}, "another client"),
        ({"aud": ["someone-else"]}, "another client"),
        ({"aud": [CLIENT, "someone-else"]}, "issued to another client"),
        ({"azp": "someone-else"}, "issued to another client"),
        ({"nonce": "other"}, "another login"),
        ({"nonce": ...}, "another login"),
        ({"nonce": None}, "another login"),
    ],
)
def test_a_token_with_wrong_time_issuer_audience_or_nonce_is_refused(
    changes: Json, why: str
) -> None:
    payload = {name: claim for name, claim in (claims() | changes).items() if claim is not ...}
    signed = jwt.api_jws.PyJWS().encode(orjson.dumps(payload), rsa_key(), "RS256")
    assert why in reason(token=signed)


def test_a_changed_or_broken_token_is_refused() -> None:
    token = jwt.encode(claims(), rsa_key(), "RS256")
    header, payload, signature = token.split(".")
    other = b64(orjson.dumps(claims(sub="43")))
    broken = [
        f"{header}.{other}.{signature}",
        f"{header}.{payload}.",
        f"{header}.{payload}.{signature[:-8]}",
        f"{header}.{payload}.{signature[::-1]}",
        f"{header}.{payload}",
        f"{header}..{signature}",
        f".{payload}.{signature}",
        f"{token}.{signature}",
        "",
        ".",
        "..",
        "a.b.c",
        "é.ü.ß",
        "\ud800.b.c",
        f"{b64(b'[]')}.{payload}.{signature}",
        f"{b64(b'{')}.{payload}.{signature}",
        f"{b64(b'[' * 20_000)}.{payload}.{signature}",
        f"{header}.{'A' * 60_000}.{signature}",
        jwt.api_jws.PyJWS().encode(b"[]", rsa_key(), "RS256"),
        jwt.api_jws.PyJWS().encode(b"no json", rsa_key(), "RS256"),
        jwt.encode(claims(), rsa_key(), "RS256", headers={"crit": ["exp"]}),
        jwt.encode(claims(), rsa_key(), "RS256", headers={"crit": ["b64"], "b64": True}),
    ]
    for each in broken:
        assert "The provider's token is refused: " in reason(token=each), each
        with pytest.raises(Forbidden, match="is refused"):
            verified_user(each, SECRET)


def test_the_user_comes_from_the_signed_token() -> None:
    now = time.time()
    usual = {"iss": "open-webui", "sub": "ada", "exp": now + 60}
    for secret in ("s", SECRET, "x" * 32, "x" * 63, "x" * 64, "x" * 200, "ключ"):
        token = by_hand({"alg": "HS256", "typ": "JWT"}, usual, secret.encode())
        assert verified_user(token, secret).id == "ada"
        with pytest.raises(Forbidden, match="another secret"):
            verified_user(token, secret + "x")
    for payload, why in (
        (usual | {"exp": now - 600}, "expired"),
        (usual | {"exp": None}, "expired"),
        (usual | {"exp": str(now + 60)}, "malformed"),
        (usual | {"iss": "elsewhere"}, "another issuer"),
        (usual | {"iss": None}, "another issuer"),
        (usual | {"sub": ""}, "names no user"),
        (usual | {"sub": 42}, "names no user"),
        (usual | {"sub": None}, "names no user"),
    ):
        with pytest.raises(Forbidden, match=why):
            verified_user(by_hand({"alg": "HS256"}, payload, SECRET.encode()), SECRET)
    for algorithm in ("HS384", "HS512"):
        with pytest.raises(Forbidden, match="not signed with HS256"):
            verified_user(jwt.encode(usual, "x" * 64, algorithm), "x" * 64)
    audience = by_hand({"alg": "HS256"}, usual | {"aud": "anybody"}, SECRET.encode())
    assert verified_user(audience, SECRET).id == "ada"


def test_without_allowed_algorithms_every_token_is_refused() -> None:
    token = by_hand({"alg": "HS256"}, claims(), SECRET.encode())
    with pytest.raises(Invalid):
        read_token(token, [SECRET.encode()], algorithms=(), issuer=ISSUER)
