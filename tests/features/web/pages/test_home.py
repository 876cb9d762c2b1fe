"""The home page: its content, its escaping, and that it loads nothing from other hosts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ricordo.app import create_app
from ricordo.llm.chat import ChatModel
from ricordo.settings import ProviderSettings, Settings


def visitor(folder: Path, *models: ChatModel, **settings: Any) -> TestClient:
    given = Settings(
        data_dir=folder, **{"find_local_models": False, "model": None, "api_key": None} | settings
    )
    app = create_app(given, ProviderSettings.model_construct(), extra_models=models)
    return TestClient(
        app, base_url="http://localhost:8283", client=("127.0.0.1", 50000), follow_redirects=False
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with visitor(tmp_path_factory.mktemp("home")) as client:
        yield client


def test_the_pages_are_not_in_the_openapi_document(browser: TestClient) -> None:
    assert browser.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert not [
        path
        for path in browser.get("/openapi.json").json()["paths"]
        if path == "/" or path.startswith("/ui")
    ]


def test_the_home_page_shows_escaped_agent_names(browser: TestClient) -> None:
    assert browser.post("/v1/agents/", json={"name": "Nina & co"}).status_code == 200
    assert "Nina &amp; co" in browser.get("/").text


def test_the_home_page_loads_nothing_from_other_hosts(browser: TestClient) -> None:
    page = browser.get("/")
    assert "unsafe" not in page.headers["content-security-policy"]
    targets = re.findall(r'(?:href|src|action)="([^"]*)"', page.text)
    assert targets
    assert all(target.startswith(("/", "#")) for target in targets)
    for target in targets:
        if target.startswith("/ui/static/"):
            assert (
                browser.get(target).headers["cache-control"]
                == "public, max-age=31536000, immutable"
            )
