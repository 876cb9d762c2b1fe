"""A memory for programs without an agent.

Messages are added, facts are stored as the user wants, and found again with their sources.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.errors import ModelError
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import LIMIT, MODEL, ServerInThread, serving

ROOT = Path(__file__).parents[4]
CHAT = [
    {"role": "system", "content": "You are a salesman. The user lives in Vienna."},
    {"role": "user", "content": "My name is Ada. I live in Turin."},
    {"role": "assistant", "content": "I live in Rome, and my name is Bot."},
    {"role": "tool", "content": "I live in a tool."},
    {"role": "user", "content": [{"type": "text", "text": "I play the cello."}]},
    {"role": "assistant", "content": "I love the cello too."},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("memories"), api_key=OPERATOR) as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(OPERATOR)) as opened:
        yield opened


def add(http: httpx2.Client, user: str, messages: Any, **more: Any) -> dict[str, Any]:
    return ok(http.post(f"/users/{user}/memories", json={"messages": messages, **more}))


def search(http: httpx2.Client, user: str, query: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(
        http.post(f"/users/{user}/memories/search", json={"query": query, **more})
    )["results"]
    return found


def approve(http: httpx2.Client, user: str) -> None:
    ok(http.post(f"/users/{user}/diffs/approve", json={"all": True}))


def test_statements_become_memories_after_consent_and_are_found_with_their_source(
    http: httpx2.Client,
) -> None:
    done = add(http, "ada", CHAT)
    (change,) = done["results"]
    assert (change["event"], change["status"], change["block_label"]) == ("ADD", "waits", "human")
    assert "Turin" in change["memory"]
    assert "cello" in change["memory"]
    for never in ("Vienna", "Rome", "Bot", "tool", "love"):
        assert never not in change["memory"]
    assert search(http, "ada", "Turin", kinds=["fact"]) == []
    approve(http, "ada")
    (fact,) = search(http, "ada", "In which city does she live? Turin?", kinds=["fact"])
    assert "Turin" in fact["memory"]
    messages = ok(http.get(f"/v1/conversations/{done['conversation_id']}/messages"))
    said = next(
        one["id"]
        for one in messages
        if one["message_type"] == "user_message" and "Turin" in one["content"]
    )
    assert said in fact["citation"]["message_ids"]
    kinds = {one["kind"] for one in search(http, "ada", "cello")}
    assert kinds == {"fact", "message"}
    replies = [
        one["memory"]
        for one in search(http, "ada", "cello", kinds=["message"])
        if one["role"] == "assistant"
    ]
    # The answers of the agent that stores facts are not in the list.
    assert replies == [CHAT[5]["content"], CHAT[2]["content"]]


def test_a_changed_fact_updates_its_line_for_all_agents(
    server: ServerInThread, http: httpx2.Client
) -> None:
    add(http, "cleo", "I live in Bonn.")
    approve(http, "cleo")
    ok(http.patch("/users/cleo/blocks/human", json={"policy": "direct"}))
    (change,) = add(http, "cleo", "I live in Cologne now.")["results"]
    assert (change["event"], change["status"]) == ("UPDATE", "applied")
    assert "Bonn" in change["previous_memory"]
    block = ok(http.get("/users/cleo/blocks/human"))
    assert change["id"] == block["version"]
    assert "Cologne" in block["body"]
    assert "Bonn" not in block["body"]
    agent = ok(http.post("/v1/agents/", json={"model": MODEL, "name": "Tutor"}))["id"]
    said = {"messages": [{"role": "user", "content": "Hello"}]}
    ok(http.post(f"/v1/agents/{agent}/messages", json=said, headers={"x-ricordo-user": "cleo"}))
    assert "Cologne" in server.model.requests[-1].messages[0].text
    add(http, "cleo", "I live in Cologne now.")
    assert ok(http.get("/users/cleo/blocks/human"))["body"] == block["body"]


def test_simultaneous_memories_of_a_new_user_create_one_block(http: httpx2.Client) -> None:
    facts = [f"I own a {thing}." for thing in ("boat", "kite", "lamp", "harp", "tent")]
    with ThreadPoolExecutor(5) as pool:
        done = list(pool.map(lambda fact: add(http, "many", fact), facts))
    assert all(one["results"] for one in done)
    approve(http, "many")
    (block,) = ok(http.get("/users/many/blocks"))
    assert (block["label"], block["agent_id"]) == ("human", None)
    assert all(fact.removeprefix("I own a ") in block["body"] for fact in facts)


def test_a_session_continues_and_skips_messages_it_has_read(http: httpx2.Client) -> None:
    first = [{"role": "user", "content": "I keep bees.", "otid": "one"}]
    done = add(http, "dora", first, session="shop-7")
    again = add(http, "dora", first, session="shop-7")
    assert again == done
    more = add(
        http,
        "dora",
        [{"role": "user", "content": "I sell honey.", "otid": "two"}],
        session="shop-7",
    )
    assert more["conversation_id"] == done["conversation_id"]
    assert more["run_id"] != done["run_id"]
    assert add(http, "dora", first)["conversation_id"] != done["conversation_id"]
    assert add(http, "emil", first, session="shop-7")["conversation_id"] != done["conversation_id"]


def test_texts_are_stored_unchanged_without_inference(http: httpx2.Client) -> None:
    given = {"infer": False, "tags": ["thesis"], "metadata": {"page": 3}}
    (kept,) = add(http, "finn", "Bees of Piedmont", **given)["results"]
    assert (kept["event"], kept["status"], kept["memory"]) == ("ADD", "applied", "Bees of Piedmont")
    add(http, "finn", "Wasps of Piedmont", infer=False)
    (found,) = search(http, "finn", "Piedmont", tags=["thesis"], kinds=["passage"])
    assert (found["id"], found["kind"], found["tags"]) == (kept["id"], "passage", ["thesis"])
    assert found["citation"]["archive_id"]
    assert search(http, "finn", "quantum chromodynamics", threshold=0.9) == []
    assert len(search(http, "finn", "Piedmont", limit=1)) == 1
    add(http, "gina", "Hello.")
    assert search(http, "gina", "Piedmont", kinds=["fact", "passage"]) == []


def test_requests_without_user_messages_store_nothing(http: httpx2.Client) -> None:
    done = add(
        http,
        "hugo",
        [{"role": "assistant", "content": "My name is Hugo."}, {"role": "user", "content": "  "}],
    )
    assert (done["results"], done["run_id"]) == ([], None)
    refused(http.post("/users/hugo/memories", json={"messages": []}), 400)
    for body in (
        {"messages": [{"role": "user", "content": 7}]},
        {},
        {"messages": "x", "user_id": "ada"},
    ):
        refused(http.post("/users/hugo/memories", json=body), 422)


def test_users_cannot_read_or_write_memories_of_others(
    server: ServerInThread, http: httpx2.Client
) -> None:
    add(http, "ida", "I collect stamps.")
    add(http, "ida", "The vault is under the stairs.", infer=False)
    approve(http, "ida")
    jan, shop = bearer(server.key("jan")), bearer(server.key(role="service"))
    boss = bearer(server.key("boss", "admin"))
    fact = {"messages": "I collect coins."}
    refused(http.post("/users/ida/memories", json=fact, headers=jan), 404)
    refused(
        http.post("/users/ida/memories/search", json={"query": "stamps vault"}, headers=jan), 404
    )
    advice = refused(http.post("/users/ida/memories", json=fact, headers=boss), 403)
    assert "Use this user's own key or a service's key" in advice
    ok(http.post("/users/jan/memories", json=fact, headers=jan))
    assert not [
        one
        for one in search_as(http, jan, "jan", "stamps vault stairs")
        if "coins" not in one["memory"]
    ]
    done = ok(
        http.post("/users/kim/memories", json={"messages": "I collect shells."}, headers=shop)
    )
    assert [one["status"] for one in done["results"]] == ["waits"]
    refused(http.post("/users/kim/diffs/approve", json={"all": True}, headers=shop), 403)
    assert search_as(http, shop, "kim", "shells")[0]["memory"] == "I collect shells."
    assert not [
        one
        for one in search_as(http, shop, "kim", "stamps vault stairs")
        if "shells" not in one["memory"]
    ]


def search_as(
    http: httpx2.Client, headers: dict[str, str], user: str, query: str
) -> list[dict[str, Any]]:
    body = {"query": query}
    found: list[dict[str, Any]] = ok(
        http.post(f"/users/{user}/memories/search", json=body, headers=headers)
    )["results"]
    return found


def test_the_memory_agent_is_created_once_and_again_after_deletion(http: httpx2.Client) -> None:
    add(http, "lea", "I like tea.")
    id = add(http, "lea", "Hello.")["agent_id"]
    assert ok(http.get(f"/v1/agents/{id}"))["name"] == "memory"
    ok(http.delete(f"/v1/agents/{id}"))
    with ThreadPoolExecutor(4) as pool:
        new = {
            one["agent_id"]
            for one in pool.map(
                lambda fruit: add(http, "lea", f"I like {fruit}."), ("figs", "nuts", "pears")
            )
        }
    assert len(new) == 1
    assert id not in new


def test_a_model_error_is_reported_and_nothing_is_stored(
    server: ServerInThread, http: httpx2.Client
) -> None:
    add(http, "mia", "Hello.")
    id = add(http, "lea", "Hello.")["agent_id"]
    model = ok(http.get(f"/v1/agents/{id}"))["model"]
    ok(http.patch(f"/v1/agents/{id}", json={"model": MODEL}))
    try:
        server.says(ModelError("llm_rate_limit", "Slow down."))
        answer = http.post("/users/mia/memories", json={"messages": "I like plums."})
        assert answer.status_code == 429
        assert "error" in answer.json()
    finally:
        ok(http.patch(f"/v1/agents/{id}", json={"model": model}))
    assert search(http, "mia", "plums", kinds=["fact"]) == []


@pytest.mark.skipif(not shutil.which("node"), reason="there is no Node on this machine")
def test_the_typescript_example_of_the_docs_runs(tmp_path: Path) -> None:
    (program,) = re.findall(
        r"```ts\n(.*?)```",
        (ROOT / "docs" / "develop" / "memories.md").read_text("utf-8"),
        re.DOTALL,
    )
    with serving(tmp_path / "data") as server:
        (tmp_path / "example.mjs").write_text(
            program.replace("http://127.0.0.1:8283", server.url), "utf-8"
        )
        said = subprocess.run(
            ["node", tmp_path / "example.mjs"],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert said.stdout == "message I live in Turin.\n", said.stderr


def test_search_ranks_own_memories_first_and_applies_the_threshold(http: httpx2.Client) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL, "name": "Beekeeper"}))["id"]
    other = ok(http.post("/v1/agents/", json={"model": MODEL, "name": "Stranger"}))["id"]
    shared, own = "Bees like lavender", "Heather is what my bees like most"
    for id, text, headers in (
        (agent, shared, {}),
        (agent, own, {"x-ricordo-user": "hana"}),
        (other, shared, {}),
    ):
        past = {"messages": [{"role": "user", "content": text}]}
        ok(http.post(f"/v1/agents/{id}/messages/import", json=past, headers=headers))
    found = search(http, "hana", "bees lavender", kinds=["message"])
    # Nothing of the agent that never spoke with her is shown.
    assert [(one["memory"], one["shared"]) for one in found] == [(own, False), (shared, True)]
    assert 0 < found[0]["score"] < found[1]["score"] <= 1
    threshold = (found[0]["score"] + found[1]["score"]) / 2
    best = search(http, "hana", "bees lavender", kinds=["message"], threshold=threshold)
    assert [one["memory"] for one in best] == [shared]


def test_a_hit_in_a_long_text_has_the_matching_excerpt(http: httpx2.Client) -> None:
    sentences = [f"Sentence {number} of it is of no use." for number in range(200)]
    sentences[150] = "The heliotrope stands by the well."
    long = " ".join(sentences)
    add(http, "ivo", [{"role": "assistant", "content": long}], infer=False)
    add(http, "ivo", "I water the heliotrope.")
    (passage,) = search(http, "ivo", "heliotrope well", kinds=["passage"])
    assert passage["memory"] == long
    assert sentences[150] in passage["excerpt"]
    assert len(passage["excerpt"]) < len(long) / 2
    (message,) = search(http, "ivo", "heliotrope", kinds=["message"])
    assert (message["memory"], message["excerpt"]) == ("I water the heliotrope.", None)
