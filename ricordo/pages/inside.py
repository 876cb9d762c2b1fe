"""The API of this server as a page asks it: with the rights of the caller, so that no page shows more than the API."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from fastapi import Request
from starlette.types import Message

from ricordo.api.guard import USER_HEADER
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import DatabaseFailed, RicordoError

_LATER = 503


class RefusedByApi(RicordoError):
    """The API refused; `status` and `detail` are what it answered, and `content` is its whole answer."""

    def __init__(self, status: int, content: Any) -> None:
        given = content if isinstance(content, dict) else {}
        error = given.get("error")
        words = given.get("detail") or (error.get("message") if isinstance(error, dict) else None)
        prefix, colon, rest = str(words or f"The server answered {status}.").partition(": ")
        super().__init__(rest if colon and prefix.isupper() else f"{prefix}{colon}{rest}")
        self.status, self.content = status, content


class Api:
    """The API, asked for one page. `user` is whom the caller acts for; None: for themself."""

    def __init__(self, request: Request, user: str | None = None) -> None:
        self._request = request
        named = request.headers.get(USER_HEADER.decode()) if user is None else user
        self._headers = [(USER_HEADER, named.encode("latin-1", "replace"))] if named else []

    async def get(self, path: str, **query: Any) -> Any:
        """Return the answer to GET; raises RefusedByApi. A query parameter of None is left out, one of a list is repeated."""
        return await self.ask("GET", path, query=query)

    async def find(self, path: str, **query: Any) -> Any:
        """Return the answer to GET, or None where the API refuses, so that a page can leave a part out."""
        try:
            return await self.ask("GET", path, query=query)
        except RefusedByApi:
            return None

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        form: tuple[bytes, str] | None = None,
    ) -> Any:
        """Return the answer: of JSON its value, else the text. Raises RefusedByApi where its status says so.

        `if_match` is the entity tag, without quotes, of what is changed; `if_none_match` as "*" makes only what is new.
        `form` is sent in place of a body of JSON: the bytes and their type.
        """
        headers = [(b"if-match", f'"{if_match}"'.encode())] if if_match else []
        headers += [(b"if-none-match", if_none_match.encode())] if if_none_match else []
        sent = form or (orjson.dumps(body) if body is not None else b"", "application/json")
        status, content_type, content = await self._call(method, path, sent, query or {}, headers)
        is_json = content_type.startswith("application/json")
        answer = (
            orjson.loads(content) if is_json and content else content.decode("utf-8", "replace")
        )
        if status >= 400:
            # A page whose address holds what is no id is one that is not there.
            raise RefusedByApi(
                404 if isinstance(answer, dict) and "examples" in answer else status, answer
            )
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        body: tuple[bytes, str],
        query: Mapping[str, Any],
        headers: Sequence[tuple[bytes, bytes]],
    ) -> tuple[int, str, bytes]:
        outer = self._request.scope
        sent, kind = body
        given = {name: value for name, value in query.items() if value is not None}
        root = outer.get("root_path", "")
        scope = {
            **{
                name: outer.get(name)
                for name in ("type", "asgi", "http_version", "scheme", "client", "server", "app")
            },
            REQUEST_SCOPE: outer[REQUEST_SCOPE],
            "root_path": root,
            "method": method,
            "path": root + path,
            "raw_path": quote(root + path).encode(),
            "query_string": urlencode(given, doseq=True).encode(),
            "headers": [(b"content-type", kind.encode("latin-1")), *self._headers, *headers],
            "state": {},
        }
        started: Message = {}
        pieces: list[bytes] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            elif message["type"] == "http.response.body":
                pieces.append(message.get("body", b""))

        await self._request.app(scope, receive, send)
        answered = dict(started["headers"])
        if started["status"] == _LATER and b"retry-after" in answered:
            raise DatabaseFailed(
                "The database does not answer. Try again in a moment; the server's log says why."
            )
        return (
            started["status"],
            answered.get(b"content-type", b"").decode("latin-1"),
            b"".join(pieces),
        )
