"""Every write of memory, in core and features, goes through one function: a policy decides, a version is made, no secret is kept.

A new way to write memory is added to `AGENTS_PATHS`, `OWNERS_PATHS` or `tests.features.ways`. Which functions lead to the door, and
what writes the tables, is found in the source.
"""

import ast
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard, get_args

import httpx2
import pytest
from sqlalchemy import select, text

from ricordo.domain.block import Policy
from ricordo.domain.git_objects import blob_id
from ricordo.domain.scope import Scope
from ricordo.errors import Forbidden
from ricordo.features.typed_memory.client import InProcessClient
from ricordo.features.typed_memory.user_blocks import GitUserStorage
from ricordo.llm.scripted import call
from ricordo.memory import user_memory
from ricordo.memory.user_memory import UserMemory
from ricordo.storage import blocks, history, proposals, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter
from ricordo.storage.schema.memory_tables import commits, is_in_chain
from tests.features.ways import AFTER, BEFORE, OWNERS_WAYS, PROPOSALS_WAYS, SECRET, STORED, Scene, Way
from tests.seams.server import MODEL, ServerInThread
from tests.support.reaching import Graph, package, sources

# Who may write the tables of core memory, and no other module: the door, what stands behind it, and erasure, which leaves less.
DOOR = {"storage/blocks.py", "storage/versions.py", "storage/proposals.py"}
BESIDE = {
    "features/git/queries.py",  # what an owner pushed by git keeps its ids, so it is stored as it came, its policies asked
    "features/erasure/queries.py",
    "features/erasure/service.py",
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
# The functions that write memory, and nothing else does.
DOORS = {
    *(f"storage.blocks.{name}" for name in ("insert_all", "write", "update", "remove")),
    "features.git.adoption.adopt",
    "storage.proposals.insert_one",
}
# Where a turn begins. All that its tools write is saved with the step, as the tests of each tool show.
SAVING = "agents.step_save.save_step"
TURNS = {
    *("api.messages.send", "api.messages.send_async", "api.messages.stream", "api.conversations.send"),
    *("api.conversations.compact", "api.conversations.compact_own"),
}
# `ricordo doctor models` runs turns in a temporary database, which is deleted at its end.
TRIALS = {"cli.run_doctor"}
# By the function that is called, the test that goes there.
BLOCKS_AND_AGENTS = {
    "api.agents.create": "test_what_begins_with_a_secret_never_had_it",
    "api.blocks.create": "test_what_begins_with_a_secret_never_had_it",
    "api.blocks.modify": "test_an_owners_write_is_a_version_whatever_the_policy",
    "api.blocks.modify_of_agent": "test_an_owners_write_is_a_version_whatever_the_policy",
    "features.typed_memory.client.InProcessClient.__init__": "test_typed_memory_writes_through_the_door",
    "features.typed_memory.client.AgentCalls.create": "test_typed_memory_writes_through_the_door",
    "features.typed_memory.client.BlockCalls.update": "test_typed_memory_writes_through_the_door",
    "api.blocks.delete": "test_a_block_that_is_deleted_by_its_id_leaves_a_version",
}
_numbers = itertools.count(1)


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
        chain = versions.lock(tx, block.chain_id)
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


def test_a_block_that_is_deleted_by_its_id_leaves_a_version(server: ServerInThread, http: httpx2.Client) -> None:
    _, block = made(http, "read_only")
    chain_id = server.read(lambda tx: blocks.get(tx, Scope(), block)).chain_id
    assert http.delete(f"/v1/blocks/{block}").status_code == 200
    found = server.read(lambda tx: history.page(tx, chain_id, limit=9))
    assert [(one.author.kind, one.blob is None) for one in found] == [("user", True), ("user", False)]


def test_typed_memory_writes_through_the_door(server: ServerInThread) -> None:
    client = InProcessClient(server.runtime, server.run)
    agent = client.agents.create(name="Coach", model=MODEL, memory_blocks=[{"label": "human", "value": AFTER}])
    block = client.agents.blocks.retrieve("human", agent_id=agent.id)
    assert block.value == STORED
    require_version(server, block.id, "user", 1)
    assert client.agents.blocks.update("human", agent_id=agent.id, value=f"{AFTER} So.").value == f"{STORED} So."
    require_version(server, block.id, "user", 2)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitUserStorage]:
    """The storage of a program of one's own."""
    with GitUserStorage(tmp_path_factory.mktemp("own")) as opened:
        yield opened


@pytest.fixture
def scene(server: ServerInThread, http: httpx2.Client, storage: GitUserStorage, tmp_path: Path) -> Callable[..., Scene]:
    """Somebody new, with a block of this policy."""

    def begin(way: Way, policy: Policy) -> Scene:
        begun = Scene(server, http, storage, tmp_path, f"ada-{next(_numbers)}", policy)
        begun.begin(way.where)
        return begun

    return begin


def require_went(scene: Scene, way: Way) -> None:
    """Check what is there after this way was gone: the text, who wrote it, and what waits."""

    def read(tx: Transaction, owned: UserMemory) -> tuple[str | None, str, str, int]:
        block = user_memory.find(tx, owned, way.label)
        newest = history.page(tx, owned.chain.id, limit=1)[0]
        if block is not None:
            assert owned.chain.files[block.label][0] == blob_id(block.value)
        waiting = proposals.waiting(tx, owned.chain.id)
        assert not any(SECRET in (one.value or "") for one in waiting)
        return block.value if block else None, newest.author.kind, newest.reason, len(waiting)

    text, author, reason, waiting = scene.read(way.where, read)
    assert (text, waiting) == (way.after, way.waits)
    assert SECRET not in reason
    assert author == (way.author or "user")


@pytest.mark.parametrize("name", OWNERS_WAYS)
def test_an_owner_writes_her_memory_whatever_the_policy(scene: Callable[..., Scene], name: str) -> None:
    way = OWNERS_WAYS[name]
    # What takes a while is gone through with the strictest.
    for policy in POLICIES if way.enters.startswith(("api.users", "features.typed_memory.")) else ("read_only",):
        on = scene(way, policy)
        way.act(on)
        require_went(on, way)


@pytest.mark.parametrize("name", PROPOSALS_WAYS)
def test_what_is_proposed_waits_for_her_and_is_written_as_she_decides(scene: Callable[..., Scene], name: str) -> None:
    way = PROPOSALS_WAYS[name]
    for policy in [policy for policy in POLICIES if policy != "read_only"] if "git" not in name else ("propose",):
        on = scene(way, policy)
        way.act(on)
        require_went(on, way)


def test_nothing_can_be_proposed_for_what_only_its_owner_writes(scene: Callable[..., Scene]) -> None:
    on = scene(PROPOSALS_WAYS["propose"], "read_only")
    edit = {"old_string": BEFORE, "new_string": AFTER, "reasoning": "So she said."}
    assert on.http.post(f"/users/{on.name}/blocks/human/propose", json=edit).status_code == 403
    own = scene(PROPOSALS_WAYS["PendingDiffStore.propose"], "read_only")
    with pytest.raises(Forbidden):
        own.diffs.propose("agent-1", "human", BEFORE, AFTER, reasoning="So she said.")


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Who names whom in the source."""
    return package()


def test_every_way_to_the_door_is_gone_by_a_test(graph: Graph) -> None:
    """A new route, job or name for programs that writes memory: add it to a list, and say what it does."""
    listed = {way.enters for way in (*OWNERS_WAYS.values(), *PROPOSALS_WAYS.values())}
    assert graph.begins(DOORS) == listed | set(BLOCKS_AND_AGENTS) | TURNS | TRIALS


def test_a_way_that_nobody_listed_is_found(graph: Graph) -> None:
    new = {
        "plugins.teach": {"memory.user_memory.put"},
        "api.new.teach": {"memory.step_commit.commit"},
        "api.new.read": set(),
    }
    more = Graph({**graph.leads_to, **new}, graph.routed | {"api.new.teach", "api.new.read"})
    assert more.begins(DOORS) - graph.begins(DOORS) == {"plugins.teach", "api.new.teach"}


def test_turns_write_memory_with_their_steps_alone(graph: Graph) -> None:
    assert graph.without(SAVING).leading_to(DOORS).isdisjoint(TURNS)


def test_the_tests_that_are_named_are_there() -> None:
    assert set(BLOCKS_AND_AGENTS.values()) <= set(globals())


def writers_of_memory() -> dict[str, set[str]]:
    """By module, the tables of core memory it writes."""
    return {path: tables for path, tree in sources().items() if (tables := _written(tree))}


def _written(tree: ast.Module) -> set[str]:
    names = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("tables")
        for alias in node.names
        if alias.name in _TABLES
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    repositories = {
        node.targets[0].id: names[node.value.args[1].id]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _calls(node.value, "Repository")
        if isinstance(node.value.args[1], ast.Name) and node.value.args[1].id in names
    }
    return {
        names[call.args[0].id]
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in _WRITERS
        if call.args and isinstance(call.args[0], ast.Name) and call.args[0].id in names
    } | {
        repositories[call.func.value.id]
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"insert", "updates"}
        if isinstance(call.func.value, ast.Name) and call.func.value.id in repositories
    }


def _calls(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def test_only_the_door_writes_the_tables_of_memory() -> None:
    """A second way in would be one that no policy guards: take the door, or stand in this list with a reason."""
    found = writers_of_memory()
    assert set(found) <= DOOR | BESIDE, found
    assert found["storage/blocks.py"] >= {"blocks"}
    assert found["storage/versions.py"] >= {"commits", "chains"}
