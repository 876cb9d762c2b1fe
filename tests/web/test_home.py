"""The page at `/`: what it says, that it escapes what it repeats, and that it loads nothing from anywhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ricordo import __version__
from ricordo.app import create_app
from ricordo.settings import ProviderSettings, Settings


def visitor(folder: Path, **settings: Any) -> TestClient:
    given = Settings(data_dir=folder, **{"find_local_models": False, "model": None, "api_key": None} | settings)
    app = create_app(given, ProviderSettings.model_construct())
    return TestClient(app, base_url="http://localhost:8283", client=("127.0.0.1", 50000))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[TestClient]:
    with visitor(tmp_path) as client:
        yield client


def test_an_empty_server_says_what_it_is_and_how_to_begin(browser: TestClient) -> None:
    page = browser.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for words in (
        f"<dd>{__version__}</dd>",
        "<dd>none yet</dd>",
        "<dd>ricordo/librarian</dd>",
        "No agents yet",
        "No language model is connected",
        "ricordo chat --server http://localhost:8283",
        'Letta(base_url="http://localhost:8283")',
        "curl http://localhost:8283/v1/agents/",
        'href="/openapi.json"',
        'href="/v1/health"',
    ):
        assert words in page.text
    assert "/" not in browser.get("/openapi.json").json()["paths"], "the page is no part of the API"
    assert browser.get("/v1/health").status_code == 200


def test_the_page_counts_the_agents(browser: TestClient) -> None:
    assert browser.post("/v1/agents/", json={"name": "Nina"}).status_code == 200
    page = browser.get("/").text
    assert "<dt>Agents</dt><dd>1</dd>" in page
    assert "No agents yet" not in page


def test_the_page_runs_no_script_and_loads_nothing(browser: TestClient) -> None:
    page = browser.get("/")
    assert (
        page.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:"
    )
    assert "<script" not in page.text
    assert "@import" not in page.text
    assert "url(" not in page.text
    assert all(target.startswith(("/", "data:")) for target in re.findall(r'(?:href|src)="([^"]*)"', page.text))
    assert "prefers-color-scheme: dark" in page.text
    assert 'name="viewport"' in page.text


def test_every_value_is_escaped(tmp_path: Path) -> None:
    with visitor(tmp_path, model='openai/<img src=x onerror="alert(1)">') as browser:
        page = browser.get("/").text
    assert "<img" not in page
    assert "openai/&lt;img src=x onerror=&#34;alert(1)&#34;&gt;" in page
    assert "No language model is connected" not in page


def test_a_host_that_is_none_is_not_repeated(tmp_path: Path) -> None:
    with visitor(tmp_path, api_key="key") as browser:
        headers = {"authorization": "Bearer key"}
        page = browser.get("/", headers={**headers, "host": 'a"; rm -rf ~; "'}).text
        named = browser.get("/", headers={**headers, "host": "[::1]:8283"}).text
    assert "rm -rf" not in page
    assert "http://127.0.0.1:8283/v1/agents/" in page
    assert "http://[::1]:8283/v1/agents/" in named
    assert 'api_key="YOUR_KEY"' in page
    assert "Authorization: Bearer $RICORDO_API_KEY" in page
