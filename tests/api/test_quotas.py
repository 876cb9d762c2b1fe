"""The limits of memory.

Every way to write a block has the same limits, and a larger block can still shrink.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.seams.http import ok, refused
from tests.seams.server import MODEL, ServerInThread, call, serving

KILOBYTE = 1024
LARGE = "An ä word. " * 200  # more than 2 kB
QUOTAS = {"max_block_kb": 2, "max_memory_mb": 1, "max_memory_blocks": 4}


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server with small limits for memory."""
    with serving(tmp_path_factory.mktemp("data"), **QUOTAS) as server:
        yield server


def block(http: httpx2.Client, label: str = "notes", **more: Any) -> str:
    return str(
        ok(http.post("/v1/blocks/", json={"label": label, "value": "A word.", **more}))["id"]
    )


def ways(http: httpx2.Client) -> dict[str, tuple[str, str, Any]]:
    """Return every way to write a block that is too large: method, address and body."""
    one = block(http)
    own = {"label": "own", "value": LARGE}
    ok(http.put("/users/ada/blocks/notes", json={"body": "A word."}))
    nested = {"a": [{"b": LARGE}]}
    edit = {"old_string": "A word.", "new_string": LARGE, "reasoning": "More."}
    return {
        "a new block": ("POST", "/v1/blocks/", own),
        "what it is for": (
            "POST",
            "/v1/blocks/",
            {"label": "own", "value": "", "description": LARGE},
        ),
        "its metadata": ("POST", "/v1/blocks/", {"label": "own", "value": "", "metadata": nested}),
        "another text": ("PATCH", f"/v1/blocks/{one}", {"value": LARGE}),
        "another description": ("PATCH", f"/v1/blocks/{one}", {"description": LARGE}),
        "other metadata": ("PATCH", f"/v1/blocks/{one}", {"metadata": nested}),
        "an agent's block": ("POST", "/v1/agents/", {"model": MODEL, "memory_blocks": [own]}),
        "a user's new block": ("PUT", "/users/ada/blocks/more", {"body": LARGE}),
        "a user's text": ("PUT", "/users/ada/blocks/notes", {"body": LARGE}),
        "a user's metadata": ("PATCH", "/users/ada/blocks/notes", {"metadata": nested}),
        "a proposal": ("POST", "/users/ada/blocks/notes/propose", edit),
    }


def test_a_too_large_block_is_refused_on_every_route_with_the_limit_and_the_setting(
    server: ServerInThread, http: httpx2.Client
) -> None:
    every = ways(http)
    rows = server.rows()
    for name, (method, path, sent) in every.items():
        words = refused(http.request(method, path, json=sent), 422)
        assert "2 kB are allowed (RICORDO_MAX_BLOCK_KB)" in words, name
    for format in ("markdown", "toml"):
        text = LARGE if format == "markdown" else f"body = {json.dumps(LARGE)}"
        kind = {"content-type": "text/markdown" if format == "markdown" else "application/toml"}
        assert (
            http.put("/users/ada/blocks/notes", content=text.encode(), headers=kind).status_code
            == 422
        )
    assert server.rows() == rows
    assert ok(http.put("/users/ada/blocks/notes", json={"body": LARGE[: KILOBYTE // 2]}))


def test_a_limit_in_characters_is_reported_before_the_block_size(http: httpx2.Client) -> None:
    one = block(http, limit=10)
    assert "its limit is 10" in refused(
        http.patch(f"/v1/blocks/{one}", json={"value": LARGE[:1000]}), 422
    )


def test_a_too_large_edit_of_an_agent_fails_and_keeps_the_rest_of_its_step(
    server: ServerInThread, http: httpx2.Client
) -> None:
    own = [{"label": label, "value": "One."} for label in ("human", "persona")]
    agent = ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": own}))["id"]
    server.says(
        call("memory_insert", label="human", new_string=LARGE),
        call("memory_insert", label="persona", new_string="Two."),
    )
    server.says("Done.")
    answer = ok(http.post(f"/v1/agents/{agent}/messages", json={"input": "Remember."}))
    results = [one for one in answer["messages"] if one["message_type"] == "tool_return_message"]
    assert "RICORDO_MAX_BLOCK_KB" in json.dumps(results)
    values = {one["label"]: one["value"] for one in ok(http.get(f"/v1/agents/{agent}"))["blocks"]}
    assert values["human"] == "One."


def test_the_number_of_blocks_in_one_memory_is_bounded(http: httpx2.Client) -> None:
    for number in range(QUOTAS["max_memory_blocks"]):
        ok(http.put(f"/users/grace/blocks/{number}", json={"body": "One."}))
    words = refused(http.put("/users/grace/blocks/more", json={"body": "One."}), 422)
    assert "4 are allowed (RICORDO_MAX_MEMORY_BLOCKS)" in words
    assert ok(http.put("/users/grace/blocks/1", json={"body": "Two."}))["body"] == "Two."
    ok(http.delete("/users/grace/blocks/1"))
    assert ok(http.put("/users/grace/blocks/more", json={"body": "One."}))
    agent = ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": []}))["id"]
    made = [block(http, f"shared_{number}") for number in range(QUOTAS["max_memory_blocks"] + 1)]
    for one in made[:-1]:
        ok(http.patch(f"/v1/agents/{agent}/core-memory/blocks/attach/{one}"))
    words = refused(http.patch(f"/v1/agents/{agent}/core-memory/blocks/attach/{made[-1]}"), 422)
    assert "RICORDO_MAX_MEMORY_BLOCKS" in words


@pytest.fixture(scope="module")
def full_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server that allows 1 MB of memory, less than three blocks of 400 kB."""
    with serving(tmp_path_factory.mktemp("data"), max_memory_mb=1) as server:
        yield server


def test_the_total_size_of_the_blocks_in_one_memory_is_bounded(full_server: ServerInThread) -> None:
    text, limit = "word " * 80_000, 500_000  # 400 kB
    with full_server.http() as http:
        for label in ("one", "two"):
            ok(http.put(f"/users/ada/blocks/{label}", json={"body": text, "limit": limit}))
        words = refused(
            http.put("/users/ada/blocks/three", json={"body": text, "limit": limit}), 422
        )
        assert "1 MB are allowed (RICORDO_MAX_MEMORY_MB)" in words
        assert ok(http.put("/users/ada/blocks/three", json={"body": "Short."}))
        refused(http.put("/users/ada/blocks/three", json={"body": text, "limit": limit}), 422)
        assert ok(http.put("/users/ben/blocks/three", json={"body": text, "limit": limit})), (
            "another user has a separate quota"
        )
        agent = ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": []}))["id"]
        made = [block(http, label, value=text, limit=limit) for label in ("one", "two", "three")]
        small = block(http, "small", limit=limit)
        for one in (*made[:2], small):
            ok(http.patch(f"/v1/agents/{agent}/core-memory/blocks/attach/{one}"))
        refused(http.patch(f"/v1/agents/{agent}/core-memory/blocks/attach/{made[2]}"), 422)
        refused(http.patch(f"/v1/blocks/{small}", json={"value": text}), 422)
        assert ok(http.patch(f"/v1/blocks/{small}", json={"value": "Small."}))


def test_a_block_above_a_new_limit_can_be_read_and_shortened_but_not_grown(
    tmp_path: Path,
) -> None:
    path, older = "/users/ada/blocks/notes", "line\n" * 1000
    with serving(tmp_path) as server, server.http() as http:
        ok(http.put(path, json={"body": older}))
    with serving(tmp_path, max_block_kb=1) as server, server.http() as http:
        assert ok(http.get(path))["body"] == older
        assert "RICORDO_MAX_BLOCK_KB" in refused(
            http.put(path, json={"body": older + "more\n"}), 422
        )
        assert ok(http.patch(path, json={"title": "Notes", "policy": "direct"}))["title"] == "Notes"
        assert ok(http.put(path, json={"body": older[:4000]}))["body"] == older[:4000]
        assert ok(http.put(path, json={"body": "Short."}))
        refused(http.put(path, json={"body": older}), 422)


def test_a_full_history_refuses_new_text_until_the_setting_is_raised(
    tmp_path: Path,
) -> None:
    path = "/users/ada/blocks/notes"
    texts = [random.Random(number).randbytes(200_000).hex() for number in range(9)]  # noqa: S311
    with serving(tmp_path, max_history_mb=1) as server, server.http() as http:
        assert ok(http.put(path, json={"body": "First.", "limit": 500_000}))
        answers = [http.put(path, json={"body": text}) for text in texts]
        stored = sum(answer.status_code == 200 for answer in answers)
        # Random hex digits compress to half of their length.
        assert 4 < stored < 7
        words = refused(answers[-1], 422)
        assert "1 MB are allowed (RICORDO_MAX_HISTORY_MB)" in words
        assert ok(http.get(path))["body"] == texts[stored - 1]
        assert ok(http.put("/users/ben/blocks/notes", json={"body": "Another's."}))
        versions = ok(http.get(f"{path}/history"))
        assert ok(http.post(f"{path}/restore", json={"sha": versions[-1]["sha"]}))
        assert ok(http.get(path))["body"] == "First."
    with serving(tmp_path, max_history_mb=2) as server, server.http() as http:
        assert ok(http.put(path, json={"body": texts[-1]}))["body"] == texts[-1]
