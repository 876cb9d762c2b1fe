"""What an owner commits in a Dolt database becomes versions of their memory, by the same functions as every write of an owner.

Where the memory went on too, both changes stay if they are of different lines. Where they are not, what the remote held waits
as a proposal of the owner: nothing is lost, and the memory stays what it is.
"""

import re
from dataclasses import dataclass, replace

from ricordo.domain.block import Block
from ricordo.domain.remote import Remote
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import NotFound
from ricordo.features.dolt.database import Database, DoltRow, Rows, Trailer, proposal_in, trailer_of
from ricordo.features.remotes import queries as remotes
from ricordo.memory import approval, user_memory
from ricordo.memory.merge import merge_lines
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage import history, proposals, versions
from ricordo.storage.engine.store import Transaction

_PROPOSAL = re.compile(r"proposal-[0-9a-f-]{36}")


@dataclass(frozen=True, slots=True)
class SeenHead:
    """The head of `main`, and the newest commits that say they are versions of this chain, the newest version first.

    `known` is the commit that was seen last, None where the history does not have it.
    """

    head: str
    known: str | None
    ours: tuple[tuple[str, Trailer], ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteCommit:
    """A commit of somebody else: the user's rows before and after it, and the proposals that it merged."""

    commit: str
    message: str
    before: Rows
    after: Rows
    merged: tuple[str, ...] = ()


def look(database: Database, remote: Remote) -> SeenHead:
    """See what came to `main` since the commit that the remote was seen at."""
    head = database.head()
    if head == remote.seen:
        return SeenHead(head, head)
    log = database.log()
    known = remote.seen if any(commit.hash == remote.seen for commit in log) else None
    if known is not None:
        log = database.log(known)
    trailers = ((commit.hash, trailer_of(commit.message)) for commit in log)
    ours = [(hash, trailer) for hash, trailer in trailers if trailer and trailer.chain_id == remote.chain_id]
    return SeenHead(head, known, tuple(sorted(ours, key=lambda one: -one[1].number)))


def caught_up(tx: Transaction, remote: Remote, seen: SeenHead) -> Remote:
    """The remote as it really is: what was pushed just before a kill counts, and what is not there any more does not."""
    for commit, trailer in seen.ours:
        if seen.known is not None and trailer.number < remote.followed:
            break  # a copy that somebody made of an older one
        found = history.page(tx, remote.chain_id, limit=1, before=trailer.number + 1)
        if found and (found[0].number, found[0].id.hex()) == (trailer.number, trailer.version):
            return replace(remote, seen=commit, followed=trailer.number)
    return remote if seen.known is not None else replace(remote, seen=None, followed=0)


def steps(database: Database, base: str | None, head: str) -> list[RemoteCommit]:
    """What others committed from a commit on, the oldest first; what does not change the user's rows is left out."""
    found = []
    before = database.rows(base) if base else {}
    for commit in database.steps(base, head):
        after = database.rows(commit)
        if after != before:
            log = database.log(base, commit)
            merged = tuple(id for one in log if (id := proposal_in(one.message)))
            found.append(RemoteCommit(commit, log[0].message if log else "", before, after, merged))
        base, before = commit, after
    return found


def take_over(tx: Transaction, remote: Remote, owner: Actor, step: RemoteCommit) -> None:
    """Make versions of a commit, and note that it is seen, and what conflicts and waits as proposals.

    Raises Invalid, TooLong where a row cannot be a block: then nothing is changed.
    """
    owned = user_memory.open_memory(tx, Scope(remote.organization_id), owner.id)
    versions.lock(tx, owned.chain.id)
    pulled = _PulledCommit(tx, owned, owner, step)
    pulled.approve()
    pulled.rename()
    for label in sorted({*step.before, *step.after} - pulled.done):
        if step.before.get(label) != step.after.get(label):
            pulled.take(label, step.before.get(label), step.after.get(label))
    conflicts = filter(None, (open_conflicts(tx, remote), *pulled.conflicts))
    remotes.note(tx, replace(remote, seen=step.commit, last_error=" ".join(conflicts) or None))


def open_conflicts(tx: Transaction, remote: Remote) -> str | None:
    noted = remotes.get(tx, Scope(remote.organization_id), remote.id).last_error
    waiting = {proposal.id for proposal in proposals.waiting(tx, remote.chain_id)}
    return noted if waiting & set(_PROPOSAL.findall(noted or "")) else None


class _PulledCommit:
    """One commit on its way into the memory: `done` are the labels that are settled, `conflicts` sentences for the owner."""

    def __init__(self, tx: Transaction, owned: UserMemory, by: Actor, step: RemoteCommit) -> None:
        self.done: set[str] = set()
        self.conflicts: list[str] = []
        self._tx = tx
        self._owned = owned
        self._by = by
        self._step = step
        self._message = step.message.strip() or None

    def approve(self) -> None:
        """Approve the proposals that the owner merged, each with the text that came of it."""
        for id in self._step.merged:
            try:
                proposal = proposals.get(self._tx, self._owned.scope, id)
            except NotFound:
                continue
            label, target = proposal.label, proposal.new_label or proposal.label
            before, after = self._step.before.get(label), self._step.after.get(target)
            is_open = proposal.chain_id == self._owned.chain.id and proposal.waits
            if not is_open or (before == after and label == target):
                continue
            text = None if after is None else _merged(before, after, self._find(label))
            if text is None and not (proposal.value is None and after is None):
                continue  # it is taken as any other change
            outcome = approval.approve(self._tx, self._owned.scope, id, self._by, body=text)
            if isinstance(outcome, approval.Conflicted):
                self.conflicts.append(f'"{label}": {outcome.proposal.note} It waits as {id}.')
            self.done |= {label, target}

    def rename(self) -> None:
        """Rename the block where one row went and another came with the same text; it keeps its history."""
        before, after = self._step.before, self._step.after
        old = [label for label in before if label not in after and label not in self.done]
        new = [label for label in after if label not in before and label not in self.done]
        if len(old) != 1 or len(new) != 1 or before[old[0]].body != after[new[0]].body:
            return
        if self._find(old[0]) is None or self._find(new[0]) is not None:
            return
        user_memory.rename(self._tx, self._owned, old[0], new[0], self._by, message=self._message)
        self.done |= {old[0], new[0]}
        self._set(new[0], before[old[0]], after[new[0]])

    def take(self, label: str, before: DoltRow | None, after: DoltRow | None) -> None:
        """Write, make or delete one block, or note the conflict."""
        block = self._find(label)
        if after is None:
            if block is not None and before is not None and block.value == before.body:
                user_memory.delete(self._tx, self._owned, label, self._by, message=self._message)
            elif block is not None:
                self._propose(label, None, block)
        elif block is None and before is not None:
            if before.body != after.body:
                self._propose(label, after.body, None)
        elif (text := _merged(before, after, block)) is None:
            self._propose(label, after.body, block)
        else:
            user_memory.put(self._tx, self._owned, label, text, self._by, PutOptions(message=self._message))
            self._set(label, before, after)

    def _find(self, label: str) -> Block | None:
        return user_memory.find(self._tx, self._owned, label)

    def _set(self, label: str, before: DoltRow | None, after: DoltRow) -> None:
        changed = {
            name: value
            for name in ("title", "schema_ref")
            if (value := getattr(after, name)) != getattr(before, name, None)
        }
        if changed:
            user_memory.change_settings(self._tx, self._owned, label, changed, self._by, message=self._message)

    def _propose(self, label: str, text: str | None, block: Block | None) -> None:
        chain = self._owned.chain
        if text is not None:
            (block or Block("", chain.organization_id, chain.id, label, "")).require_fits(text)
        draft = ProposalDraft(chain.id, label, text, block)
        proposal = propose(self._tx, draft, ChangeMetadata(self._by, self._message or f"Edit {label} at the remote"))
        self.conflicts.append(
            f'"{label}" changed here and at the remote in the same lines. What the remote had waits as {proposal.id}.'
        )


def _merged(before: DoltRow | None, after: DoltRow, block: Block | None) -> str | None:
    if block is None or block.value == after.body:
        return after.body
    return merge_lines(before.body, after.body, block.value) if before else None
