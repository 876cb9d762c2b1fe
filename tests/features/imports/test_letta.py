"""Moving in from a database of the retired server: everything comes with its ids, once, and what does not is told."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.features.imports.letta_database import KEY, ORGANIZATION, LettaTables, id_of, letta_database
from tests.seams.http import ok
from tests.seams.server import ServerInThread, serving

NINA, OLAF = id_of("agent", "nina"), id_of("agent", "olaf")


@pytest.fixture(scope="module")
def tables() -> Iterator[LettaTables]:
    with letta_database() as made:
        made.fill()
        yield made


def command(tables: LettaTables, data_dir: Path, *options: str) -> dict[str, Any]:
    environment = {**os.environ, "RICORDO_DATA_DIR": str(data_dir), "RICORDO_FIND_LOCAL_MODELS": "false"}
    arguments = [sys.executable, "-m", "ricordo.cli", "import", "letta", "--database", tables.url, *options]
    return {"args": arguments, "env": environment, "text": True}


def import_all(tables: LettaTables, data_dir: Path, *options: str) -> tuple[str, dict[str, Any]]:
    report = data_dir / "report.json"
    given = command(tables, data_dir, "--report", str(report), "--encryption-key", KEY, *options)
    done = subprocess.run(**given, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, orjson.loads(report.read_bytes())


@pytest.fixture(scope="module")
def moved(tables: LettaTables, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("moved")
    return folder, *import_all(tables, folder)


@pytest.fixture(scope="module")
def server(moved: tuple[Path, str, dict[str, Any]]) -> Iterator[ServerInThread]:
    with serving(moved[0]) as running:
        yield running


def test_the_report_says_what_came_and_what_did_not(moved: tuple[Path, str, dict[str, Any]]) -> None:
    _, told, report = moved
    assert report["taken"]["agents"] == 2
    assert report["taken"]["passages"] == 30
    assert report["taken"]["messages"] == 2 * 11 + 3
    assert report["taken"]["files"] == 1
    left = {(one["kind"], one["name"]): one["why"] for one in report["left"]}
    assert "external_mcp" in left["tools", "far_away"]
    assert ("agents", "Odd") in left
    assert "encrypted with another key" in left["secrets", "nina".title() + ": OTHER"]
    assert ("groups", "1") in left
    assert ("runs", "1") in left
    assert "Taken: " in told
    assert "Left out:" in told


def test_agents_are_as_they_were_under_the_ids_that_they_had(server: ServerInThread) -> None:
    server.forget()
    with server.client() as client, server.http() as http:
        nina = client.agents.retrieve(NINA)
        assert (nina.name, nina.system, nina.timezone, nina.tags) == ("Nina", "You help.", "Europe/Rome", ["school"])
        assert {block.label: (block.id, block.value) for block in nina.blocks} == {
            label: (id_of("block", label), value)
            for label, value in (
                ("persona", "I am Nina."),
                ("human", "Her name is Ada."),
                ("team", "We meet on Mondays."),
            )
        }
        assert {tool.name for tool in nina.tools} >= {"greet", "archival_memory_search"}
        assert [(rule.type, rule.tool_name) for rule in nina.tool_rules or []] == [("requires_approval", "greet")]
        assert client.agents.retrieve(OLAF).blocks[0].id == id_of("block", "team"), "shared, not copied"
        client.blocks.update(id_of("block", "team"), value="We meet on Fridays.")
        assert [agent.blocks[-1].value for agent in map(client.agents.retrieve, (NINA, OLAF))] == [
            "We meet on Fridays."
        ] * 2

        shown = ok(http.get(f"/v1/agents/{NINA}/messages", params={"limit": 100}))
        assert [one["message_type"].removesuffix("_message") for one in shown] == [
            *(
                "system",
                "user",
                "reasoning",
                "assistant",
                "user",
                "tool_call",
                "tool_return",
                "assistant",
                *["user"] * 5,
            )
        ]
        assert shown[1]["content"] == "Good morning from 2025."
        assert shown[1]["id"] == id_of("message", "nina-1")
        assert shown[1]["date"].startswith("2025-03-01")
        assert len(nina.message_ids or []) == 10
        (thread,) = client.conversations.list(agent_id=NINA)
        assert (thread.id, thread.summary) == (id_of("conv", "thread"), "About boats")
        found = client.agents.passages.search(NINA, query="marmalade jar 17")
        assert "jar 17" in found.results[0].content
        said = ok(http.post("/v1/messages/search", json={"query": "turnips", "agent_id": NINA, "limit": 10}))
        assert all("turnips" in one["content"] for one in said[:5])
        (folder,) = ok(http.get("/v1/folders/", params={"name": "Handbook"}))
        assert folder["metadata"]["imported_from"] == id_of("source", "handbook")
        assert ok(http.get("/v1/identities/", params={"identifier_key": "ada@school"}))[0]["agent_ids"] == [NINA]

        server.says("Good to see you again.")
        answer = client.agents.messages.create(NINA, input="Do you remember me?")
        assert answer.messages[-1].content == "Good to see you again."  # type: ignore[union-attr]
        exported = ok(http.get(f"/v1/agents/{NINA}/export"))
        assert "Remark 4 about turnips." in str(exported["agents"][0]["messages"])
        assert len(exported["ricordo"]["agents"]["agent-0"]["archives"][0]["passages"]) == 30


def test_again_takes_only_what_is_new_and_leaves_what_changed_here(tables: LettaTables, tmp_path: Path) -> None:
    import_all(tables, tmp_path)
    with serving(tmp_path) as server, server.client() as client:
        client.agents.update(NINA, name="Renamed here")
        before = contents(server)
    _, report = import_all(tables, tmp_path)
    assert not {name: count for name, count in report["taken"].items() if count}
    with serving(tmp_path) as server:
        assert contents(server) == before


def test_an_import_that_is_killed_anywhere_is_whole_after_the_next(tables: LettaTables, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    import_all(tables, whole)
    lasts = time.monotonic() - began
    for _ in range(4):
        process = subprocess.Popen(**command(tables, killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(lasts * 0.4, lasts))  # noqa: S311 - a moment
        process.kill()
        process.wait()
    import_all(tables, killed)
    with serving(whole) as one, serving(killed) as other:
        assert contents(one) == contents(other)


def contents(server: ServerInThread) -> Any:
    """What agents hold, without what another import makes anew: times of writing and hashes of versions."""
    with server.http() as http:
        made = []
        for agent in sorted(ok(http.get("/v1/agents/")), key=lambda one: str(one["id"])):
            path = f"/v1/agents/{agent['id']}"
            messages = ok(http.get(f"{path}/messages", params={"limit": 1000}))
            passages = ok(http.get(f"{path}/archival-memory", params={"limit": 1000}))
            blocks = [(block["id"], block["label"], block["value"]) for block in agent["blocks"]]
            said = [
                (one["id"], one["date"], one.get("content"))
                for one in messages
                if one["message_type"] != "system_message"
            ]
            made.append(
                (
                    agent["name"],
                    blocks,
                    said,
                    sorted((one["id"], one["text"]) for one in passages),
                    agent["message_ids"][1:],
                )
            )
        return (
            made,
            ok(http.get("/v1/folders/count")),
            ok(http.get("/v1/tools/count")),
            ok(http.get("/v1/identities/count")),
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--organization", "org-1"], f"No agent belongs to org-1. There are: {ORGANIZATION}."),
        (["--database", "postgresql://nobody@127.0.0.1:9/none"], "The database cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(tables: LettaTables, tmp_path: Path, options: list[str], words: str) -> None:
    done = subprocess.run(**command(tables, tmp_path, *options), capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words in done.stderr
