"""Pull another program's commit in a Dolt database into a user's memory.

The functions of ordinary writes turn the commit into versions with its author, date and message.
They apply the rights of the owner who added the remote. A commit may also approve proposals, or
conflict with the memory.
"""

import re
from dataclasses import dataclass, field, replace

from ricordo.domain.block import Block
from ricordo.domain.remote import Remote
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import NotFound
from ricordo.features.sync.dolt.database import DoltRow, RemoteCommit
from ricordo.memory import approval, user_memory
from ricordo.memory.commit_authors import CommitAuthors
from ricordo.memory.proposals import ProposalDraft, Unchanged, propose
from ricordo.memory.text import merge_lines
from ricordo.memory.user_memory import UserMemory
from ricordo.storage import history, proposals, remotes, versions
from ricordo.storage.engine.store import Transaction

_PROPOSAL = re.compile(r"proposal-[0-9a-f-]{36}")


def pull_commit(tx: Transaction, remote: Remote, owner: Actor, step: RemoteCommit) -> Remote:
    """Turn a commit into versions, and its conflicts into proposals; record the remote's state.

    Args:
        tx: The transaction.
        remote: The remote with its progress so far.
        owner: The user who owns the memory.
        step: The commit with the user's rows before and after it.

    Returns:
        The recorded remote. Its `last_error` names conflicts that wait for the owner.

    Raises:
        Invalid, TooLong: if a row cannot be a block. The transaction is then rolled back.
        Conflict: if a label is taken, or too many proposals wait.
    """
    owned = user_memory.open_memory(tx, Scope(remote.organization_id), owner.id)
    chain = versions.lock(tx, owned.chain.id) or owned.chain
    pulled = _PulledCommit(tx, owned, owner, _metadata(tx, owned, owner, step), step)
    pulled.approve()
    pulled.rename()
    for label in sorted({*step.before, *step.after} - pulled.settled_labels):
        if step.before.get(label) != step.after.get(label):
            pulled.apply(label, step.before.get(label), step.after.get(label))
    conflicts = filter(None, (open_conflicts(tx, remote), *pulled.conflicts))
    # Pulled versions exist at the remote, so only versions written here have to be pushed.
    after = versions.lock(tx, owned.chain.id) or chain
    if remote.followed == chain.versions:
        followed = after.versions
    else:
        followed = remote.followed
    changed = replace(
        remote, seen=step.commit, followed=followed, last_error=" ".join(conflicts) or None
    )
    remotes.note(tx, changed)
    return changed


def _metadata(
    tx: Transaction, owned: UserMemory, owner: Actor, step: RemoteCommit
) -> ChangeMetadata:
    """Return the metadata of a commit: author, date and message.

    If the commit combines commits of several authors, the owner is the author. A date in the
    future, or before the last version's date, is corrected.
    """
    authors = CommitAuthors(tx, owned.scope, owner)
    newest = next(iter(history.page(tx, owned.chain.id, limit=1)), None)
    made_at = None
    if step.at is not None:
        made_at = min(max(step.at, newest.created_at if newest else 0), tx.clock.now())
    return replace(authors.metadata(authors.only(step.authors), step.message), made_at=made_at)


def open_conflicts(tx: Transaction, remote: Remote) -> str | None:
    """Return the recorded conflicts while one of their proposals waits, else None."""
    last_error = remotes.get(tx, Scope(remote.organization_id), remote.id).last_error
    waiting = {proposal.id for proposal in proposals.waiting(tx, remote.chain_id)}
    if waiting & set(_PROPOSAL.findall(last_error or "")):
        return last_error
    return None


@dataclass(slots=True)
class _PulledCommit:
    """One commit that is being pulled into the memory.

    Labels in `settled_labels` need no more work; `conflicts` are sentences for the owner.
    """

    tx: Transaction
    owned: UserMemory
    owner: Actor
    metadata: ChangeMetadata
    step: RemoteCommit
    settled_labels: set[str] = field(default_factory=set)
    conflicts: list[str] = field(default_factory=list)

    def approve(self) -> None:
        """Approve the proposals that the owner merged, each with its merged text."""
        for id in self.step.merged:
            try:
                proposal = proposals.get(self.tx, self.owned.scope, id)
            except NotFound:
                continue
            label = proposal.label
            target = proposal.new_label or proposal.label
            before = self.step.before.get(label)
            after = self.step.after.get(target)
            is_open = proposal.chain_id == self.owned.chain.id and proposal.waits
            if not is_open or (before == after and label == target):
                continue
            if after is None:
                text = None
            else:
                text = _merged(before, after, self._find(label))
            if text is None and not (proposal.value is None and after is None):
                continue  # it is treated like any other change
            # The block gets the remote's text.
            outcome = approval.approve(
                self.tx, self.owned.scope, id, self.owner, body=text, keeps_hidden_text=True
            )
            if isinstance(outcome, approval.Conflicted):
                self.conflicts.append(f'"{label}": {outcome.proposal.note} It waits as {id}.')
            self.settled_labels |= {label, target}

    def rename(self) -> None:
        """If one row was replaced by another with the same text, rename the block.

        The block keeps its history.
        """
        before = self.step.before
        after = self.step.after
        old = [label for label in before if label not in after and label not in self.settled_labels]
        new = [label for label in after if label not in before and label not in self.settled_labels]
        if len(old) != 1 or len(new) != 1 or before[old[0]].body != after[new[0]].body:
            return
        if self._find(old[0]) is None or self._find(new[0]) is not None:
            return
        user_memory.rename(self.tx, self.owned, old[0], new[0], self.metadata)
        self.settled_labels |= {old[0], new[0]}
        self._set(new[0], before[old[0]], after[new[0]])

    def apply(self, label: str, before: DoltRow | None, after: DoltRow | None) -> None:
        """Write, create or delete one block, or record the conflict."""
        block = self._find(label)
        if after is None:
            if block is not None and before is not None and block.value == before.body:
                user_memory.delete(self.tx, self.owned, label, self.metadata)
            elif block is not None:
                self._propose(label, None, block)
        elif block is None and before is not None:
            if before.body != after.body:
                self._propose(label, after.body, None)
        elif (text := _merged(before, after, block)) is None:
            self._propose(label, after.body, block)
        else:
            user_memory.put(self.tx, self.owned, label, text, self.metadata)
            self._set(label, before, after)

    def _find(self, label: str) -> Block | None:
        return user_memory.find(self.tx, self.owned, label)

    def _set(self, label: str, before: DoltRow | None, after: DoltRow) -> None:
        changed = {
            name: getattr(after, name)
            for name in ("title", "schema_ref")
            if getattr(after, name) != getattr(before, name, None)
        }
        if changed:
            user_memory.change_settings(self.tx, self.owned, label, changed, self.metadata)

    def _propose(self, label: str, text: str | None, block: Block | None) -> None:
        chain = self.owned.chain
        if text is not None:
            (block or Block("", chain.organization_id, chain.id, label, "")).require_fits(text)
        draft = ProposalDraft(chain.id, label, text, block)
        message = self.step.message or f"Edit {label} at the remote"
        try:
            proposal = propose(self.tx, draft, ChangeMetadata(self.metadata.author, message))
        except Unchanged:
            return  # only a final line break differs
        if text is None:
            conflict = "was changed here and deleted at the remote. The deletion"
        elif block is None:
            conflict = "was deleted here and changed at the remote. The text of the remote"
        else:
            conflict = "changed here and at the remote in the same lines. The text of the remote"
        self.conflicts.append(f'"{label}" {conflict} waits as {proposal.id}.')


def _merged(before: DoltRow | None, after: DoltRow, block: Block | None) -> str | None:
    if block is None or block.value == after.body:
        return after.body
    if before:
        return merge_lines(before.body, after.body, block.value)
    return None
