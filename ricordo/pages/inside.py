"""Calls of this server's API by pages, with the rights of the caller.

So a page shows no more than the API.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from fastapi import Request
from starlette.types import Message

from ricordo.api.guard import USER_HEADER, named_user
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import DatabaseFailed, RicordoError

_LATER = 503


class RefusedByApi(RicordoError):
    """A refusal of the API.

    `status` is that of the API's answer, but 404 for a malformed id. `content` is the whole answer.
    The message is the answer's sentence, without a code in front.
    """

    def __init__(self, status: int, content: Any) -> None:
        fields = content if isinstance(content, dict) else {}
        error = fields.get("error")
        message = fields.get("detail")
        if not message and isinstance(error, dict):
            message = error.get("message")
        text = str(message or f"The server answered {status}.")
        code, colon, sentence = text.partition(": ")
        is_coded = bool(colon) and code.isupper()
        super().__init__(sentence if is_coded else text)
        self.status = status
        self.content = content


class Api:
    """The API, called for one page.

    Paths are given as plain text: a name in a path is not percent-encoded.
    `user` is the user that the caller acts for; None means the user in the request's header.
    """

    def __init__(self, request: Request, user: str | None = None) -> None:
        self._request = request
        if user is None:
            user = named_user(request.scope["headers"])
        self._headers = []
        if user:
            self._headers.append((USER_HEADER, quote(user).encode()))

    async def get(self, path: str, **query: Any) -> Any:
        """Return the answer to GET.

        Args:
            path: The path without the server's prefix, as plain text.
            **query: Query parameters. One with the value None is omitted; a list repeats it.

        Raises:
            RefusedByApi: The API answered with a status of 400 or more.
            DatabaseFailed: The API cannot reach its database now.
        """
        return await self.ask("GET", path, query=query)

    async def find(self, path: str, **query: Any) -> Any:
        """Return the answer to GET, or None if the API refuses it.

        The page then leaves out this part.

        Args:
            path: The path without the server's prefix, as plain text.
            **query: Query parameters, as for `get`.

        Raises:
            DatabaseFailed: The API cannot reach its database now.
        """
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
        """Return the answer, decoded if it is JSON.

        Args:
            method: An HTTP method in capitals.
            path: The path without the server's prefix, as plain text.
            body: The body, which is sent as JSON; None: no body.
            query: Query parameters. One with the value None is omitted; a list repeats it.
            if_match: The entity tag of the changed object, without quotes.
            if_none_match: "*" if the object must not exist yet.
            form: A body with its media type, in place of a JSON body.

        Raises:
            RefusedByApi: The API answered with a status of 400 or more.
            DatabaseFailed: The API cannot reach its database now.
        """
        headers = []
        if if_match:
            headers.append((b"if-match", f'"{if_match}"'.encode()))
        if if_none_match:
            headers.append((b"if-none-match", if_none_match.encode()))
        typed_body = form or (b"", "application/json")
        if body is not None and form is None:
            typed_body = (orjson.dumps(body), "application/json")
        status, content_type, content = await self._call(
            method, path, typed_body, query=query or {}, headers=headers
        )
        answer: Any = content.decode("utf-8", "replace")
        if content and content_type.startswith("application/json"):
            answer = orjson.loads(content)
        if status < 400:
            return answer
        # If a page's address has a malformed id, the page does not exist.
        if isinstance(answer, dict) and "examples" in answer:
            status = 404
        raise RefusedByApi(status, answer)

    async def _call(
        self,
        method: str,
        path: str,
        body: tuple[bytes, str],
        *,
        query: Mapping[str, Any],
        headers: Sequence[tuple[bytes, bytes]],
    ) -> tuple[int, str, bytes]:
        outer = self._request.scope
        content, content_type = body
        parameters = {name: field for name, field in query.items() if field is not None}
        root = outer.get("root_path", "")
        names = ("type", "asgi", "http_version", "scheme", "client", "server", "app")
        scope = {
            **{name: outer.get(name) for name in names},
            REQUEST_SCOPE: outer[REQUEST_SCOPE],
            "root_path": root,
            "method": method,
            "path": root + path,
            "raw_path": quote(root + path).encode(),
            "query_string": urlencode(parameters, doseq=True).encode(),
            "headers": [
                (b"content-type", content_type.encode("latin-1")),
                *self._headers,
                *headers,
            ],
            "state": {},
        }
        started: Message = {}
        pieces: list[bytes] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            elif message["type"] == "http.response.body":
                pieces.append(message.get("body", b""))

        await self._request.app(scope, receive, send)
        response_headers = dict(started["headers"])
        if started["status"] == _LATER and b"retry-after" in response_headers:
            raise DatabaseFailed(
                "The database does not answer. Try again in a moment; the server's log says why."
            )
        return (
            started["status"],
            response_headers.get(b"content-type", b"").decode("latin-1"),
            b"".join(pieces),
        )
