"""One user's rows of `memory_blocks` in a Dolt database, with its commits and branches.

All statements on this table are here. They block, so call this module in a thread. A change of
`main` happens completely or not at all, and only if `main` has not moved since the caller read it.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from ricordo.memory.text import merge_lines

MAIN = "main"
TABLE = "memory_blocks"
_COLUMNS = "label, title, body, schema_ref"
# At most this many commits of others are read one by one. If there are more, only commits that
# touch the user's rows are read.
_MOST_STEPS = 200
_MERGES = "SELECT commit_hash, parent_hash FROM dolt_commit_ancestors WHERE parent_index = 1"
_TOUCHING = (
    f"SELECT DISTINCT to_commit FROM dolt_diff_{TABLE} WHERE to_user_id = ? OR from_user_id = ?"  # noqa: S608
)
_OTHERS_ROWS = (
    f"SELECT 1 FROM dolt_diff_{TABLE} WHERE COALESCE(to_user_id, from_user_id) <> ? LIMIT 1"  # noqa: S608
)
_UNCOMMITTED = "SELECT 1 FROM dolt_status LIMIT 1"
_MADE = f"Make {TABLE}"
_FIRST_COMMIT = "Initialize data repository"  # Dolt's message for an empty database
# The last lines of a commit name its version, so that a commit made just before a kill can be
# recognized.
_TRAILER = re.compile(
    r"(?:\A|\n\n)Ricordo-Version: ([0-9a-f]{40}) (\d{1,18})\nRicordo-Chain: (\S+)\s*\Z"
)
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_LONGEST = 120  # characters of the part of a branch name that is a user's name or a label
_HASH_LENGTH = 16  # hex digits of the hash after a name that was cut
_LONGEST_REASON = 10_000
MOST_ROWS = 10_000  # rows of one user at a commit
MOST_COMMITS = 200_000


@dataclass(frozen=True, slots=True)
class DoltRow:
    """The columns of a row, except those of its key."""

    title: str | None
    body: str
    schema_ref: str | None


Rows = Mapping[str, DoltRow]


@dataclass(frozen=True, slots=True)
class RemoteCommit:
    """Another program's commit: the user's rows before and after it.

    `merged` are the ids of proposals that the commit merged. `authors` are names with addresses;
    there are several if the record combines several commits. `at` is the time in microseconds.
    """

    commit: str
    message: str
    before: Rows
    after: Rows
    merged: tuple[str, ...] = ()
    authors: frozenset[tuple[str, str]] = frozenset()
    at: int | None = None


class DoltCommit(NamedTuple):
    """A commit of the log, or the newest commit of a branch.

    `author` is a name with an address, `at` a time in microseconds.
    """

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
        """Return True if only Ricordo has committed to the proposal's branch."""
        return proposal_in(self.message) == self.proposal_id


@dataclass(frozen=True, slots=True)
class DoltEdit:
    """One commit to make: the new rows (None: deleted), author, date and message.

    `before` are the texts that are expected in these rows. If a row has another text, the edit is
    merged into that text. If both differ from `before` in the same lines, the row gets the text of
    `latest`: the memory's present text, which contains all changes.
    """

    changes: Mapping[str, DoltRow | None]
    author: str
    date: str
    message: str
    before: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, str] = field(default_factory=dict)

    def onto(self, now: Rows) -> dict[str, DoltRow | None]:
        """Return the rows to write.

        Args:
            now: The present rows of the user.
        """
        changes: dict[str, DoltRow | None] = {}
        for label, row in self.changes.items():
            stored = now.get(label)
            if (
                row
                and stored
                and stored.body not in (row.body, self.before.get(label, stored.body))
            ):
                merged = merge_lines(self.before[label], row.body, stored.body)
                if merged is None:
                    body = self.latest.get(label, row.body)
                else:
                    body = merged
                row = replace(row, body=body)  # noqa: PLW2901
            if row != stored:
                changes[label] = row
        return changes


class Database:
    """The rows of one user, by the user's name in the database."""

    def __init__(self, engine: Engine, user: str) -> None:
        self.engine = engine
        self._user = user
        self._scratch = f"ricordo/{_part(user)}"

    def prepare(self) -> None:
        """Check out `main`, and create the table if it is missing.

        Raises Conflict if the table has uncommitted changes.
        """
        self.engine.call("dolt_checkout", MAIN)
        if self.engine.run(
            "SELECT name FROM dolt_branches WHERE name = ?", self._scratch
        ):  # left by a kill
            self.engine.call("dolt_branch", "-D", self._scratch)
        if self._status() - {"new table"}:
            raise Conflict(
                f"There are uncommitted changes of {TABLE} on main of the remote. Commit "
                "them there, or reset them."
            )
        self.engine.run(self.engine.make_table)
        if self._status():
            self.engine.call("dolt_add", TABLE)
            self.engine.call("dolt_commit", "-m", _MADE, "--author", "Ricordo <ricordo@localhost>")

    def head(self) -> str:
        return str(self.engine.run(f"SELECT dolt_hashof('{MAIN}')")[0][0])

    def rows(self, commit: str | None) -> dict[str, DoltRow]:
        """Return the user's rows by label at a commit.

        Args:
            commit: The commit's hash; None for the present rows, with uncommitted changes.

        Raises:
            TooLong: if there are too many rows or bytes.
            EngineError: if the table did not exist at the commit.
        """
        table = self.engine.table_at if commit else TABLE
        sql = f"SELECT {_COLUMNS} FROM {table} WHERE user_id = ?"  # noqa: S608 - constant names
        parameters = [*filter(None, (commit, self._user))]
        require_few(self.engine, sql.partition(" FROM ")[2], parameters, MOST_ROWS, "body", "title")
        return {
            str(label): DoltRow(_text(title), _text(body) or "", _text(schema_ref))
            for label, title, body, schema_ref in self.engine.run(sql, *parameters)
        }

    def log(self, after: str | None = None, until: str = MAIN) -> list[DoltCommit]:
        """Return the commits of `until` without those of `after`, newest first.

        Args:
            after: A commit's hash or a branch; None to return all commits of `until`.
            until: A commit's hash or a branch.

        Raises:
            TooLong: if there are more than 200,000 commits, or too many bytes.
        """
        if after is None:
            revisions = until
        else:
            revisions = f"{after}..{until}"
        require_few(self.engine, "dolt_log(?)", [revisions], MOST_COMMITS, "message")
        rows = self.engine.run(
            "SELECT commit_hash, message, committer, email, date FROM dolt_log(?)", revisions
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
        """Return the commits from the base to the head, without the base.

        The path follows first parents. Without a base, it begins at the first commit. If first
        parents do not lead to the base, only the head is returned.

        Args:
            base: The hash of a commit, or None.
            head: The hash of the last commit.
        """
        require_few(self.engine, "dolt_commit_ancestors", [], 2 * MOST_COMMITS, "commit_hash")
        rows = self.engine.run(
            "SELECT commit_hash, parent_hash FROM dolt_commit_ancestors WHERE parent_index = 0"
        )
        parents = {str(commit): _text(parent) for commit, parent in rows}
        path: list[str] = []
        commit: str | None = head
        while commit is not None and commit != base:
            path.append(commit)
            commit = parents.get(commit)
        if commit == base:
            return path[::-1]
        return [head]

    def commits_since(
        self, base: str | None, head: str, *, as_one: bool = False
    ) -> list[RemoteCommit]:
        """Return the commits of others that change the user's rows, oldest first.

        Args:
            base: The hash of the commit that the memory has already; None for the whole history.
            head: The hash of the last commit.
            as_one: Whether to combine all commits into one by all their authors.

        Raises:
            TooLong: if a commit has too many rows, or the history too many commits.
        """
        log = {logged.hash: logged for logged in self.log(base, head)}
        steps = [head] if as_one else self.steps(base, head)
        merges = {str(commit): str(parent) for commit, parent in self.engine.run(_MERGES)}
        touching = self._touching_among(steps, base)
        remote_commits: list[RemoteCommit] = []
        before: Rows = self.rows(base) if base else {}
        for commit in steps:
            if commit not in touching and commit not in merges and commit != head:
                base = commit
                continue
            # Equal rows share one object, since a history may be long.
            after = {
                label: _same(before.get(label), row) for label, row in self._rows_at(commit).items()
            }
            if after != before:
                logged = log.get(commit) or DoltCommit(commit, "")
                new_commits = [logged]
                if commit in merges or len(steps) == 1:
                    new_commits = self.log(base, commit)
                merged = [new for new in new_commits if new.hash != commit]
                writers = [logged]
                if as_one:
                    writers = [writer for hash, writer in log.items() if hash in touching]
                if merged and self._only_merges(merges.get(commit), before, after):
                    writers = merged
                remote_commits.append(
                    _remote_commit(logged, new_commits, writers, before=before, after=after)
                )
            base = commit
            before = after
        return remote_commits

    def _touching_among(self, steps: Sequence[str], base: str | None) -> set[str]:
        """Return the steps that may change the user's rows.

        Without a base, or if there are many steps, the database selects those that touch the rows.
        Otherwise all steps are read.
        """
        if base is None or len(steps) > _MOST_STEPS:
            return self._touching()
        return {*steps}

    def _only_merges(self, parent: str | None, before: Rows, after: Rows) -> bool:
        """Return whether a merge only took the rows of this parent and changed nothing itself."""
        return parent is not None and _is_from(self._rows_at(parent), before, after)

    def commit(self, expected: str, edit: DoltEdit, merged: DoltCommit | None = None) -> str:
        """Make the edit the next commit of `main`, and return the new head.

        An edit that neither changes nor merges anything is not committed.

        Args:
            expected: The hash that `main` had when the caller read it.
            edit: The rows to write.
            merged: The newest commit of a proposal's branch that the commit merges; None merges
                none.

        Raises:
            RemoteMoved: if `main` has another hash.
        """
        with self.transaction():
            if self.head() != expected:
                raise RemoteMoved
            before = self.rows(None)
            is_merge = merged is not None and self._begin_merge(merged.branch)
            is_changed = self._write(edit, before, is_merge=is_merge)
            if is_merge or is_changed:
                return self._commit(edit)
            return expected

    def heads(self) -> dict[str, str]:
        """Return all branches by name, each with the hash of its newest commit."""
        rows = self.engine.run("SELECT name, hash FROM dolt_branches")
        return {str(name): str(hash) for name, hash in rows}

    def branches(self) -> list[DoltCommit]:
        rows = self.engine.run("SELECT hash, latest_commit_message, name FROM dolt_branches")
        branches = (DoltCommit(str(hash), str(message), str(name)) for hash, message, name in rows)
        return [commit for commit in branches if commit.branch.startswith(branches_of(self._user))]

    def open_branch(self, name: str, start: str, edit: DoltEdit) -> None:
        """Create a branch with one commit on `start`.

        The branch appears under its name completely or not at all.

        Args:
            name: The name of the new branch, as `branch_of` makes it.
            start: The hash of the commit at which the branch begins.
            edit: The commit, which may change nothing.
        """
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
        """Delete a branch, also if its commits were not merged.

        Args:
            name: The branch.
        """
        self.engine.call("dolt_branch", "-D", name)

    def commit_of(self, version: str, chain_id: str) -> str | None:
        """Return the commit whose trailer names this version of the chain, or None.

        Args:
            version: The version's id in 40 hex digits.
            chain_id: The chain.
        """
        rows = self.engine.run(
            "SELECT commit_hash, message FROM dolt_log WHERE message LIKE ?",
            f"%Ricordo-Version: {version}%",
        )
        for hash, message in rows:
            trailer = trailer_of(str(message))
            if trailer and (trailer.version, trailer.chain_id) == (version, chain_id):
                return str(hash)
        return None

    def newest_trailer(self, chain_id: str) -> "Trailer | None":
        """Return the version that the chain's newest commit on `main` names.

        Args:
            chain_id: The chain.

        Returns:
            The version; None if no commit names the chain.
        """
        rows = self.engine.run(
            "SELECT message FROM dolt_log WHERE message LIKE ? LIMIT 1",
            f"%\nRicordo-Chain: {chain_id}%",
        )
        trailers = (trailer_of(str(message)) for (message,) in rows)
        return next((trailer for trailer in trailers if trailer), None)

    def is_only_of(self, chain_id: str, messages: Collection[str]) -> bool:
        """Return whether Ricordo made all commits, and only for this chain.

        Returns False if there is another program's commit, branch, tag or uncommitted change, or a
        row of another user.

        Args:
            chain_id: The chain that the commits must name.
            messages: The messages of Ricordo's commits without a version.
        """
        if self.engine.run(_OTHERS_ROWS, self._user) or self.engine.run(_UNCOMMITTED):
            return False
        with suppress(EngineError):  # doltlite may not support tags
            if self.engine.run("SELECT * FROM dolt_tags LIMIT 1"):
                return False
        names = [str(row[0]) for row in self.engine.run("SELECT name FROM dolt_branches")]
        ours = (MAIN, self._scratch)
        if any(name not in ours and not name.startswith(branches_of(self._user)) for name in names):
            return False
        known = {_FIRST_COMMIT, _MADE, *messages}
        return all(
            commit.message in known
            or proposal_in(commit.message)
            or ((trailer := trailer_of(commit.message)) and trailer.chain_id == chain_id)
            for name in names
            for commit in self.log(until=name)
        )

    def begin_again(self, expected: Mapping[str, str]) -> None:
        """Remove the history of `main` and the proposals' branches, and create the table again.

        Args:
            expected: The branches with their hashes, as the caller read them before it checked
                that all commits are Ricordo's.

        Raises:
            RemoteMoved: if a branch has another hash, or was added or removed. Then nothing that
                others committed is removed. If `main` moved at the last moment, branches of
                proposals are gone, and the next sync makes them again.
        """
        root = self.log()[-1].hash
        if self.heads() != expected:
            raise RemoteMoved
        # The branches are removed first. A killed sync that had reset `main` already would keep
        # their old history.
        for branch in self.branches():
            if branch.hash != expected[branch.branch]:
                raise RemoteMoved
            self.drop_branch(branch.branch)
        if self.head() != expected[MAIN]:
            raise RemoteMoved
        self.engine.call("dolt_reset", "--hard", root)
        self.prepare()

    def drop_unreachable(self) -> None:
        """Remove the bytes of content that no branch reaches any more."""
        # A Dolt server ends its connections at this point.
        with suppress(EngineError):
            self.engine.call("dolt_gc")

    def _touching(self) -> set[str]:
        """Return the commits that changed the user's rows."""
        return {str(row[0]) for row in self.engine.run(_TOUCHING, self._user, self._user)}

    def _rows_at(self, commit: str) -> dict[str, DoltRow]:
        """Return the user's rows at a commit; there are none if the table did not exist yet."""
        try:
            return self.rows(commit)
        except EngineError:
            return {}

    def _status(self) -> set[str]:
        rows = self.engine.run("SELECT status FROM dolt_status WHERE table_name = ?", TABLE)
        return {str(row[0]) for row in rows}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.engine.run(self.engine.begin)
        try:
            yield
        finally:
            # `dolt_commit` has committed the wanted changes, and may have ended the transaction.
            with suppress(EngineError):
                self.engine.run("ROLLBACK")

    def _begin_merge(self, branch: str) -> bool:
        """Merge without a commit; return False if the branch is already merged.

        Conflicting rows are not changed; the caller writes them.
        """
        # doltlite reports conflicts as an error, but a Dolt server reports them in its answer. The
        # code below, or the commit, reveals any other fault.
        with suppress(EngineError):
            self.engine.call("dolt_merge", branch, "--no-ff", "--no-commit")
        if self.engine.run("SELECT * FROM dolt_conflicts"):
            self.engine.call("dolt_conflicts_resolve", "--ours", TABLE)
        return bool(self.engine.run("SELECT is_merging FROM dolt_merge_status")[0][0])

    def _write(self, edit: DoltEdit, before: Rows, *, is_merge: bool = False) -> bool:
        """Write the edit onto the rows `before`; return False if nothing changes.

        A merge may have changed these rows' texts since they were read.
        """
        targets = edit.onto(before)
        now = self.rows(None) if is_merge else before
        changed = {
            label: row
            for label in edit.changes
            if (row := targets.get(label, before.get(label))) != now.get(label)
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
        arguments = ("-m", edit.message, "--author", edit.author, "--date", edit.date, *options)
        return str(self.engine.call("dolt_commit", *arguments)[0][0])


def _is_from(source: Rows, before: Rows, after: Rows) -> bool:
    """Return True if every difference between the rows came from `source`."""
    labels = {label for label in {*before, *after} if before.get(label) != after.get(label)}
    return all(source.get(label) == after.get(label) for label in labels)


def _same(previous: DoltRow | None, row: DoltRow) -> DoltRow:
    if previous is not None and previous == row:
        return previous
    return row


def _micros(date: object) -> int | None:
    """Convert a date of Dolt, which is in UTC, to microseconds."""
    try:
        return to_micros(datetime.fromisoformat(str(date)))
    except ValueError:
        return None


def _text(cell: object) -> str | None:
    return None if cell is None else str(cell)


class Trailer(NamedTuple):
    """The version of a commit: git id in hex, number, and chain."""

    version: str
    number: int
    chain_id: str


def version_message(last: BlockVersion, reason: str | None = None) -> str:
    """Return the message of the commit that pushes a version.

    Args:
        last: The last version that the commit contains. The message ends with its trailer.
        reason: The text of the message; None: the reason of the version.
    """
    if reason is None:
        reason = last.reason
    text = reason.strip()[:_LONGEST_REASON]
    lines = f"Ricordo-Version: {last.id.hex()} {last.number}\nRicordo-Chain: {last.chain_id}"
    if text:
        return f"{text}\n\n{lines}"
    return lines


def trailer_of(message: str) -> Trailer | None:
    """Return the version that a commit's message names, or None.

    Only the last lines of the message are read.

    Args:
        message: The whole message of a commit, which any program may have written.
    """
    match = _TRAILER.search(message)
    if match:
        return Trailer(match[1], int(match[2]), match[3])
    return None


def proposal_message(proposal: Proposal) -> str:
    """Return the facts about a proposal as JSON.

    Args:
        proposal: The proposal. Its text is not among the facts.
    """
    facts: dict[str, Any] = {
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
        {name: fact for name, fact in facts.items() if fact is not None}, ensure_ascii=False
    )


def proposal_in(message: str) -> str | None:
    """Return the id of the proposal of a commit, or None.

    Args:
        message: The message of any commit.
    """
    try:
        if message.startswith("{"):
            id = json.loads(message).get("proposal")
        else:
            id = None
    except ValueError:
        return None
    return id if isinstance(id, str) else None


def branch_of(user: str, proposal: Proposal) -> str:
    """Return the name of the branch of a proposal.

    Args:
        user: The user's name in the database.
        proposal: The proposal. Its label and its id are parts of the name.
    """
    label = "/".join(_part(part) for part in proposal.label.split("/"))
    return f"{branches_of(user)}{_cut(label)}/{proposal.id}"


def branches_of(user: str) -> str:
    """Return the beginning of the names of the branches with a user's proposals.

    Args:
        user: The user's name in the database.
    """
    return f"agent/{_part(user)}/"


def date_of(at: int) -> str:
    """Return a time as Dolt's date: whole seconds in UTC.

    Args:
        at: The time in microseconds.
    """
    return to_datetime(at).replace(microsecond=0, tzinfo=None).isoformat()


def _part(text: str) -> str:
    """Return a name as a part of a branch's name. Different names have different parts.

    A name that is too long is cut, and a hash of the whole name follows. The result is longer than
    every part without a hash, so that no user can choose it as a name.
    """
    part = text
    if not _PLAIN.fullmatch(text) or text.endswith(".lock") or text.startswith("-"):
        # `quote` does not escape "~", which no branch may contain, or ".", which is not allowed
        # everywhere in a branch.
        part = quote(text, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(part) <= _LONGEST:
        return part
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{_cut(part)}-{digest[:_HASH_LENGTH]}"


def _cut(text: str) -> str:
    return re.sub(r"%.?$", "", text[:_LONGEST]).rstrip("/.")


def _remote_commit(
    logged: DoltCommit,
    new_commits: Sequence[DoltCommit],
    writers: Sequence[DoltCommit],
    *,
    before: Rows,
    after: Rows,
) -> RemoteCommit:
    """Return a commit of the log that changes the user's rows.

    `new_commits` are the commits that came with it; their messages name the merged proposals. The
    returned commit has the authors of `writers`, or its own author if `writers` is empty.
    """
    proposal_ids = (proposal_in(new.message) for new in new_commits)
    return RemoteCommit(
        logged.hash,
        message=_TRAILER.sub("", logged.message).strip(),
        before=before,
        after=after,
        merged=tuple(filter(None, proposal_ids)),
        authors=frozenset(writer.author for writer in writers or [logged]),
        at=logged.at,
    )
