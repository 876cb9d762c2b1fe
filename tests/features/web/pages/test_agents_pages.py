"""Pages of agents, their context window and archive, and the search."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ricordo.domain.model import ModelInfo
from ricordo.llm.addresses import Connections
from ricordo.llm.learned_dialect import LearnedDialect
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.policy import CallPolicy
from tests.features.web.pages.test_home import visitor
from tests.seams.server import serving

HOSTILE = "<script>alert(1)</script> [x](javascript:alert(1)) \u202egnp.exe"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[TestClient]:
    with visitor(tmp_path) as client:
        yield client


@pytest.fixture
def agent(browser: TestClient) -> str:
    body = {"name": "Nina", "tags": ["tutor"], "memory_blocks": [{"label": "human", "value": ""}]}
    return str(browser.post("/v1/agents/", json=body).json()["id"])


def say(browser: TestClient, agent: str, *texts: str) -> None:
    for text in texts:
        body = {"messages": [{"role": "user", "content": text}]}
        assert browser.post(f"/v1/agents/{agent}/messages", json=body).status_code == 200


def test_agents_can_be_created_filtered_and_paged(browser: TestClient, agent: str) -> None:
    made = browser.post(
        "/ui/agents", data={"name": "Otto", "model": "ricordo/librarian", "persona": "I am <calm>."}
    )
    other = made.headers["location"].split("/")[3]
    blocks = {
        block["label"]: block["value"]
        for block in browser.get(f"/v1/agents/{other}").json()["blocks"]
    }
    assert blocks == {"persona": "I am <calm>.", "human": ""}
    page = browser.get("/ui/agents", params={"q": "otto"}).text
    assert (f"{other}/chat" in page, f"{agent}/chat" in page) == (True, False)
    page = browser.get("/ui/agents", params={"tag": "tutor"}).text
    assert (f"{other}/chat" in page, f"{agent}/chat" in page) == (False, True)
    for number in range(50):
        browser.post("/v1/agents/", json={"name": f"Agent {number}"})
    page = browser.get("/ui/agents").text
    assert page.count("<tr data-item>") == 50
    older = page.split('">Older</a>')[0].rsplit('href="', 1)[1]
    assert browser.get(older.replace("&amp;", "&")).text.count("<tr data-item>") == 2


def test_the_settings_form_changes_only_its_fields(browser: TestClient, agent: str) -> None:
    before = browser.get(f"/v1/agents/{agent}").json()
    form = {"name": "Nina 2", "description": HOSTILE, "tags": "a, b ,", "daily_tokens": "5000"}
    assert browser.post(f"/ui/agents/{agent}/settings", data=form).status_code == 303
    after = browser.get(f"/v1/agents/{agent}").json()
    assert (after["name"], after["description"], sorted(after["tags"])) == (
        "Nina 2",
        HOSTILE,
        ["a", "b"],
    )
    assert (after["system"], after["model"]) == (before["system"], before["model"])
    assert browser.get(f"/v1/agents/{agent}/budget").json()["daily_tokens"] == 5000
    page = browser.get(f"/ui/agents/{agent}/settings").text
    assert "<script>alert" not in page
    browser.post(f"/ui/agents/{agent}/settings", data={"daily_tokens": ""})
    assert browser.get(f"/v1/agents/{agent}/budget").json()["daily_tokens"] is None
    assert (
        browser.post(f"/ui/agents/{agent}/settings", data={"daily_tokens": "many"}).status_code
        == 422
    )


def test_tools_can_be_attached_detached_and_set_to_need_approval(
    browser: TestClient, agent: str
) -> None:
    tool = next(
        one
        for one in browser.get(f"/v1/agents/{agent}").json()["tools"]
        if one["name"] == "memory_insert"
    )
    path = f"/ui/agents/{agent}/tools/{tool['id']}"
    browser.post(path, data={"do": "approve"})
    rules = browser.get(f"/v1/agents/{agent}").json()["tool_rules"]
    assert {"type": "requires_approval", "tool_name": "memory_insert"}.items() <= rules[-1].items()
    assert "waits for it" in browser.get(f"/ui/agents/{agent}/settings").text
    browser.post(path, data={"do": "free"})
    assert "waits for it" not in browser.get(f"/ui/agents/{agent}/settings").text
    browser.post(path, data={"do": "detach"})
    assert "memory_insert" not in [
        one["name"] for one in browser.get(f"/v1/agents/{agent}").json()["tools"]
    ]
    browser.post(path, data={"do": "attach"})
    assert "memory_insert" in [
        one["name"] for one in browser.get(f"/v1/agents/{agent}").json()["tools"]
    ]


def test_an_agent_can_be_reset_and_deleted(browser: TestClient, agent: str) -> None:
    say(browser, agent, "I live in Turin.")
    browser.post(f"/ui/agents/{agent}/reset")
    assert [one["message_type"] for one in browser.get(f"/v1/agents/{agent}/messages").json()] == [
        "system_message"
    ]
    assert "Turin" in browser.get(f"/v1/agents/{agent}/core-memory").text
    assert browser.post(f"/ui/agents/{agent}/delete").headers["location"] == "/ui/agents"
    assert browser.get(f"/ui/agents/{agent}/settings").status_code == 404


def test_the_context_page_counts_tokens_by_section(browser: TestClient, agent: str) -> None:
    say(
        browser,
        agent,
        HOSTILE,
        *(f"I have read book number {number}, and it was good." for number in range(6)),
    )
    browser.post(f"/v1/agents/{agent}/summarize", json={})
    found = browser.get(f"/v1/agents/{agent}/context").json()
    page = browser.get(f"/ui/agents/{agent}/context").text
    assert f">{found['num_tokens_system']}<" in page
    assert "What left the window" in page
    assert "No model wrote this summary" in page
    assert "<script>alert" not in page
    step = browser.get("/v1/steps/").json()[0]["id"]
    assert (
        "RICORDO_TRACES=all"
        in browser.get(f"/ui/agents/{agent}/context", params={"step": step}).text
    )


def test_the_context_page_shows_what_the_model_was_found_to_need(
    browser: TestClient, agent: str
) -> None:
    assert "What its model needs" not in browser.get(f"/ui/agents/{agent}/context").text
    info = ModelInfo("local/strict", "local", "strict", "openai", endpoint="http://127.0.0.1:9/v1")
    model = OpenAICompatibleModel(info, Connections(1), CallPolicy())
    model.learned.store.learn(model.learned.key, LearnedDialect(by_turns=True, clipped_at=2_050))
    browser.app.state.runtime.models.add(model)  # type: ignore[attr-defined]
    strict = browser.post(
        "/v1/agents/", json={"model": "local/strict", "memory_blocks": []}
    ).json()["id"]
    page = browser.get(f"/ui/agents/{strict}/context").text
    assert "What its model needs" in page
    assert "speak by turns" in page
    assert "cuts longer prompts off at about 2,050 tokens" in page


def test_the_context_page_shows_a_steps_prompt_from_its_trace(tmp_path: Path) -> None:
    with visitor(tmp_path, traces="all") as browser:
        agent = browser.post("/v1/agents/", json={"memory_blocks": []}).json()["id"]
        say(browser, agent, "I live in <Turin>.")
        step = browser.get("/v1/steps/").json()[0]["id"]
        page = browser.get(f"/ui/agents/{agent}/context", params={"step": step}).text
        assert "The prompt of one step" in page
        assert "I live in &lt;Turin&gt;." in page.split("The prompt now")[0]


def test_the_archive_page_can_search_change_and_empty_the_archive(
    browser: TestClient, agent: str
) -> None:
    home = f"/ui/agents/{agent}/archive"
    assert "The archive is empty" in browser.get(home).text
    browser.post(home, data={"text": "Ada has a dog named <Otto>.", "tags": "pets, ada"})
    browser.post(home, data={"text": "Rain is likely."})
    page = browser.get(home, params={"q": "dog"}).text
    assert "&lt;Otto&gt;" in page
    assert "found by words, place 1" in page
    assert "Rain" not in browser.get(home, params={"tag": "pets"}).text
    passages = browser.get(f"/v1/agents/{agent}/archival-memory").json()
    dog = next(one["id"] for one in passages if "dog" in one["text"])
    browser.post(f"{home}/{dog}", data={"text": "Ada has a cat.", "tags": "pets"})
    texts = {one["text"] for one in browser.get(f"/v1/agents/{agent}/archival-memory").json()}
    assert texts == {"Ada has a cat.", "Rain is likely."}
    refused = browser.post(home, data={"text": "  "})
    assert refused.status_code == 400
    assert "The text is empty." in refused.text
    for one in browser.get(f"/v1/agents/{agent}/archival-memory").json():
        browser.post(f"{home}/{one['id']}/delete")
    assert "The archive is empty" in browser.get(home).text


def test_the_search_page_finds_messages_passages_and_blocks(
    browser: TestClient, agent: str
) -> None:
    say(browser, agent, "I play chess <on> Sundays.", "It rains today.", "I have two bicycles.")
    browser.post(f"/ui/agents/{agent}/archive", data={"text": "Chess was invented long ago."})
    browser.put("/users/ada/blocks/hobbies", json={"body": "Plays chess."})
    page = browser.get("/ui/search", params={"q": "chess"}).text
    for words in (
        "<h2>Memory</h2>",
        "<h2>Messages</h2>",
        "<h2>Archive</h2>",
        "of ada",
        "<mark>chess</mark> &lt;on&gt;",
    ):
        assert words in page
    page = browser.get("/ui/search", params={"q": "chess", "kind": "messages"}).text
    assert "bicycles" not in page, "neighbouring messages without a match must be left out"
    assert "<h2>Memory</h2>" not in page
    assert (
        "Nothing matches"
        in browser.get(
            "/ui/search", params={"q": "chess", "agent": "agent-none", "kind": "memory"}
        ).text
    )
    assert browser.get("/ui/search", params={"q": "x", "from": "nonsense"}).status_code == 400


def test_the_search_page_shows_the_part_of_a_long_text_that_matches(
    browser: TestClient, agent: str
) -> None:
    # The first sentence of the text also has one of the words; a search for the first match would
    # show it.
    sentences = [f"Sentence {number} has no use." for number in range(200)]
    sentences[0] = "A well is named here alone."
    sentences[150] = "The heliotrope stands by the well."
    long = " ".join(sentences)
    say(browser, agent, long)
    browser.post(f"/ui/agents/{agent}/archive", data={"text": long})
    for kind in ("messages", "archive"):
        query = {"q": "heliotrope well", "kind": kind, "agent": agent}
        page = browser.get("/ui/search", params=query).text
        shown = re.findall(r'<div class="plain">(.*?)</div>', page)
        matching = "The <mark>heliotrope</mark> stands by the <mark>well</mark>."
        parts = [text for text in shown if matching in text]
        assert parts, kind
        assert all("named here alone" not in text for text in parts), kind


def test_the_search_page_limits_itself_to_the_latest_agents(
    browser: TestClient, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = str(browser.post("/v1/agents/", json={"name": "Otto"}).json()["id"])
    say(browser, other, "Otto has a zebra.")
    say(browser, agent, "I have a zebra.")
    every = browser.get("/ui/search", params={"q": "zebra", "kind": "messages"}).text
    assert (agent in every, other in every, "very many agents" in every) == (True, True, False)
    monkeypatch.setattr("ricordo.features.web.pages.search._MOST_AGENTS", 1)
    page = browser.get("/ui/search", params={"q": "zebra", "kind": "messages"}).text
    assert (agent in page, other in page, "very many agents" in page) == (True, False, True)
    page = browser.get("/ui/search", params={"q": "zebra", "kind": "messages", "agent": other}).text
    assert ("Otto has a" in page, "very many agents" in page) == (True, False)
    assert browser.get("/ui/search", params={"q": "zebra", "user": "nobody"}).status_code == 404


def test_simultaneous_changes_of_secrets_and_passages_are_stored_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http, ThreadPoolExecutor(6) as pool:
        agent = http.post("/v1/agents/", json={"memory_blocks": []}).json()["id"]
        home = f"/ui/agents/{agent}"

        def store(number: int) -> int:
            form = {"name": f"KEY_{number}", "value": f"secret-{number}"}
            return http.post(f"{home}/secrets", data=form).status_code

        assert set(pool.map(store, range(6))) == {303}
        secrets = http.get(f"/v1/agents/{agent}").json()["secrets"]
        assert {one["key"] for one in secrets} == {f"KEY_{number}" for number in range(6)}
        http.post(f"{home}/secrets", data={"name": "KEY_1", "do": "delete"})
        http.post(f"{home}/secrets", data={"name": "KEY_2", "value": ""})
        assert http.post(f"{home}/secrets", data={"name": "no name"}).status_code == 400
        secrets = http.get(f"/v1/agents/{agent}").json()["secrets"]
        assert {one["key"] for one in secrets} == {f"KEY_{number}" for number in (0, 2, 3, 4, 5)}

        passages = f"/v1/agents/{agent}/archival-memory"
        old = http.post(passages, json={"text": "Has a dog."}).json()[0]["id"]

        def change(number: int) -> int:
            form = {"text": f"Has {number} cats."}
            return http.post(f"{home}/archive/{old}", data=form).status_code

        assert sorted(pool.map(change, range(4))) == [303, 404, 404, 404]
        assert len(http.get(passages).json()) == 1
