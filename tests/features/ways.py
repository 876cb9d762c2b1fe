"""Every way in which a user's own block is written, by what stands in the source at its beginning (see `tests.support.reaching`).

Each way begins with a block `human` that holds `BEFORE`, under some policy, and does one thing to it.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx2

from ricordo.domain.block import Block, Policy
from ricordo.domain.remote import Access
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.features.dolt.sync import DoltRemotes
from ricordo.features.git.sync import GitRemotes
from ricordo.features.remotes import service as remotes
from ricordo.features.typed_memory.user_blocks import GitUserStorage, PendingDiffStore, UserBlockManager
from ricordo.memory import user_memory
from ricordo.memory.remote_kind import RemoteKind
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.settings import Settings
from ricordo.storage import blocks
from ricordo.storage.engine.store import Store, Transaction
from tests.seams.server import ServerInThread
from tests.support import dolt
from tests.support.git import git

BEFORE = "Her name is Ada."
SECRET = "sk-1234567890abcdef1234567890abcdef"
AFTER, STORED = f"She is Eve, {SECRET}.", "She is Eve, [secret removed: api key]."
# What is refused with a secret in it is written without one.
PLAIN = "She is Eve."
_EDIT = {"old_string": BEFORE, "new_string": AFTER, "reasoning": "So she said."}
Where = Literal["server", "process"]


@dataclass
class Scene:
    """A user with a block, on a server and in a storage of a program's own, and a folder to work in."""

    server: ServerInThread
    http: httpx2.Client
    storage: GitUserStorage
    folder: Path
    name: str
    policy: Policy

    def begin(self, where: Where) -> None:
        """Make the user and the block."""

        def work(tx: Transaction) -> None:
            owned = user_memory.open_memory(tx, Scope(), self.name, makes=True)
            user_memory.put(tx, owned, "human", BEFORE, owned.actor, PutOptions(policy=self.policy))

        self.storage.write(work) if where == "process" else self.server.write(work)

    def read(self, where: Where, work: Callable[[Transaction, UserMemory], Any]) -> Any:
        """Read something of her memory."""

        def read(tx: Transaction) -> Any:
            return work(tx, user_memory.open_memory(tx, Scope(), self.name))

        return self.storage.read(read) if where == "process" else self.server.read(read)

    def block(self) -> Block:
        """The block on the server."""
        found: Block = self.read("server", lambda tx, owned: user_memory.require(tx, owned, "human"))
        return found

    def wait(self, work: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """Do something with the store of the program's own, where no jobs come between."""
        return self.storage._portal.call(work, self.storage._opened())

    @property
    def blocks(self) -> UserBlockManager:
        """Her blocks for a program."""
        return UserBlockManager(self.name, self.storage)

    @property
    def diffs(self) -> PendingDiffStore:
        """Proposals for a program."""
        return PendingDiffStore(self.name, self.storage)

    def send(self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        """Ask for something in her memory; bytes are sent as they are."""
        sent = {"content": body} if isinstance(body, str) else {"json": body}
        answer = self.http.request(method, f"/users/{self.name}/{path}", headers=headers, **sent)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def proposed(self) -> str:
        """An agent proposes what is written; returns the proposal's id."""
        return str(self.send("POST", "blocks/human/propose", _EDIT)["id"])


@dataclass(frozen=True)
class Way:
    """One way in: the function of the package that it enters by, what it does, and what is there then.

    `after` is the text (None: no block), under `label`; `author` is whose version that is, None where none is made; `waits` is
    how many proposals wait.
    """

    enters: str
    act: Callable[[Scene], Any]
    after: str | None = STORED
    label: str = "human"
    author: str | None = "user"
    waits: int = 0
    where: Where = "server"


def _put(body: str, kind: str) -> Callable[[Scene], Any]:
    return lambda on: on.send("PUT", "blocks/human", body, headers={"content-type": kind})


def _restore(on: Scene) -> None:
    first = on.send("GET", "blocks/human/history")[0]["sha"]
    on.send("PUT", "blocks/human", {"body": PLAIN})
    on.send("POST", "blocks/human/restore", {"sha": first})


def _restore_by_id(on: Scene) -> None:
    first = on.send("GET", "blocks/human/history")[0]["sha"]
    on.send("PUT", "blocks/human", {"body": PLAIN})
    answer = on.http.post(f"/v1/blocks/{on.block().id}/restore", json={"sha": first})
    assert answer.status_code == 200, answer.text


def _restore_in_process(on: Scene) -> None:
    first = on.blocks.get_history("human")[0]["sha"]
    on.blocks.update_block("human", PLAIN)
    on.blocks.restore_version("human", first)


def _undo(on: Scene) -> None:
    """A run of an agent edits the block, and she takes that back."""
    run_id = f"run-{on.name}"
    by = Actor("agent", "agent-1", "Nina")

    def edit(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, Scope(), on.name)
        block = user_memory.require(tx, owned, "human")
        blocks.write(tx, block, PLAIN, ChangeMetadata(by, run_id=run_id, approved_by=owned.user.id))

    on.server.write(edit)
    on.send("POST", f"runs/{run_id}/undo")


def _clone(on: Scene) -> Path:
    git(on.folder, "clone", "-q", f"{on.server.url}/users/{on.name}/memory.git", on.name)
    return on.folder / on.name


def _push(on: Scene, branch: str = "main") -> None:
    clone = _clone(on)
    (clone / "human.md").write_text(PLAIN)
    git(clone, "commit", "-q", "-a", "-m", "By hand")
    git(clone, "push", "-q", "origin", f"HEAD:{branch}")


def _followed(on: Scene, kind: RemoteKind, access: Access) -> Callable[[], object]:
    """Add a remote and let it follow; returns what lets it follow once more."""
    settings = Settings(data_dir=on.folder, remote_folders=str(on.folder), allow_private_remotes=True)
    remote = on.wait(lambda store: remotes.add(store, settings, Scope(), on.name, kind, access))
    again = partial(on.wait, lambda store: remotes.sync(store, settings, kind, remote))
    again()
    return again


def _pull_from_git(on: Scene) -> None:
    bare = on.folder / f"{on.name}.git"
    follow = _followed(on, GitRemotes(), Access(str(bare)))
    git(on.folder, "clone", "-q", str(bare), on.name)
    (on.folder / on.name / "human.md").write_text(PLAIN)
    git(on.folder / on.name, "commit", "-q", "-a", "-m", "By hand")
    git(on.folder / on.name, "push", "-q", "origin", "HEAD:main")
    follow()


def _pull_from_dolt(on: Scene) -> None:
    with dolt.new_place(on.folder) as place:
        follow = _followed(on, DoltRemotes(), Access(place.address, None, place.password))
        with dolt.at(place) as engine:
            engine.run("UPDATE memory_blocks SET body = ? WHERE label = 'human'", AFTER)
            dolt.commit(engine, "By hand")
        follow()


def _approve_in_process(on: Scene) -> None:
    on.diffs.approve(on.diffs.propose("agent-1", "human", BEFORE, AFTER, reasoning="So she said.").id)


_BLOCKS, _DIFFS = (
    "features.typed_memory.user_blocks.UserBlockManager",
    "features.typed_memory.user_blocks.PendingDiffStore",
)

OWNERS_WAYS: dict[str, Way] = {
    "PUT as JSON": Way("api.users.put", lambda on: on.send("PUT", "blocks/human", {"body": AFTER})),
    "PUT as Markdown": Way("api.users.put", _put(f"---\nblock: human\n---\n{AFTER}\n", "text/markdown")),
    "PUT as TOML": Way("api.users.put", _put(f'block = "human"\nbody = "{AFTER}"\n', "application/toml")),
    "PATCH of the label": Way(
        "api.users.modify", lambda on: on.send("PATCH", "blocks/human", {"label": "person"}), BEFORE, "person"
    ),
    "DELETE": Way("api.users.delete", lambda on: on.send("DELETE", "blocks/human"), None),
    "restore": Way("api.users.restore", _restore, BEFORE),
    "restore by the block's id": Way("api.blocks.restore", _restore_by_id, BEFORE),
    "undo of a run": Way("api.proposals.undo", _undo, BEFORE),
    "git push": Way("features.git.routes.write", _push, PLAIN),
    "a commit in a git remote": Way("features.git.GitPlugin.memory_remotes", _pull_from_git, PLAIN, where="process"),
    "a commit in a Dolt remote": Way("features.dolt.DoltPlugin.memory_remotes", _pull_from_dolt, where="process"),
    "update_block": Way(f"{_BLOCKS}.update_block", lambda on: on.blocks.update_block("human", AFTER), where="process"),
    "update_block_from_markdown": Way(
        f"{_BLOCKS}.update_block_from_markdown",
        lambda on: on.blocks.update_block_from_markdown("human", AFTER),
        where="process",
    ),
    "update_block_from_toml": Way(
        f"{_BLOCKS}.update_block_from_toml",
        lambda on: on.blocks.update_block_from_toml("human", f'body = "{AFTER}"'),
        where="process",
    ),
    "delete_block": Way(f"{_BLOCKS}.delete_block", lambda on: on.blocks.delete_block("human"), None, where="process"),
    "restore_version": Way(f"{_BLOCKS}.restore_version", _restore_in_process, BEFORE, where="process"),
}

# Proposing and deciding: nothing can be proposed for a block that only its owner writes.
PROPOSALS_WAYS: dict[str, Way] = {
    "propose": Way("api.proposals.propose", Scene.proposed, BEFORE, author=None, waits=1),
    "git push to propose/": Way(
        "features.git.routes.write", lambda on: _push(on, "propose/x"), BEFORE, author=None, waits=1
    ),
    "approve": Way(
        "api.proposals.approve",
        lambda on: on.send("POST", f"blocks/human/diffs/{on.proposed()}/approve"),
        author="agent",
    ),
    "approve with a text of her own": Way(
        "api.proposals.approve",
        lambda on: on.send("POST", f"blocks/human/diffs/{on.proposed()}/approve", {"body": f"Indeed: {AFTER}"}),
        f"Indeed: {STORED}",
    ),
    "approve many": Way(
        "api.proposals.approve_many",
        lambda on: [on.proposed(), on.send("POST", "diffs/approve", {"all": True})],
        author="agent",
    ),
    "reject many": Way(
        "api.proposals.reject_many",
        lambda on: [on.proposed(), on.send("POST", "diffs/reject", {"all": True})],
        BEFORE,
        author=None,
    ),
    "PendingDiffStore.propose": Way(
        f"{_DIFFS}.propose",
        lambda on: on.diffs.propose("agent-1", "human", BEFORE, AFTER, reasoning="So she said."),
        BEFORE,
        author=None,
        waits=1,
        where="process",
    ),
    "PendingDiffStore.approve": Way(f"{_DIFFS}.approve", _approve_in_process, author="agent", where="process"),
}
