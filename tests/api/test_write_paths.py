"""Every write path of the product goes through the one door: its policy is asked, a version is made, secrets stay outside.

Who adds a way to write memory adds it to `AGENTS_PATHS` or `OWNERS_PATHS`. What the tables are written by is found in the source.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
from sqlalchemy import select, text

import ricordo
from ricordo.domain.block import Policy
from ricordo.domain.git_objects import blob_id
from ricordo.domain.scope import Scope
from ricordo.llm.scripted import call
from ricordo.storage import blocks, proposals, versions
from ricordo.storage.memory_tables import is_in_chain
from ricordo.storage.paging import Page
from ricordo.storage.proposals import ProposalFilter
from ricordo.storage.store import Transaction
from ricordo.storage.tables import commits
from tests.support.serving import MODEL, ServerInThread

BEFORE = "Her name is Ada."
SECRET = "sk-1234567890abcdef1234567890abcdef"
AFTER, STORED = f"She is Eve, {SECRET}.", "She is Eve, [secret removed: api key]."

# Who may write the tables of core memory, and no other module: the door, what stands behind it, and erasure, which leaves less.
DOOR = {"storage/blocks.py", "storage/versions.py", "storage/blobs.py", "storage/proposals.py"}
BESIDE = {
    "storage/adopting.py",  # what an owner pushed by git keeps its ids, so it is stored as it came, its policies asked
    "storage/erasing.py",
    "storage/erased_rows.py",
}
_WRITERS = {"insert", "update", "delete", "setter", "Missing"}
_TABLES = {"blocks", "commits", "blobs", "chains", "proposals"}

AGENTS_PATHS: dict[str, dict[str, Any]] = {
    "core_memory_append": {"label": "human", "content": AFTER},
    "core_memory_replace": {"label": "human", "old_content": BEFORE, "new_content": AFTER},
    "memory_insert": {"label": "human", "new_string": AFTER},
    "memory_replace": {"label": "human", "old_string": BEFORE, "new_string": AFTER},
    "memory_rethink": {"label": "human", "new_memory": AFTER},
    "memory_apply_patch": {"label": "human", "patch": f"-{BEFORE}\n+{AFTER}"},
    "memory": {"command": "str_replace", "path": "/memories/human", "old_string": BEFORE, "new_string": AFTER},
    "edit_memory_block": {"label": "human", "old_string": BEFORE, "new_string": AFTER, "reasoning": "So she said."},
    "propose_memory_edit": {"label": "human", "old_string": BEFORE, "new_string": AFTER, "reasoning": "So she said."},
}
# Other ways of a tool that is above, which need no text.
AGENTS_OTHER_PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "delete": ("memory", {"command": "delete", "path": "/memories/human"}),
    "rename": ("memory", {"command": "rename", "old_path": "/memories/human", "new_path": "/memories/person"}),
    "patch away": ("memory_apply_patch", {"patch": "*** Delete Block: human"}),
}
OWNERS_PATHS: dict[str, Callable[[httpx2.Client, str, str], httpx2.Response]] = {
    "PATCH /v1/blocks/{id}": lambda http, _agent, block: http.patch(f"/v1/blocks/{block}", json={"value": AFTER}),
    "PATCH /v1/agents/{id}/core-memory/blocks/{label}": lambda http, agent, _block: http.patch(
        f"/v1/agents/{agent}/core-memory/blocks/human", json={"value": AFTER}
    ),
}
POLICIES: tuple[Policy, ...] = get_args(Policy)


def made(http: httpx2.Client, policy: str, *tools: str, value: str = BEFORE) -> tuple[str, str]:
    """An agent with one block of this policy, and the block."""
    body = {
        "model": MODEL,
        "include_base_tools": False,
        "tools": list(tools),
        "memory_blocks": [{"label": "human", "value": value, "policy": policy}],
    }
    answer = http.post("/v1/agents/", json=body)
    assert answer.status_code == 200, answer.text
    agent = answer.json()
    return agent["id"], agent["memory"]["blocks"][0]["id"]


def require_version(server: ServerInThread, block_id: str, by: str, count: int) -> None:
    """Check that the block's text is what its chain's newest version holds, by whom it should be, after so many versions."""

    def check(tx: Transaction) -> None:
        block = blocks.get(tx, Scope(), block_id)
        chain = versions.hold(tx, block.chain_id)
        assert chain is not None
        assert chain.files[block.label][0] == blob_id(block.value)
        assert (chain.versions, chain.head) == (count, block.head)
        found = select(commits.c.author_kind).where(is_in_chain(commits)).order_by(commits.c.number)
        assert [row.author_kind for row in tx.all(found, {"chain_id": chain.id})][-1] == by

    server.run(server.runtime.store.write(check))


def state_of(server: ServerInThread, block_id: str) -> tuple[str, str]:
    block = server.run(server.runtime.store.read(lambda tx: blocks.get(tx, Scope(), block_id)))
    return block.label, block.value


def proposed(server: ServerInThread, block_id: str) -> list[str | None]:
    def read(tx: Transaction) -> list[str | None]:
        chain_id = blocks.get(tx, Scope(), block_id).chain_id
        wanted = ProposalFilter(chain_id=chain_id, status="open")
        return [one.value for one in proposals.page(tx, Scope(), Page(limit=9), wanted)]

    return server.run(server.runtime.store.read(read))


def said(http: httpx2.Client, agent: str) -> str:
    """What the agent's call gave."""
    body = {"messages": [{"role": "user", "content": "Good morning, what is new with you?"}]}
    answer = http.post(f"/v1/agents/{agent}/messages", json=body)
    assert answer.status_code == 200, answer.text
    found = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return str(found[-1]["status"])


@pytest.mark.parametrize("name", AGENTS_PATHS)
def test_every_memory_tool_asks_the_policy(server: ServerInThread, http: httpx2.Client, name: str) -> None:
    for policy in POLICIES:
        agent, block = made(http, policy, name)
        server.says(call(name, **AGENTS_PATHS[name]), "Done.")
        status = said(http, agent)
        is_applied = policy in ("direct", "guarded") and name != "propose_memory_edit"
        _, value = state_of(server, block)
        waiting = proposed(server, block)
        if is_applied:
            assert STORED in value
            assert waiting == []
            require_version(server, block, "agent", 2)
            continue
        assert value == BEFORE
        require_version(server, block, "user", 1)
        if policy == "read_only":
            assert (status, waiting) == ("error", [])
        else:
            assert status == "success"
            assert len(waiting) == 1
            assert STORED in (waiting[0] or "")


@pytest.mark.parametrize("name", AGENTS_OTHER_PATHS)
def test_to_delete_and_to_rename_ask_the_policy_too(server: ServerInThread, http: httpx2.Client, name: str) -> None:
    tool, arguments = AGENTS_OTHER_PATHS[name]
    for policy in ("explicit", "propose", "read_only"):
        agent, block = made(http, policy, tool)
        server.says(call(tool, **arguments), "Done.")
        said(http, agent)
        assert state_of(server, block) == ("human", BEFORE)
        assert len(proposed(server, block)) == (policy != "read_only")
        require_version(server, block, "user", 1)


def test_every_tool_that_edits_memory_is_in_the_list(server: ServerInThread) -> None:
    editing = {tool.name for tool in server.runtime.toolbox if tool.edits_memory}
    assert editing | {"propose_memory_edit"} == set(AGENTS_PATHS)


@pytest.mark.parametrize("name", OWNERS_PATHS)
def test_an_owners_write_is_a_version_whatever_the_policy(
    server: ServerInThread, http: httpx2.Client, name: str
) -> None:
    for policy in POLICIES:
        agent, block = made(http, policy)
        answer = OWNERS_PATHS[name](http, agent, block)
        assert answer.status_code == 200, answer.text
        assert answer.json()["value"] == STORED
        assert state_of(server, block) == ("human", STORED)
        require_version(server, block, "user", 2)


def test_what_begins_with_a_secret_never_had_it(server: ServerInThread, http: httpx2.Client) -> None:
    _, of_agent = made(http, "direct", value=AFTER)
    loose = http.post("/v1/blocks/", json={"label": "human", "value": AFTER, "description": AFTER}).json()
    assert (loose["value"], loose["description"]) == (STORED, STORED)
    for block in (of_agent, loose["id"]):
        assert state_of(server, block) == ("human", STORED)
        require_version(server, block, "user", 1)


def test_passages_keep_no_secrets_on_any_path(server: ServerInThread, http: httpx2.Client) -> None:
    agent, _ = made(http, "direct", "archival_memory_insert")
    server.says(call("archival_memory_insert", content=AFTER), "Done.")
    said(http, agent)
    sent = http.post(f"/v1/agents/{agent}/archival-memory", json={"text": f"Again: {AFTER}"})
    assert sent.json()[0]["text"] == f"Again: {STORED}"
    archive = http.post("/v1/archives/", json={"name": "Notes", "embedding": "scripted/embedder"}).json()
    filed = http.post(f"/v1/archives/{archive['id']}/passages", json={"text": AFTER})
    assert filed.json()["text"] == STORED
    rows = server.run(server.runtime.store.read(lambda tx: tx.all(text("SELECT text FROM passages"))))
    assert sorted(row.text for row in rows)[:1] == [f"Again: {STORED}"]
    assert not any(SECRET in row.text for row in rows)


def writers_of_memory() -> dict[str, set[str]]:
    """By module, the tables of core memory it writes."""
    root = Path(ricordo.__file__).parent
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        if tables := _written(ast.parse(path.read_text("utf-8"))):
            found[str(path.relative_to(root))] = tables
    return found


def _written(tree: ast.Module) -> set[str]:
    names = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("tables")
        for alias in node.names
        if alias.name in _TABLES
    }
    return {
        names[node.args[0].id]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _WRITERS
        if node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in names
    }


def test_only_the_door_writes_the_tables_of_memory() -> None:
    """A second way in would be one that no policy guards: take the door, or stand in this list with a reason."""
    found = writers_of_memory()
    assert set(found) <= DOOR | BESIDE, found
    assert found["storage/blocks.py"] >= {"blocks"}
    assert found["storage/versions.py"] >= {"commits", "chains"}
