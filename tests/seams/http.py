"""Helpers for tests over HTTP.

They use a user's memory, and check that a response is what the OpenAPI document promises.
"""

from dataclasses import replace
from typing import Any

import httpx2
import orjson
from pydantic import TypeAdapter
from starlette.types import ASGIApp

from ricordo.domain.scope import REQUEST_SCOPE, Scope
from tests.seams.waiting import wait_for

Wire = dict[str, Any]
OPERATOR = "the-operators-own-key"


def put(http: httpx2.Client, user: str, label: str, body: str, **more: Any) -> Wire:
    return ok(http.put(f"/users/{user}/blocks/{label}", json={"body": body, **more}))


def get(http: httpx2.Client, user: str, path: str, **query: Any) -> Any:
    return ok(http.get(f"/users/{user}/blocks/{path}", params=query))


def post(http: httpx2.Client, user: str, path: str, **body: Any) -> Any:
    return ok(http.post(f"/users/{user}/blocks/{path}", json=body))


def propose(http: httpx2.Client, user: str, label: str, old: str, new: str, **more: Any) -> str:
    edit = {"old_string": old, "new_string": new, "reasoning": "She said so.", **more}
    return str(post(http, user, f"{label}/propose", **edit)["id"])


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ok(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def wait_for_receipt(http: httpx2.Client, path: str) -> Wire:
    """Return the receipt of an erasure or of a forgetting, when that is done."""
    wait_for(lambda: http.get(path).status_code == 200)
    return ok(http.get(path))


def erase(http: httpx2.Client, user: str) -> Wire:
    """Erase a person, and return the receipt."""
    return wait_for_receipt(http, http.delete(f"/users/{user}").json()["receipt"])


def refused(answer: httpx2.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["detail"])


def require_fits(model: Any, answer: Any) -> None:
    """Raise if the JSON lacks a field, has an unknown one, or one of another type."""
    TypeAdapter(model).validate_json(orjson.dumps(answer), strict=True)


class AsCaller:
    """ASGI middleware for a test's app without a guard.

    Every request is made by this caller, in the organization that it names.
    """

    def __init__(self, app: ASGIApp, caller: Scope = Scope()) -> None:
        self._app, self._caller = app, caller

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        named = dict(scope.get("headers", ())).get(b"x-org")
        scope[REQUEST_SCOPE] = (
            replace(self._caller, organization_id=named.decode()) if named else self._caller
        )
        await self._app(scope, receive, send)
