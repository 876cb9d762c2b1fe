"""Fixtures of feature tests: a running server, its clients, and `ricordo` as people run it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import fastapi.applications
import pytest

from tests.api.conftest import (
    agent,
    api,
    client,
    http,
    running_client,
    running_http,
    running_server,
    server,
)
from tests.cli.conftest import new_shell, quick_command, shell

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.browser import SharedBrowser

__all__ = [
    "agent",
    "api",
    "client",
    "http",
    "new_shell",
    "quick_command",
    "running_client",
    "running_http",
    "running_server",
    "server",
    "shell",
]


@pytest.fixture(scope="session", autouse=True)
def _shared_document() -> Iterator[None]:
    """Let all apps with the same routes share one OpenAPI document: making it takes two seconds."""
    documents: dict[tuple[Any, ...], tuple[dict[str, Any], list[Any]]] = {}
    make = fastapi.applications.get_openapi

    def make_once(*, routes: Any, **options: Any) -> dict[str, Any]:
        named = [route for route in routes if getattr(route, "include_in_schema", False)]
        key = (repr(options), *map(id, named))
        if key not in documents:
            # The routes are kept, so that no other object gets their ids.
            documents[key] = (
                make(routes=routes, **options),
                named,
            )
        return documents[key][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastapi.applications, "get_openapi", make_once)
        yield


@pytest.fixture(scope="session")
def shared_browser() -> Iterator["SharedBrowser"]:
    """Start the shared browser of these tests, if one of them needs it."""
    from tests.support.browser import open_shared_browser  # Playwright and axe-core take 0.2 s

    with open_shared_browser() as shared:
        yield shared


@pytest.fixture
def browser(shared_browser: "SharedBrowser") -> Iterator["Browser"]:
    """Lend the browser to this test."""
    with shared_browser.lend() as lent:
        yield lent
