"""Every write of memory, in core and features, goes through one function.

A policy decides, a version is made, and no secret is stored. A new way to write memory must be
added to `AGENTS_PATHS`, to `OWNERS_PATHS` or to the ways below. Each of those ways starts with a
block `human` with the text `BEFORE` and some policy, and does one thing to it.
"""

import itertools
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from sqlalchemy import text

from ricordo.domain.block import Policy
from ricordo.domain.git_objects import blob_id
from ricordo.domain.remote import Access
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import TooLong
from ricordo.features.documents.imports.letta import import_letta
from ricordo.features.documents.imports.letta_tables import LettaTables
from ricordo.features.openwebui.mirror.sync import OpenWebUIRemotes
from ricordo.features.sync.dolt.sync import DoltRemotes
from ricordo.features.sync.git.sync import GitRemotes
from ricordo.features.sync.remotes import service as remotes
from ricordo.features.typed_memory.schemas.client import InProcessClient
from ricordo.llm.scripted import call
from ricordo.memory import user_memory
from ricordo.memory.remote_kind import RemoteKind
from ricordo.memory.user_memory import PutOptions
from ricordo.settings import Settings
from ricordo.storage import blocks, history, history_size, proposals, versions
from ricordo.storage.engine.database import open_store
from ricordo.storage.engine.store import Store, Transaction
from tests.seams.server import MODEL, ServerInThread
from tests.support import dolt, letta_database, postgres
from tests.support.git import git
from tests.support.open_webui import KEY as OPEN_WEBUI_KEY
from tests.support.open_webui import FakeOpenWebUI

BEFORE = "Her name is Ada."
SECRET = "sk-1234567890abcdef1234567890abcdef"
AFTER, STORED = f"She is Eve, {SECRET}.", "She is Eve, [secret removed: api key]."
# Requests that a secret would make fail are sent with this text.
PLAIN = "She is Eve."
PROPOSAL = {"old_string": BEFORE, "new_string": AFTER, "reasoning": "So she said."}
POLICIES: tuple[Policy, ...] = get_args(Policy)
AGENTS_PATHS: dict[str, dict[str, Any]] = {
    "core_memory_append": {"label": "human", "content": AFTER},
    "core_memory_replace": {"label": "human", "old_content": BEFORE, "new_content": AFTER},
    "memory_insert": {"label": "human", "new_string": AFTER},
    "memory_replace": {"label": "human", "old_string": BEFORE, "new_string": AFTER},
    "memory_rethink": {"label": "human", "new_memory": AFTER},
    "rethink_user_memory": {"new_memory": AFTER},
    "memory_apply_patch": {"label": "human", "patch": f"-{BEFORE}\n+{AFTER}"},
    "memory": {
        "command": "str_replace",
        "path": "/memories/human",
        "old_string": BEFORE,
        "new_string": AFTER,
    },
    "edit_memory_block": {"label": "human", **PROPOSAL},
    "propose_memory_edit": {"label": "human", **PROPOSAL},
}
# Other commands of the tools above, which need no text.
AGENTS_OTHER_PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "delete": ("memory", {"command": "delete", "path": "/memories/human"}),
    "rename": (
        "memory",
        {"command": "rename", "old_path": "/memories/human", "new_path": "/memories/person"},
    ),
    "patch away": ("memory_apply_patch", {"patch": "*** Delete Block: human"}),
}
OWNERS_PATHS: dict[str, Callable[[httpx2.Client, str, str], httpx2.Response]] = {
    "PATCH /v1/blocks/{id}": lambda http, _agent, block: http.patch(
        f"/v1/blocks/{block}", json={"value": AFTER}
    ),
    "PATCH /v1/agents/{id}/core-memory/blocks/{label}": lambda http, agent, _block: http.patch(
        f"/v1/agents/{agent}/core-memory/blocks/human", json={"value": AFTER}
    ),
}
Begin = Callable[["Way", Policy], "Scene"]
_numbers = itertools.count(1)


def make_agent(
    http: httpx2.Client, policy: str, *tools: str, value: str = BEFORE
) -> tuple[str, str]:
    """Make an agent with one block of this policy; return the ids of both."""
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
    """Check that the block agrees with its chain, and check the author and count of versions."""

    def check(tx: Transaction) -> None:
        block = blocks.get(tx, Scope(), block_id)
        chain = versions.lock(tx, block.chain_id)
        assert chain.files[block.label][0] == blob_id(block.value)
        assert (chain.versions, chain.head) == (count, block.head)
        assert history.page(tx, chain.id, limit=1)[0].author.kind == by
        assert history_size.wrong_ids(tx) == []

    server.write(check)


def state_of(server: ServerInThread, block_id: str) -> tuple[str, str]:
    block = server.read(lambda tx: blocks.get(tx, Scope(), block_id))
    return block.label, block.value


def proposed_values(server: ServerInThread, block_id: str) -> list[str | None]:
    found = server.read(
        lambda tx: proposals.waiting(tx, blocks.get(tx, Scope(), block_id).chain_id)
    )
    return [one.value for one in found]


def call_status(http: httpx2.Client, agent: str) -> str:
    """Return the result of the agent's call."""
    body = {"messages": [{"role": "user", "content": "Good morning, what is new with you?"}]}
    answer = http.post(f"/v1/agents/{agent}/messages", json=body)
    assert answer.status_code == 200, answer.text
    found = [
        one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"
    ]
    return str(found[-1]["status"])


@pytest.mark.parametrize("name", AGENTS_PATHS)
def test_every_memory_tool_follows_the_policy(
    server: ServerInThread, http: httpx2.Client, name: str
) -> None:
    for policy in POLICIES:
        agent, block = make_agent(http, policy, name)
        server.says(call(name, **AGENTS_PATHS[name]), "Done.")
        status = call_status(http, agent)
        is_applied = policy in ("direct", "guarded") and name != "propose_memory_edit"
        _, value = state_of(server, block)
        waiting = proposed_values(server, block)
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
def test_deleting_and_renaming_follow_the_policy(
    server: ServerInThread, http: httpx2.Client, name: str
) -> None:
    tool, arguments = AGENTS_OTHER_PATHS[name]
    for policy in ("explicit", "propose", "read_only"):
        agent, block = make_agent(http, policy, tool)
        server.says(call(tool, **arguments), "Done.")
        call_status(http, agent)
        assert state_of(server, block) == ("human", BEFORE)
        assert len(proposed_values(server, block)) == (policy != "read_only")
        require_version(server, block, "user", 1)


def test_every_memory_editing_tool_is_tested(server: ServerInThread) -> None:
    editing = {tool.name for tool in server.runtime.toolbox if tool.edits_memory}
    assert editing | {"propose_memory_edit"} == set(AGENTS_PATHS)


@pytest.mark.parametrize("name", OWNERS_PATHS)
def test_an_owners_write_is_a_version_under_every_policy(
    server: ServerInThread, http: httpx2.Client, name: str
) -> None:
    for policy in POLICIES:
        agent, block = make_agent(http, policy)
        answer = OWNERS_PATHS[name](http, agent, block)
        assert answer.status_code == 200, answer.text
        assert answer.json()["value"] == STORED
        assert state_of(server, block) == ("human", STORED)
        require_version(server, block, "user", 2)


def test_secrets_are_redacted_when_a_block_is_created(
    server: ServerInThread, http: httpx2.Client
) -> None:
    _, of_agent = make_agent(http, "direct", value=AFTER)
    loose = http.post(
        "/v1/blocks/", json={"label": "human", "value": AFTER, "description": AFTER}
    ).json()
    assert (loose["value"], loose["description"]) == (STORED, STORED)
    content = {"label": "human", "value": AFTER, "id": "block-0"}
    file = {
        "agents": [{"id": "agent-0", "name": "Sam", "model": MODEL, "block_ids": ["block-0"]}],
        "blocks": [content],
    }
    taken = http.post(
        "/v1/agents/import", files={"file": ("agent.af", json.dumps(file).encode())}
    ).json()["agent_ids"][0]
    (in_file,) = http.get(f"/v1/agents/{taken}").json()["blocks"]
    http.post("/v1/templates", json={"type": "agent_file", "agent_file": file, "name": "Sam"})
    made_of = http.post("/v1/templates/Sam:1/agents", json={}).json()["agent_ids"][0]
    (in_template,) = http.get(f"/v1/agents/{made_of}").json()["blocks"]
    for block in (of_agent, loose["id"], in_file["id"], in_template["id"]):
        assert state_of(server, block) == ("human", STORED)
        require_version(server, block, "user", 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_template_migration_writes_or_proposes_redacted_text(
    policy: Policy, server: ServerInThread, http: httpx2.Client
) -> None:
    agent, _ = make_agent(http, "direct")
    name = http.post("/v1/templates", json={"type": "agent", "agent_id": agent}).json()["name"]
    one = http.post(f"/v1/templates/{name}:1/agents", json={}).json()["agent_ids"][0]
    (block,) = http.get(f"/v1/agents/{one}").json()["blocks"]
    http.patch(f"/v1/blocks/{block['id']}", json={"policy": policy})
    content = {"label": "human", "value": AFTER, "id": "block-0"}
    file = {
        "agents": [{"id": "agent-0", "name": "Sam", "model": MODEL, "block_ids": ["block-0"]}],
        "blocks": [content],
    }
    http.patch(f"/v1/templates/{name}", json={"agent_file_json": file})
    job = http.post(f"/v1/templates/{name}/save", json={"migrate_agents": True}).headers["x-job-id"]
    while http.get(f"/v1/jobs/{job}").json()["status"] != "completed":
        time.sleep(0.01)
    waiting = http.get(f"/v1/blocks/{block['id']}/diffs").json()
    is_asked = policy in ("propose", "explicit")
    assert state_of(server, block["id"]) == ("human", BEFORE if is_asked else STORED)
    require_version(server, block["id"], "user", 1 if is_asked else 2)
    assert [one["body"] for one in waiting] == ([STORED] if is_asked else [])


def test_a_letta_import_redacts_secrets_and_writes_versions(server: ServerInThread) -> None:
    url = postgres.server().new_database(empty=True)
    letta = letta_database.fill(url)
    letta.connection.execute("UPDATE block SET value = %s WHERE label = 'loose'", [AFTER])
    letta.connection.close()
    tables = LettaTables(url)
    server.run(import_letta(server.runtime, Scope(), tables, lambda *_: None))
    tables.close()
    postgres.server().drop(url)
    loose = letta_database.made_id("block", "loose")
    assert state_of(server, loose) == ("loose", STORED)
    require_version(server, loose, "user", 1)
    # The agent's chain has three versions of this block, and one of the other block.
    require_version(server, letta_database.made_id("block", "human"), "user", 4)


def test_a_chat_import_creates_an_agent_without_blocks(
    server: ServerInThread, http: httpx2.Client
) -> None:
    made = http.post(
        "/v1/imports", data={"kind": "claude"}, files={"file": ("x.json", b"[]")}
    ).json()
    assert http.get(f"/v1/agents/{made['agent_id']}").json()["blocks"] == []


def test_secrets_in_a_course_file_are_redacted(server: ServerInThread, http: httpx2.Client) -> None:
    for value in (AFTER, f"Again: {AFTER}"):
        source = (
            '[[agent]]\nname = "a"\ninstructions = "b"\n[[block]]\nlabel = "notes"\nvalue = '
            f'"{value}"\n'
        )
        made = http.put("/v1/courses/essay", json={"source": source}).json()
        (block,) = http.get(f"/v1/agents/{made['agents']['a']}").json()["blocks"]
        assert block["value"] == value.replace(AFTER, STORED)
    require_version(server, block["id"], "administrator", 2)


def test_the_memory_agent_starts_with_an_empty_block_and_redacts_secrets(
    server: ServerInThread, http: httpx2.Client
) -> None:
    done = http.post("/users/ada/memories", json={"messages": f"My password is {SECRET}."}).json()
    (block,) = http.get(f"/v1/agents/{done['agent_id']}").json()["blocks"]
    assert (block["label"], block["value"], block["policy"]) == ("human", "", "propose")
    assert not any(SECRET in str(change) for change in done["results"])


def test_secrets_in_passages_are_redacted_on_every_path(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent, _ = make_agent(http, "direct", "archival_memory_insert")
    server.says(call("archival_memory_insert", content=AFTER), "Done.")
    call_status(http, agent)
    sent = http.post(f"/v1/agents/{agent}/archival-memory", json={"text": f"Again: {AFTER}"})
    assert sent.json()[0]["text"] == f"Again: {STORED}"
    archive = http.post(
        "/v1/archives/", json={"name": "Notes", "embedding": "scripted/embedder"}
    ).json()
    filed = http.post(f"/v1/archives/{archive['id']}/passages", json={"text": AFTER})
    assert filed.json()["text"] == STORED
    rows = server.read(lambda tx: tx.all(text("SELECT text FROM passages")))
    assert sorted(row.text for row in rows)[:1] == [f"Again: {STORED}"]
    assert not any(SECRET in row.text for row in rows)


def test_deleting_a_block_by_id_is_a_version(server: ServerInThread, http: httpx2.Client) -> None:
    _, block = make_agent(http, "read_only")
    chain_id = server.read(lambda tx: blocks.get(tx, Scope(), block)).chain_id
    assert http.delete(f"/v1/blocks/{block}").status_code == 200
    found = server.read(lambda tx: history.page(tx, chain_id, limit=9))
    assert [(one.author.kind, one.blob is None) for one in found] == [
        ("user", True),
        ("user", False),
    ]


def test_a_proposal_to_an_agents_block_is_approved_as_a_version_of_the_agent(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent, block = make_agent(http, "propose", "memory_rethink")
    server.says(call("memory_rethink", label="human", new_memory=AFTER), "It waits.")
    call_status(http, agent)
    assert state_of(server, block) == ("human", BEFORE)
    (waiting,) = http.get(f"/v1/blocks/{block}/diffs").json()
    assert http.post(f"/v1/blocks/{block}/diffs/{waiting['id']}/approve").status_code == 200
    assert state_of(server, block) == ("human", STORED)
    require_version(server, block, "agent", 2)


def test_typed_memory_redacts_secrets_and_writes_versions(server: ServerInThread) -> None:
    client = InProcessClient(server.runtime, server.run)
    agent = client.agents.create(
        name="Coach", model=MODEL, memory_blocks=[{"label": "human", "value": AFTER}]
    )
    block = client.agents.blocks.retrieve("human", agent_id=agent.id)
    assert block.value == STORED
    require_version(server, block.id, "user", 1)
    assert (
        client.agents.blocks.update("human", agent_id=agent.id, value=f"{AFTER} So.").value
        == f"{STORED} So."
    )
    require_version(server, block.id, "user", 2)


# --- ways to write users' own blocks ---


@dataclass(frozen=True)
class OwnStorage:
    """A database without a server, in which no jobs run between two operations."""

    store: Store
    portal: BlockingPortal

    def read(self, work: Callable[[Transaction], Any]) -> Any:
        return self.portal.call(self.store.read, work)

    def write(self, work: Callable[[Transaction], Any]) -> Any:
        return self.portal.call(self.store.write, work)


@dataclass
class Scene:
    """A user with a block, on a server or in a separate database, and a folder."""

    server: ServerInThread
    http: httpx2.Client
    storage: OwnStorage
    folder: Path
    name: str

    def wait(self, work: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """Run an operation on the separate database, where no jobs run in between."""
        return self.storage.portal.call(work, self.storage.store)

    def send(self, method: str, path: str, body: Any = None, *, kind: str = "") -> Any:
        sent = {"content": body, "headers": {"content-type": kind}} if kind else {"json": body}
        answer = self.http.request(method, f"/users/{self.name}/{path}", **sent)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def propose(self) -> str:
        return str(self.send("POST", "blocks/human/propose", PROPOSAL)["id"])


@dataclass(frozen=True)
class Way:
    """One way to write a block.

    It has the package's function that it calls, the action, and the expected result. `after` is the
    block's text (None: no block), and `label` its label. `author` is the kind of the version's
    author, and `waits` the number of pending proposals.
    """

    enters: str
    act: Callable[[Scene], Any]
    after: str | None = STORED
    label: str = "human"
    author: str = "user"
    waits: int = 0

    @property
    def is_in_process(self) -> bool:
        return not self.enters.startswith(("api.", "features.git.routes."))


def _restore(on: Scene) -> None:
    first = on.send("GET", "blocks/human/history")[0]["sha"]
    on.send("PUT", "blocks/human", {"body": PLAIN})
    on.send("POST", "blocks/human/restore", {"sha": first})


def _restore_by_id(on: Scene) -> None:
    first = on.send("GET", "blocks/human/history")[0]["sha"]
    on.send("PUT", "blocks/human", {"body": PLAIN})
    block = on.server.read(
        lambda tx: user_memory.require(tx, user_memory.open_memory(tx, Scope(), on.name), "human")
    )
    answer = on.http.post(
        f"/v1/blocks/{block.id}/restore", json={"sha": first}, headers={"x-ricordo-user": on.name}
    )
    assert answer.status_code == 200, answer.text


def _undo(on: Scene) -> None:
    """Let a run of an agent edit the block, and let the owner undo it."""
    run_id = f"run-{on.name}"
    by = Actor("agent", "agent-1", "Nina")

    def edit(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, Scope(), on.name)
        block = user_memory.require(tx, owned, "human")
        blocks.write(tx, block, PLAIN, ChangeMetadata(by, run_id=run_id, approved_by=owned.user.id))

    on.server.write(edit)
    on.send("POST", f"runs/{run_id}/undo")


def _push(on: Scene, branch: str = "main", origin: str | None = None) -> None:
    clone = on.folder / on.name
    git(on.folder, "clone", "-q", origin or f"{on.server.url}/users/{on.name}/memory.git", on.name)
    (clone / "human.md").write_text(PLAIN)
    git(clone, "commit", "-q", "-a", "-m", "By hand")
    git(clone, "push", "-q", "origin", f"HEAD:{branch}")


def _followed(on: Scene, kind: RemoteKind, access: Access) -> Callable[[], object]:
    """Add a remote and sync it; return a function that syncs it again."""
    settings = Settings(
        data_dir=on.folder, remote_folders=str(on.folder), allow_private_remotes=True
    )
    remote = on.wait(lambda store: remotes.add(store, settings, Scope(), on.name, kind, access))
    again = partial(on.wait, lambda store: remotes.sync(store, settings, kind, remote))
    again()
    return again


def _pull_from_git(on: Scene) -> None:
    bare = str(on.folder / f"{on.name}.git")
    follow = _followed(on, GitRemotes(), Access(bare))
    _push(on, origin=bare)
    follow()


def _pull_from_dolt(on: Scene) -> None:
    with dolt.new_place(on.folder) as place:
        follow = _followed(on, DoltRemotes(), Access(place.address, None, place.password))
        with dolt.at(place) as engine:
            engine.run("UPDATE memory_blocks SET body = ? WHERE label = 'human'", AFTER)
            dolt.commit(engine, "By hand")
        follow()


def _pull_from_open_webui(on: Scene) -> None:
    there = FakeOpenWebUI()
    with pytest.MonkeyPatch.context() as patched, closing(there):
        patched.setenv("RICORDO_OPENWEBUI_URL", there.url)
        patched.setenv("RICORDO_OPENWEBUI_API_KEY", OPEN_WEBUI_KEY)
        follow = _followed(on, OpenWebUIRemotes(), Access(there.url))
        there.user_writes("human", AFTER)
        follow()


def _put(body: Any, kind: str = "") -> Callable[[Scene], Any]:
    return lambda on: on.send("PUT", "blocks/human", body, kind=kind)


def _approve(**body: str) -> Callable[[Scene], Any]:
    return lambda on: on.send("POST", f"blocks/human/diffs/{on.propose()}/approve", body or None)


def _decide_all(decision: str) -> Callable[[Scene], Any]:
    return lambda on: [on.propose(), on.send("POST", f"diffs/{decision}", {"all": True})]


OWNERS_WAYS: dict[str, Way] = {
    "PUT as JSON": Way("api.users.put", _put({"body": AFTER})),
    "PUT as Markdown": Way(
        "api.users.put", _put(f"---\nblock: human\n---\n{AFTER}\n", "text/markdown")
    ),
    "PUT as TOML": Way(
        "api.users.put", _put(f'block = "human"\nbody = "{AFTER}"\n', "application/toml")
    ),
    "PATCH of the label": Way(
        "api.users.modify",
        lambda on: on.send("PATCH", "blocks/human", {"label": "person"}),
        BEFORE,
        "person",
    ),
    "DELETE": Way("api.users.delete", lambda on: on.send("DELETE", "blocks/human"), None),
    "restore": Way("api.users.restore", _restore, BEFORE),
    "restore by the block's id": Way("api.blocks.restore", _restore_by_id, BEFORE),
    "undo of a run": Way("api.proposals.undo", _undo, BEFORE),
    "git push": Way("features.git.routes.write", _push, PLAIN),
    "a commit in a git remote": Way(
        "features.git.GitPlugin.memory_remotes", _pull_from_git, PLAIN, author="remote"
    ),
    "a commit in a Dolt remote": Way(
        "features.dolt.DoltPlugin.memory_remotes", _pull_from_dolt, author="remote"
    ),
    "an edited note in Open WebUI": Way(
        "features.openwebui.OpenWebUIPlugin.memory_remotes", _pull_from_open_webui
    ),
}
# Ways to propose and to decide. A block that only its owner may write accepts no proposals.
PROPOSALS_WAYS: dict[str, Way] = {
    "propose": Way("api.proposals.propose", Scene.propose, BEFORE, waits=1),
    "git push to propose/": Way(
        "features.git.routes.write", lambda on: _push(on, "propose/x"), BEFORE, waits=1
    ),
    "approve": Way("api.proposals.approve", _approve(), author="agent"),
    "approve with a text of her own": Way(
        "api.proposals.approve", _approve(body=f"Indeed: {AFTER}"), f"Indeed: {STORED}"
    ),
    "approve many": Way("api.proposals.approve_many", _decide_all("approve"), author="agent"),
    "reject many": Way("api.proposals.reject_many", _decide_all("reject"), BEFORE),
}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnStorage]:
    store = open_store(Settings(data_dir=tmp_path_factory.mktemp("own")))
    with start_blocking_portal() as portal:
        yield OwnStorage(store, portal)
        portal.call(store.close)


@pytest.fixture
def begin(
    server: ServerInThread, http: httpx2.Client, storage: OwnStorage, tmp_path: Path
) -> Begin:
    """Make a new user with a block of this policy."""

    def make(way: Way, policy: Policy) -> Scene:
        prefix = "open-webui:" if "openwebui" in way.enters else ""
        scene = Scene(server, http, storage, tmp_path, f"{prefix}ada-{next(_numbers)}")

        def work(tx: Transaction) -> None:
            owned = user_memory.open_memory(tx, Scope(), scene.name, makes=True)
            user_memory.put(tx, owned, "human", BEFORE, owned.owner, PutOptions(policy=policy))

        storage.write(work) if way.is_in_process else server.write(work)
        return scene

    return make


def check_way(scene: Scene, way: Way) -> None:
    """Use this way to write, and check the text, its author, and the pending proposals."""

    def read(tx: Transaction) -> tuple[str | None, int, str]:
        owned = user_memory.open_memory(tx, Scope(), scene.name)
        block = user_memory.find(tx, owned, way.label)
        newest = history.page(tx, owned.chain.id, limit=1)[0]
        if block is not None:
            assert owned.chain.files[block.label][0] == blob_id(block.value)
        waiting = proposals.waiting(tx, owned.chain.id)
        assert SECRET not in newest.reason
        assert history_size.wrong_ids(tx) == []
        assert not any(SECRET in (one.value or "") for one in waiting)
        return block.value if block else None, len(waiting), newest.author.kind

    way.act(scene)
    found = scene.storage.read(read) if way.is_in_process else scene.server.read(read)
    assert found == (way.after, way.waits, way.author)


@pytest.mark.parametrize("name", OWNERS_WAYS)
def test_an_owner_can_write_under_every_policy(begin: Begin, name: str) -> None:
    way = OWNERS_WAYS[name]
    # Slow ways are tested with the strictest policy; a push does not change read-only blocks.
    strictest = "propose" if name == "git push" else "read_only"
    for policy in POLICIES if way.enters.startswith("api.users") else (strictest,):
        check_way(begin(way, policy), way)


def test_an_owners_push_cannot_change_a_read_only_block(begin: Begin) -> None:
    way = OWNERS_WAYS["git push"]
    scene = begin(way, "read_only")
    with pytest.raises(AssertionError, match="Give it another policy first"):
        way.act(scene)
    assert scene.send("GET", "blocks/human")["body"] == BEFORE


@pytest.mark.parametrize("name", PROPOSALS_WAYS)
def test_proposals_wait_for_the_owner_and_apply_the_decision(begin: Begin, name: str) -> None:
    way = PROPOSALS_WAYS[name]
    for policy in POLICIES:
        if policy == "propose" or (policy != "read_only" and "git" not in name):
            check_way(begin(way, policy), way)


def test_read_only_blocks_accept_no_proposals(begin: Begin) -> None:
    on = begin(PROPOSALS_WAYS["propose"], "read_only")
    assert on.http.post(f"/users/{on.name}/blocks/human/propose", json=PROPOSAL).status_code == 403


def test_an_edit_of_a_note_is_a_redacted_version_by_the_owner(
    server: ServerInThread, http: httpx2.Client
) -> None:
    owner = {"x-ricordo-user": "note-owner"}
    body = {"body": BEFORE, "policy": "propose"}
    block = http.put("/users/note-owner/blocks/human", json=body).json()
    (note,) = http.get("/api/you/notes/", headers=owner).json()
    for policy, count in (("propose", 2), ("read_only", 2)):
        http.patch("/users/note-owner/blocks/human", json={"policy": policy})
        sent = {"data": {"content": {"md": AFTER}}}
        assert (
            http.post(f"/api/you/notes/{note['id']}/update", json=sent, headers=owner).status_code
            == 200
        )
        assert state_of(server, block["id"]) == ("human", STORED)
        require_version(server, block["id"], "user", count)


# --- a full history ---

# Writes whose text is new in the history. For the `PUT`s above this text is AFTER.
NEW_TEXTS = (
    *("PUT as JSON", "PUT as Markdown", "PUT as TOML", "git push"),
    *("propose", "git push to propose/"),
)
FULL = "RICORDO_MAX_HISTORY_MB"


def fill_history(tx: Transaction, chain_id: str) -> int:
    """Fill the chain's history up to the limit; return its size."""
    chain = versions.lock(tx, chain_id)
    history_size.grow(tx, chain_id, tx.quotas.history_bytes - chain.history_bytes)
    return int(chain.history_bytes)


@contextmanager
def full_history(on: Scene, way: Way) -> Iterator[None]:
    """Give the scene's memory a full history within the block."""
    write = on.storage.write if way.is_in_process else on.server.write

    def begin(tx: Transaction) -> str:
        chain_id = user_memory.open_memory(tx, Scope(), on.name).chain.id
        fill_history(tx, chain_id)
        return chain_id

    chain_id = write(begin)
    yield
    write(lambda tx: history_size.recount(tx, chain_id))


@pytest.mark.parametrize("name", NEW_TEXTS)
def test_a_full_history_refuses_new_text_on_every_path(begin: Begin, name: str) -> None:
    way = {**OWNERS_WAYS, **PROPOSALS_WAYS}[name]
    scene = begin(way, "propose")
    with full_history(scene, way), pytest.raises((AssertionError, TooLong), match=FULL):
        way.act(scene)
    unchanged = Way(way.enters, lambda _: None, BEFORE)
    check_way(scene, unchanged)


def test_a_full_history_pulls_no_remote_commits(begin: Begin) -> None:
    way = OWNERS_WAYS["a commit in a git remote"]
    on = begin(way, "propose")
    bare = str(on.folder / f"{on.name}.git")
    follow = _followed(on, GitRemotes(), Access(bare))
    _push(on, origin=bare)
    with full_history(on, way):
        with suppress(TooLong):
            follow()
        (remote,) = on.wait(
            lambda store: store.read(
                lambda tx: tx.all(text("SELECT last_error FROM memory_remotes"))
            )
        )[-1:]
    assert FULL in remote.last_error
    check_way(on, Way(way.enters, lambda _: follow(), PLAIN, author="remote"))


def test_a_full_history_still_allows_undo_deletion_and_decisions(begin: Begin) -> None:
    way = OWNERS_WAYS["restore"]
    on = begin(way, "propose")
    first = on.send("GET", "blocks/human/history")[0]["sha"]
    waiting = [on.propose()]
    on.send("PUT", "blocks/human", {"body": PLAIN})
    with full_history(on, way):
        on.send("POST", "blocks/human/restore", {"sha": first})
        on.send("POST", f"blocks/human/diffs/{waiting[0]}/approve")
        assert on.send("GET", "blocks/human")["body"] == STORED
        assert FULL in on.http.put(f"/users/{on.name}/blocks/new", json={"body": "New."}).text
        on.send("PATCH", "blocks/human", {"label": "person", "policy": "direct"})
        assert on.http.delete(f"/users/{on.name}/blocks/person").status_code == 200
        on.send("POST", "blocks/person/restore", {"sha": first})
        assert on.send("GET", "blocks/person")["body"] == BEFORE
    assert on.server.read(history_size.wrong_ids) == []


def test_an_edit_of_a_full_history_fails_without_ending_the_turn(
    server: ServerInThread, http: httpx2.Client
) -> None:
    for name, arguments in AGENTS_PATHS.items():
        for policy in ("direct", "propose"):
            agent, block = make_agent(http, policy, name)
            chain_id = server.read(lambda tx, id=block: blocks.get(tx, Scope(), id)).chain_id
            server.write(lambda tx, id=chain_id: fill_history(tx, id))
            server.says(call(name, **arguments), "Done.")
            assert call_status(http, agent) == "error", name
            assert state_of(server, block) == ("human", BEFORE)
            assert proposed_values(server, block) == []
            server.write(lambda tx, id=chain_id: history_size.recount(tx, id))
            require_version(server, block, "user", 1)


def test_a_step_that_fills_the_history_is_stored_completely(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent, block = make_agent(http, "direct", "memory_insert", "memory")
    chain_id = server.read(lambda tx: blocks.get(tx, Scope(), block)).chain_id
    server.write(lambda tx: fill_history(tx, chain_id))
    server.write(lambda tx: history_size.grow(tx, chain_id, -1))
    new = {"command": "create", "description": "Drinks", "file_text": "Oolong."}
    calls = [call("memory", path=f"/memories/{label}", **new) for label in ("tea", "coffee")]
    server.says(
        (call("memory_insert", label="human", new_string="She likes tea."), *calls), "Done."
    )
    sent = http.post(f"/v1/agents/{agent}/messages", json={"input": "Go on."}).json()
    results = [one for message in sent["messages"] for one in message.get("tool_returns", ())]
    statuses = [one["status"] for one in results]
    assert statuses == ["success"] * 3
    assert "tea" in state_of(server, block)[1]
    labels = [one["label"] for one in http.get(f"/v1/agents/{agent}").json()["blocks"]]
    assert labels == ["human", "tea", "coffee"]
    server.write(lambda tx: history_size.recount(tx, chain_id))
