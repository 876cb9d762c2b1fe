"""One user's rows of `memory_blocks` in a Dolt database, with its commits and branches: all that is said to Dolt is said here.

Everything blocks, so it is called in a thread. A change of `main` happens whole or not at all, and only while `main` is where
the caller last saw it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from ricordo.domain.clock import to_datetime, to_micros
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import Conflict
from ricordo.features.sync.dolt.engines import Engine, EngineError, require_few
from ricordo.features.sync.remotes.service import RemoteMoved
from ricordo.memory.merge import merge_lines

MAIN = "main"
TABLE = "memory_blocks"
_COLUMNS = "label, title, body, schema_ref"
_MOST_STEPS = (
    200  # commits of others of which each is looked at; of more, those that touch the user's rows
)
_MERGES = "SELECT commit_hash, parent_hash FROM dolt_commit_ancestors WHERE parent_index = 1"
_TOUCHING = (
    f"SELECT DISTINCT to_commit FROM dolt_diff_{TABLE} WHERE to_user_id = ? OR from_user_id = ?"  # noqa: S608
)
# The last lines of a commit name the version that it is, so that one which was made just before a kill is found again.
_TRAILER = re.compile(
    r"(?:\A|\n\n)Ricordo-Version: ([0-9a-f]{40}) (\d{1,18})\nRicordo-Chain: (\S+)\s*\Z"
)
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_LONGEST = 120  # characters of a user's or a label's part in the name of a branch
_LONGEST_REASON = 10_000
MOST_ROWS = 10_000  # of one user, as of a commit
MOST_COMMITS = 200_000


@dataclass(frozen=True, slots=True)
class DoltRow:
    """What a row holds beside its key."""

    title: str | None
    body: str
    schema_ref: str | None


Rows = Mapping[str, DoltRow]


@dataclass(frozen=True, slots=True)
class RemoteCommit:
    """A commit of somebody else: the user's rows before and after it, and the proposals that it merged.

    `authors` are names with addresses, more than one where it stands for several commits; `at` is its time in microseconds.
    """

    commit: str
    message: str
    before: Rows
    after: Rows
    merged: tuple[str, ...] = ()
    authors: frozenset[tuple[str, str]] = frozenset()
    at: int | None = None


class DoltCommit(NamedTuple):
    """A commit of the log, or the one that a branch names. `author` is a name with an address, `at` a time in microseconds."""

    hash: str
    message: str
    branch: str = ""
    author: tuple[str, str] = ("", "")
    at: int | None = None

    @property
    def proposal_id(self) -> str:
        return self.branch.rpartition("/")[2]

    @property
    def is_ours(self) -> bool:
        """Whether the branch is as it was made, without a commit of somebody else."""
        return proposal_in(self.message) == self.proposal_id


@dataclass(frozen=True, slots=True)
class DoltEdit:
    """One commit to be made: the new rows (None: deleted), its author, date, message and stamp.

    `before` are the texts that these rows are expected to hold; one that holds another keeps what that has in other lines, and
    where that is impossible becomes what the memory holds now, which has all that was there: `latest`.
    """

    changes: Mapping[str, DoltRow | None]
    author: str
    date: str
    message: str
    before: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, str] = field(default_factory=dict)

    def onto(self, now: Rows) -> dict[str, DoltRow | None]:
        """What of it is to be written where the rows are as they are now."""
        changes: dict[str, DoltRow | None] = {}
        for label, row in self.changes.items():
            there = now.get(label)
            if row and there and there.body not in (row.body, self.before.get(label, there.body)):
                merged = merge_lines(self.before[label], row.body, there.body)
                body = self.latest.get(label, row.body) if merged is None else merged
                row = replace(row, body=body)  # noqa: PLW2901
            if row != there:
                changes[label] = row
        return changes


class Database:
    """The rows of the user who has this name there."""

    def __init__(self, engine: Engine, user: str) -> None:
        self.engine = engine
        self._user = user
        self._scratch = f"ricordo/{_part(user)}"

    def prepare(self) -> None:
        """Check out `main`, with the table there. Raises Conflict where a change of it is not committed."""
        self.engine.call("dolt_checkout", MAIN)
        if self.engine.run(
            "SELECT name FROM dolt_branches WHERE name = ?", self._scratch
        ):  # left by a kill
            self.engine.call("dolt_branch", "-D", self._scratch)
        if self._status() - {"new table"}:
            raise Conflict(
                f"There are changes of {TABLE} on main of the remote that nobody committed. Commit them there, or reset them."
            )
        self.engine.run(self.engine.make_table)
        if self._status():
            self.engine.call("dolt_add", TABLE)
            self.engine.call(
                "dolt_commit", "-m", f"Make {TABLE}", "--author", "Ricordo <ricordo@localhost>"
            )

    def head(self) -> str:
        return str(self.engine.run(f"SELECT dolt_hashof('{MAIN}')")[0][0])

    def rows(self, commit: str | None) -> dict[str, DoltRow]:
        """The user's rows by label, as they are at a commit, or now where none is named."""
        table = self.engine.table_at if commit else TABLE
        sql = f"SELECT {_COLUMNS} FROM {table} WHERE user_id = ?"  # noqa: S608 - no words of others
        values = [*filter(None, (commit, self._user))]
        require_few(self.engine, sql.partition(" FROM ")[2], values, MOST_ROWS, "body", "title")
        found = self.engine.run(sql, *values)
        return {
            str(label): DoltRow(_text(title), _text(body) or "", _text(schema_ref))
            for label, title, body, schema_ref in found
        }

    def log(self, after: str | None = None, until: str = MAIN) -> list[DoltCommit]:
        """The commits of `main`, or of what is `until`, newest first; with `after`, those that this one does not have."""
        wanted = until if after is None else f"{after}..{until}"
        require_few(self.engine, "dolt_log(?)", [wanted], MOST_COMMITS, "message")
        rows = self.engine.run(
            "SELECT commit_hash, message, committer, email, date FROM dolt_log(?)", wanted
        )
        return [
            DoltCommit(
                str(hash),
                str(message),
                author=(_text(name) or "", _text(address) or ""),
                at=_micros(date),
            )
            for hash, message, name, address, date in rows
        ]

    def steps(self, base: str | None, head: str) -> list[str]:
        """The commits from the base, without it, to the head along first parents; the head alone where they do not lead there.

        Without a base, all from the first.
        """
        require_few(self.engine, "dolt_commit_ancestors", [], 2 * MOST_COMMITS, "commit_hash")
        rows = self.engine.run(
            "SELECT commit_hash, parent_hash FROM dolt_commit_ancestors WHERE parent_index = 0"
        )
        parents = {str(commit): _text(parent) for commit, parent in rows}
        found: list[str] = []
        commit: str | None = head
        while commit is not None and commit != base:
            found.append(commit)
            commit = parents.get(commit)
        return found[::-1] if commit == base else [head]

    def commits_since(
        self, base: str | None, head: str, *, as_one: bool = False
    ) -> list[RemoteCommit]:
        """What others committed from a commit on, the oldest first; what does not change the user's rows is left out.

        With `as_one` it is put together as one commit of all its authors.
        """
        log = {one.hash: one for one in self.log(base, head)}
        steps = [head] if as_one else self.steps(base, head)
        merges = {str(commit): str(parent) for commit, parent in self.engine.run(_MERGES)}
        touching = self._touching() if base is None or len(steps) > _MOST_STEPS else {*steps}
        found: list[RemoteCommit] = []
        before: Rows = self.rows(base) if base else {}
        for commit in steps:
            if commit not in touching and commit not in merges and commit != head:
                base = commit
                continue
            # Rows that stay are kept once: a history may be long.
            after = {
                label: _same(before.get(label), row) for label, row in self._rows_at(commit).items()
            }
            if after != before:
                one = log.get(commit) or DoltCommit(commit, "")
                brought = self.log(base, commit) if commit in merges or len(steps) == 1 else [one]
                merged = tuple(id for each in brought if (id := proposal_in(each.message)))
                of_merge = [each for each in brought if each.hash != commit]
                writers = (
                    [each for hash, each in log.items() if hash in touching] if as_one else [one]
                )
                if (
                    commit in merges
                    and of_merge
                    and _is_from(self._rows_at(merges[commit]), before, after)
                ):
                    writers = of_merge  # whoever merged it changed nothing of it
                authors = frozenset(each.author for each in writers or [one])
                message = _TRAILER.sub("", one.message).strip()
                found.append(RemoteCommit(commit, message, before, after, merged, authors, one.at))
            base = commit
            before = after
        return found

    def commit(self, expected: str, edit: DoltEdit, merged: DoltCommit | None = None) -> str:
        """Make the edit the next commit of `main`, as a merge of a proposal's branch where one is given; returns its hash.

        Where it changes nothing, and merges nothing, nothing is committed. Raises RemoteMoved.
        """
        with self.transaction():
            if self.head() != expected:
                raise RemoteMoved
            before = self.rows(None)
            is_merge = merged is not None and self._begin_merge(merged.branch)
            is_changed = self._write(edit, before, is_merge=is_merge)
            return self._commit(edit) if is_merge or is_changed else expected

    def branches(self) -> list[DoltCommit]:
        rows = self.engine.run("SELECT hash, latest_commit_message, name FROM dolt_branches")
        found = (DoltCommit(str(hash), str(message), str(name)) for hash, message, name in rows)
        return [one for one in found if one.branch.startswith(branches_of(self._user))]

    def open_branch(self, name: str, start: str, edit: DoltEdit) -> None:
        """Make a branch with one commit, at a commit; under its name it is there as a whole or not at all."""
        self.engine.call("dolt_branch", self._scratch, start)
        self.engine.call("dolt_checkout", self._scratch)
        try:
            with self.transaction():
                self._write(edit, self.rows(None))
                self._commit(edit, "--allow-empty")
        finally:
            self.engine.call("dolt_checkout", MAIN)
        self.engine.call("dolt_branch", name, self._scratch)
        self.engine.call("dolt_branch", "-D", self._scratch)

    def drop_branch(self, name: str) -> None:
        self.engine.call("dolt_branch", "-D", name)

    def commit_of(self, version: str, chain_id: str) -> str | None:
        """The commit that says it is this version (hex) of the chain, if there is one."""
        rows = self.engine.run(
            "SELECT commit_hash, message FROM dolt_log WHERE message LIKE ?",
            f"%Ricordo-Version: {version}%",
        )
        for hash, message in rows:
            trailer = trailer_of(str(message))
            if trailer and (trailer.version, trailer.chain_id) == (version, chain_id):
                return str(hash)
        return None

    def _touching(self) -> set[str]:
        """The commits that changed the user's rows."""
        return {str(row[0]) for row in self.engine.run(_TOUCHING, self._user, self._user)}

    def _rows_at(self, commit: str) -> dict[str, DoltRow]:
        """The user's rows at a commit, none where there was no table yet."""
        try:
            return self.rows(commit)
        except EngineError:
            return {}

    def _status(self) -> set[str]:
        return {
            str(row[0])
            for row in self.engine.run("SELECT status FROM dolt_status WHERE table_name = ?", TABLE)
        }

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.engine.run(self.engine.begin)
        try:
            yield
        finally:
            # What is to stay was committed by `dolt_commit`; there may be nothing to roll back any more.
            with suppress(EngineError):
                self.engine.run("ROLLBACK")

    def _begin_merge(self, branch: str) -> bool:
        """Merge without a commit; rows that conflict stay as they were, and the caller writes them. False: it is merged already."""
        # doltlite reports conflicts by an error, a Dolt server in its answer; any other fault shows below or at the commit.
        with suppress(EngineError):
            self.engine.call("dolt_merge", branch, "--no-ff", "--no-commit")
        if self.engine.run("SELECT * FROM dolt_conflicts"):
            self.engine.call("dolt_conflicts_resolve", "--ours", TABLE)
        return bool(self.engine.run("SELECT is_merging FROM dolt_merge_status")[0][0])

    def _write(self, edit: DoltEdit, before: Rows, *, is_merge: bool = False) -> bool:
        """Write the rows of the edit, made on those before it; a merge may have put other texts in their place by now."""
        wanted = edit.onto(before)
        now = self.rows(None) if is_merge else before
        changed = {
            label: row
            for label in edit.changes
            if (row := wanted.get(label, before.get(label))) != now.get(label)
        }
        for label, row in changed.items():
            if row is None:
                self.engine.run(
                    f"DELETE FROM {TABLE} WHERE user_id = ? AND label = ?",  # noqa: S608
                    self._user,
                    label,
                )
                continue
            self.engine.run(
                f"REPLACE INTO {TABLE} (user_id, {_COLUMNS}, updated_at) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
                *(
                    self._user,
                    label,
                    row.title,
                    row.body,
                    row.schema_ref,
                    edit.date.replace("T", " "),
                ),
            )
        return bool(changed)

    def _commit(self, edit: DoltEdit, *options: str) -> str:
        self.engine.call("dolt_add", TABLE)
        given = ("-m", edit.message, "--author", edit.author, "--date", edit.date, *options)
        return str(self.engine.call("dolt_commit", *given)[0][0])


def _is_from(theirs: Rows, before: Rows, after: Rows) -> bool:
    """Whether all that differs between the rows came from theirs as it is there."""
    labels = {label for label in {*before, *after} if before.get(label) != after.get(label)}
    return all(theirs.get(label) == after.get(label) for label in labels)


def _same(was: DoltRow | None, row: DoltRow) -> DoltRow:
    return was if was == row and was is not None else row


def _micros(date: object) -> int | None:
    """A date of Dolt's, which is in UTC, in microseconds."""
    try:
        return to_micros(datetime.fromisoformat(str(date)))
    except ValueError:
        return None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


class Trailer(NamedTuple):
    """Which version a commit is: its git id in hex, its number, and its chain."""

    version: str
    number: int
    chain_id: str


def version_message(last: BlockVersion, reason: str | None = None) -> str:
    shown = (last.reason if reason is None else reason).strip()[:_LONGEST_REASON]
    lines = f"Ricordo-Version: {last.id.hex()} {last.number}\nRicordo-Chain: {last.chain_id}"
    return f"{shown}\n\n{lines}" if shown else lines


def trailer_of(message: str) -> Trailer | None:
    """Which version a commit says it is; None where it says nothing. Only the very end of the message counts."""
    found = _TRAILER.search(message)
    return Trailer(found[1], int(found[2]), found[3]) if found else None


def proposal_message(proposal: Proposal) -> str:
    """What is known of a proposal, as JSON."""
    known: dict[str, Any] = {
        "proposal": proposal.id,
        "label": proposal.label,
        "new_label": proposal.new_label,
        "author": {
            "kind": proposal.author.kind,
            "id": proposal.author.id,
            "name": proposal.author.name,
        },
        "reasoning": proposal.reasoning[:_LONGEST_REASON],
        "confidence": proposal.confidence,
        "base": proposal.base.hex() if proposal.base else None,
        "created_at": to_datetime(proposal.created_at).isoformat(),
        "run_id": proposal.run_id,
        "step_id": proposal.step_id,
        "is_untrusted": proposal.is_untrusted,
    }
    return json.dumps(
        {name: value for name, value in known.items() if value is not None}, ensure_ascii=False
    )


def proposal_in(message: str) -> str | None:
    """The id of the proposal whose commit this is; None where it is none."""
    try:
        id = json.loads(message).get("proposal") if message.startswith("{") else None
    except ValueError:
        return None
    return id if isinstance(id, str) else None


def branch_of(user: str, proposal: Proposal) -> str:
    label = "/".join(_part(part) for part in proposal.label.split("/"))
    return f"{branches_of(user)}{_cut(label)}/{proposal.id}"


def branches_of(user: str) -> str:
    return f"agent/{_part(user)}/"


def date_of(at: int) -> str:
    """A time in microseconds as Dolt reads dates of commits, in whole seconds UTC."""
    return to_datetime(at).replace(microsecond=0, tzinfo=None).isoformat()


def _part(text: str) -> str:
    if _PLAIN.fullmatch(text) and not text.endswith(".lock") and not text.startswith("-"):
        return _cut(text)
    # `quote` leaves some signs alone that a branch may not hold, and dots, which it may not hold everywhere.
    return _cut(quote(text, safe="").replace(".", "%2E").replace("~", "%7E"))


def _cut(text: str) -> str:
    return re.sub(r"%.?$", "", text[:_LONGEST]).rstrip("/.")
