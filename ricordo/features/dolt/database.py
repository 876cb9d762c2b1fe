"""One user's rows of `memory_blocks` in a Dolt database, with its commits and branches: all that is said to Dolt is said here.

Everything blocks, so it is called in a thread. A change of `main` happens whole or not at all, and only while `main` is where
the caller last saw it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from ricordo.errors import Conflict
from ricordo.features.dolt.commits import branches_of, proposal_in, scratch_of, trailer_of
from ricordo.features.dolt.engines import Engine, EngineError
from ricordo.memory.merge import merge_lines

MAIN = "main"
TABLE = "memory_blocks"
_COLUMNS = "label, title, body, schema_ref"
_MOST_STEPS = 200  # commits of others that are taken over one by one
_OURS = "Ricordo <ricordo@localhost>"


class Moved(Exception):
    """`main` is not any more where it was a moment ago."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a row holds beside its key."""

    title: str | None
    body: str
    schema_ref: str | None


Rows = Mapping[str, Content]


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit of the log: its hash and its message."""

    hash: str
    message: str


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a proposal: its name, the commit it names, and that commit's message."""

    name: str
    hash: str
    message: str

    @property
    def proposal_id(self) -> str:
        """The proposal it is named for."""
        return self.name.rpartition("/")[2]

    @property
    def is_ours(self) -> bool:
        """Whether nobody committed on it since it was made."""
        return proposal_in(self.message) == self.proposal_id


@dataclass(frozen=True, slots=True)
class Edit:
    """One commit: what rows become (None: they go), and who says so, when (as Dolt reads dates) and in which words.

    `before` are the texts that these rows are expected to hold; one that holds another keeps what that has in other lines, and
    where that is impossible becomes what the memory holds now, which has all that was there: `latest`.
    """

    changes: Mapping[str, Content | None]
    author: str
    date: str
    message: str
    stamp: str
    before: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, str] = field(default_factory=dict)

    def onto(self, now: Rows) -> dict[str, Content | None]:
        """What of it is to be written where the rows are as they are now."""
        changes: dict[str, Content | None] = {}
        for label, content in self.changes.items():
            there = now.get(label)
            if content and there and there.body not in (content.body, self.before.get(label, there.body)):
                joined = merge_lines(self.before[label], content.body, there.body)
                body = self.latest.get(label, content.body) if joined is None else joined
                content = replace(content, body=body)  # noqa: PLW2901
            if content != there:
                changes[label] = content
        return changes


class Database:
    """The rows of the user who has this name there."""

    def __init__(self, engine: Engine, user: str) -> None:
        self._engine = engine
        self._user = user
        self._prefix = branches_of(user)
        self._scratch = scratch_of(user)

    def prepare(self) -> None:
        """Stand on `main`, with the table there. Raises Conflict where somebody's changes of it are not committed."""
        self._engine.call("dolt_checkout", MAIN)
        if self._engine.run("SELECT name FROM dolt_branches WHERE name = ?", self._scratch):  # left by a kill
            self._engine.call("dolt_branch", "-D", self._scratch)
        if any(name == TABLE and status != "new table" for name, _, status in self._status()):
            raise Conflict(
                f"There are changes of {TABLE} on main of the remote that nobody committed. Commit them there, or reset them."
            )
        self._engine.run(self._engine.make_table)
        if any(name == TABLE for name, *_ in self._status()):
            self._engine.call("dolt_add", TABLE)
            self._engine.call("dolt_commit", "-m", f"Make {TABLE}", "--author", _OURS)

    def head(self) -> str:
        """The commit that `main` names."""
        return str(self._engine.run(f"SELECT dolt_hashof('{MAIN}')")[0][0])

    def rows(self, commit: str) -> dict[str, Content]:
        """Her rows as they are at a commit, by label."""
        table = self._engine.table_at(TABLE)
        return _contents(self._engine.run(f"SELECT {_COLUMNS} FROM {table} WHERE user_id = ?", commit, self._user))  # noqa: S608

    def log(self, after: str | None = None, until: str = MAIN) -> list[Entry]:
        """The commits of `main`, or of what is `until`, newest first; with `after`, those that this one does not have."""
        if after is None:
            rows = self._engine.run("SELECT commit_hash, message FROM dolt_log(?)", until)
        else:
            rows = self._engine.run("SELECT commit_hash, message FROM dolt_log(?)", f"{after}..{until}")
        return [Entry(str(hash), str(message)) for hash, message in rows]

    def steps(self, base: str | None, head: str) -> list[str]:
        """The commits from the base, without it, to the head along first parents; the head alone where they do not lead there."""
        found: list[str] = []
        commit: str | None = head
        while commit is not None and commit != base and len(found) < _MOST_STEPS:
            found.append(commit)
            rows = self._engine.run(
                "SELECT parent_hash FROM dolt_commit_ancestors WHERE commit_hash = ? AND parent_index = 0", commit
            )
            commit = rows[0][0] if rows else None
        return found[::-1] if base is not None and commit == base else [head]

    def commit(self, expected: str, edit: Edit, merged: Branch | None = None) -> str:
        """Make the edit the next commit of `main`, as a merge of a proposal's branch where one is given; returns its hash.

        Where it changes nothing, and merges nothing, nothing is committed. Raises Moved.
        """
        with self._transaction():
            if self.head() != expected:
                raise Moved
            is_merge = merged is not None and self._begin_merge(merged)
            is_changed = self._write(edit)
            if not is_merge and not is_changed:
                return expected
            return self._commit(edit)

    def branches(self) -> list[Branch]:
        """The branches of her proposals."""
        rows = self._engine.run("SELECT name, hash, latest_commit_message FROM dolt_branches")
        branches = (Branch(str(name), str(hash), str(message)) for name, hash, message in rows)
        return [branch for branch in branches if branch.name.startswith(self._prefix)]

    def open_branch(self, name: str, start: str, edit: Edit) -> None:
        """Make a branch with one commit, at a commit; under its name it is there as a whole or not at all."""
        self._engine.call("dolt_branch", self._scratch, start)
        self._engine.call("dolt_checkout", self._scratch)
        try:
            with self._transaction():
                self._write(edit)
                self._commit(edit, "--allow-empty")
        finally:
            self._engine.call("dolt_checkout", MAIN)
        self._engine.call("dolt_branch", name, self._scratch)
        self._engine.call("dolt_branch", "-D", self._scratch)

    def drop_branch(self, branch: Branch) -> None:
        """Delete a branch."""
        self._engine.call("dolt_branch", "-D", branch.name)

    def commit_of(self, version: str, chain_id: str) -> str | None:
        """The commit that says it is this version (hex) of the chain, if there is one."""
        rows = self._engine.run(
            "SELECT commit_hash, message FROM dolt_log WHERE message LIKE ?", f"%Ricordo-Version: {version}%"
        )
        for hash, message in rows:
            trailer = trailer_of(str(message))
            if trailer and (trailer.version, trailer.chain_id) == (version, chain_id):
                return str(hash)
        return None

    def close(self) -> None:
        """Let go of the database."""
        self._engine.close()

    def _status(self) -> Sequence[Sequence[object]]:
        return self._engine.run("SELECT table_name, staged, status FROM dolt_status")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._engine.run(self._engine.begin)
        try:
            yield
        finally:
            # What is to stay was committed by `dolt_commit`; there may be nothing to roll back any more.
            with suppress(EngineError):
                self._engine.run("ROLLBACK")

    def _begin_merge(self, branch: Branch) -> bool:
        """Merge without a commit; what collides is as it was, and is written by whoever called. False: it is merged already."""
        # doltlite tells of conflicts by an error, a Dolt server in its answer; any other fault shows below or at the commit.
        with suppress(EngineError):
            self._engine.call("dolt_merge", branch.name, "--no-ff", "--no-commit")
        if self._engine.run("SELECT * FROM dolt_conflicts"):
            self._engine.call("dolt_conflicts_resolve", "--ours", TABLE)
        return bool(self._engine.run("SELECT is_merging FROM dolt_merge_status")[0][0])

    def _write(self, edit: Edit) -> bool:
        now = _contents(self._engine.run(f"SELECT {_COLUMNS} FROM {TABLE} WHERE user_id = ?", self._user))  # noqa: S608
        changed = edit.onto(now)
        for label, content in changed.items():
            if content is None:
                self._engine.run(f"DELETE FROM {TABLE} WHERE user_id = ? AND label = ?", self._user, label)  # noqa: S608
                continue
            self._engine.run(
                f"REPLACE INTO {TABLE} (user_id, {_COLUMNS}, updated_at) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
                *(self._user, label, content.title, content.body, content.schema_ref, edit.stamp),
            )
        return bool(changed)

    def _commit(self, edit: Edit, *options: str) -> str:
        self._engine.call("dolt_add", TABLE)
        said = ("-m", edit.message, "--author", edit.author, "--date", edit.date, *options)
        return str(self._engine.call("dolt_commit", *said)[0][0])


def _contents(rows: Iterable[Sequence[object]]) -> dict[str, Content]:
    return {
        str(label): Content(_words(title), _words(body) or "", _words(schema_ref))
        for label, title, body, schema_ref in rows
    }


def _words(value: object) -> str | None:
    return None if value is None else str(value)
