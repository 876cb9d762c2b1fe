"""Routes that cost little until they are used: each is known by its path and methods, and built at its first request.

To build one, FastAPI reads its signature and makes validators for its input and output: some milliseconds each, and there are
many. A route's own code decides what it answers; the response model is for the document alone.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import compile_path, get_name
from starlette.types import Receive, Scope, Send

from ricordo.api.models.base import RefusalResponse

# Every route may refuse; a class of codes, because which ones it gives depends on what is wrong.
REFUSALS: Mapping[int | str, dict[str, Any]] = {
    "4XX": {"model": RefusalResponse, "description": "Refused: `detail` says why and what to do"}
}


@dataclass(frozen=True, slots=True)
class LazyRouter:
    """The `router` of a module that is imported when one of its paths is first requested.

    `paths` are what its paths begin with, where * is one component: `/users/*/remotes`. They may match more than the routes do.
    """

    module: str
    paths: tuple[str, ...]

    def pattern(self) -> re.Pattern[str]:
        ways = "|".join(re.escape(path).replace(r"\*", "[^/]+") for path in self.paths)
        return re.compile(f"(?:{ways})(?:/|$)" if self.paths != ("/",) else "/$")


class LazyRoute(APIRoute):
    """A route that is built at its first request, or when anything is asked of it that only a built one knows."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        self.given: dict[str, Any] = given
        self.is_built = False
        # By what a request is matched.
        self.path, self.endpoint = path, endpoint
        self.name = given.get("name") or get_name(endpoint)
        self.methods = {method.upper() for method in given.get("methods") or ["GET"]}
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)

    def build(self) -> None:
        """Make the route whole; nothing where it is already."""
        if not self.is_built:
            self.is_built = True
            try:
                super().__init__(self.path, self.endpoint, **self.given)
            except BaseException:
                self.is_built = False
                raise

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.build()
        await super().handle(scope, receive, send)

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not there yet.
        if self.__dict__.get("is_built", True) or name.startswith("__"):
            raise AttributeError(f"A route has no {name}.")
        self.build()
        return getattr(self, name)


class Routes(APIRouter):
    """The routes of one module, in the order they are asked in."""

    def __init__(self, prefix: str = "", tags: list[str] | None = None, *, include_in_schema: bool = True) -> None:
        super().__init__(
            prefix=prefix,
            tags=cast(list[str | Enum] | None, tags),
            include_in_schema=include_in_schema,
            responses=dict(REFUSALS),
            route_class=LazyRoute,
        )
