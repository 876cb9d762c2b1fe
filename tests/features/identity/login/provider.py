"""A small OpenID Connect provider over real HTTP, with signing keys.

It logs everybody in at once, and sends wrong data when a test says so.
"""

import hmac
import json
import secrets
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CLIENT, SECRET = "ricordo", "s3cret:of+the%client"
Json = dict[str, Any]


def b64(given: bytes) -> str:
    return urlsafe_b64encode(given).rstrip(b"=").decode()


def piece(value: Any) -> str:
    return b64(json.dumps(value).encode())


def number(value: int) -> str:
    return b64(value.to_bytes((value.bit_length() + 7) // 8))


class TestProvider:
    """The provider.

    `person` holds the person's claims; the other attributes set wrong data.
    """

    __test__ = False

    def __init__(self) -> None:
        self.rsa, self.ec = generate_rsa_key(65537, 2048), generate_private_key(SECP256R1())
        self.person: Json = {"sub": "42", "name": "Ada Lovelace"}
        self.claims: Json = {}
        self.document: Json = {}
        self.algorithm = "RS256"
        self.sign: Callable[[str], bytes] | None = None
        self.error = ""
        self.is_broken, self.delay = False, 0.0
        self.asked: list[Json] = []
        self._codes: dict[str, Json] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.answer(self, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                provider.answer(self, dict(parse_qsl(body)))

            def log_message(self, *given: Any) -> None:
                """Log nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.http.server_address[1]}/realms/school"

    def answer(self, handler: BaseHTTPRequestHandler, form: Json) -> None:
        url = urlsplit(handler.path)
        status, content, headers = 200, {}, {}
        match url.path.removeprefix("/realms/school"):
            case "/.well-known/openid-configuration":
                content = {
                    "issuer": self.issuer,
                    "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token",
                    "jwks_uri": f"{self.issuer}/keys",
                } | self.document
            case "/authorize":
                status, headers = 302, {"location": self._authorize(dict(parse_qsl(url.query)))}
            case "/token":
                status, content = self._token(form, handler.headers.get("authorization", ""))
            case "/keys":
                content = {"keys": self.keys()}
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        with suppress(OSError):  # The client has gone.
            handler.wfile.write(json.dumps(content).encode())

    def keys(self) -> list[Json]:
        rsa, ec = self.rsa.public_key().public_numbers(), self.ec.public_key().public_numbers()
        return [
            {"kty": "RSA", "kid": "RS256", "n": number(rsa.n), "e": number(rsa.e)},
            {
                "kty": "EC",
                "crv": "P-256",
                "kid": "ES256",
                "x": b64(ec.x.to_bytes(32)),
                "y": b64(ec.y.to_bytes(32)),
            },
        ]

    def _authorize(self, query: Json) -> str:
        self.asked.append(query)
        if self.error:
            return f"{query['redirect_uri']}?{urlencode({'error': self.error, 'state': query['state']})}"
        code = secrets.token_urlsafe(8)
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def _token(self, form: Json, authorization: str) -> tuple[int, Json]:
        time.sleep(self.delay)
        if self.is_broken:
            return 500, {"error": SECRET}
        given = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if tuple(map(unquote_plus, given)) != (CLIENT, ":", SECRET):
            return 401, {"error": "invalid_client"}
        asked = self._codes.pop(form["code"], None)
        challenge = b64(sha256(form["code_verifier"].encode()).digest())
        known = ("S256", challenge, form["redirect_uri"])
        if (
            not asked
            or (asked["code_challenge_method"], asked["code_challenge"], asked["redirect_uri"])
            != known
        ):
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 60,
            "nonce": asked["nonce"],
        }
        return 200, {"id_token": self.token(claims | self.person | self.claims)}

    def token(self, claims: Json) -> str:
        signed = f"{piece({'alg': self.algorithm, 'kid': self.algorithm})}.{piece(claims)}"
        return f"{signed}.{b64((self.sign or self._sign)(signed))}"

    def _sign(self, signed: str) -> bytes:
        if self.algorithm == "ES256":
            r, s = decode_dss_signature(self.ec.sign(signed.encode(), ECDSA(SHA256())))
            return r.to_bytes(32) + s.to_bytes(32)
        return self.rsa.sign(signed.encode(), PKCS1v15(), SHA256())

    def sign_with_public_key(self, signed: str) -> bytes:
        """Sign as an attacker who knows only the public key."""
        public = self.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return hmac.digest(public, signed.encode(), "sha256")


@contextmanager
def providing() -> Iterator[TestProvider]:
    provider = TestProvider()
    thread = threading.Thread(target=provider.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield provider
    finally:
        provider.http.shutdown()
        provider.http.server_close()
        thread.join()
