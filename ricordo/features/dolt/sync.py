"""A Dolt database follows a user's memory: a commit for each version, and a branch for each proposal that waits.

What is there is taken over first, then what is new here is written there, one version after the other. Nothing of the memory is
held meanwhile, and each step can be repeated: a commit says which version it is, and `main` must be where it was last seen.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ricordo.domain.git_objects import signature
from ricordo.domain.remote import Remote
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import RicordoError, Unavailable
from ricordo.features.dolt import pull as pulling
from ricordo.features.dolt.address import Place
from ricordo.features.dolt.commits import (
    Trailer,
    branch_of,
    moment,
    proposal_message,
    stamp,
    version_message,
    with_trailer,
)
from ricordo.features.dolt.database import Branch, Content, Database, Edit, Moved
from ricordo.features.dolt.engines import open_engine
from ricordo.features.remotes import queries as remotes
from ricordo.features.remotes.service import owner_of, require_lease
from ricordo.storage import blobs, blocks, history, proposals
from ricordo.storage.store import Store, Transaction

_TRIES = 5
_PORTION = 50  # versions that are read, and then noted, at once


@dataclass(frozen=True, slots=True)
class _Memory:
    """Whose memory it is, and the name that her rows have."""

    chain_id: str
    owner: Actor
    name: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class _Now:
    """The memory at one moment: how many versions it has and the last of them, its blocks as rows, and what waits."""

    last: BlockVersion | None
    rows: Mapping[str, Content]
    waiting: Sequence[Proposal]
    at: int


async def sync(store: Store, remote: Remote, place: Place) -> Remote:
    """Bring the database and the memory together; returns the remote as it is to be noted then.

    Raises Unavailable where it cannot be reached or refuses, Conflict or Invalid where what is there cannot be taken over; nothing
    is lost on either side.
    """
    memory = await store.read(lambda tx: _memory(tx, remote))
    engine = await asyncio.to_thread(open_engine, place)
    database = Database(engine, memory.name)
    try:
        remote = await _together(store, database, memory, remote)
    finally:
        await asyncio.to_thread(database.close)
    return replace(remote, last_error=await store.read(lambda tx: pulling.still_told(tx, remote)))


async def _together(store: Store, database: Database, memory: _Memory, remote: Remote) -> Remote:
    """Pull, then push; whoever writes there meanwhile makes it begin again."""
    await asyncio.to_thread(database.prepare)
    for _ in range(_TRIES):
        remote = await _pull(store, database, memory, remote)
        try:
            return await _push(store, database, memory, remote)
        except Moved:
            remote = await store.read(lambda tx: remotes.get(tx, memory.scope, remote.id))  # noqa: B023 - awaited here
    raise Unavailable("The memory and its remote change faster than they can be brought together. This is tried again.")


async def _pull(store: Store, database: Database, memory: _Memory, remote: Remote) -> Remote:
    seen = await asyncio.to_thread(pulling.look, database, memory.chain_id, remote.seen)
    if seen.head == remote.seen:
        return remote
    remote = await store.read(lambda tx: pulling.caught_up(tx, remote, seen))
    if seen.head != remote.seen:
        await _take_over(store, database, memory, remote, seen.head)
    return replace(remote, seen=seen.head)


async def _take_over(store: Store, database: Database, memory: _Memory, remote: Remote, head: str) -> None:
    """Take over what others committed, commit by commit; from one that cannot be on, all in one, for it may be mended since."""
    steps = await asyncio.to_thread(pulling.steps, database, remote.seen, head)
    for place, step in enumerate(steps):
        try:
            await _take_one(store, memory, remote, step)
        except RicordoError:
            if len(steps) - place < 2:
                raise
            await _take_one(store, memory, remote, replace(steps[-1], commit=head, before=step.before))
            return


async def _take_one(store: Store, memory: _Memory, remote: Remote, step: pulling.Step) -> None:
    await store.write(lambda tx: pulling.take_over(tx, remote, memory.owner, step))


async def _push(store: Store, database: Database, memory: _Memory, remote: Remote) -> Remote:
    while True:
        await require_lease(store)
        after = remote.followed
        portion = await store.read(lambda tx: _portion(tx, memory, after))  # noqa: B023 - awaited here
        for edit, last in portion:
            head = await asyncio.to_thread(_commit, database, remote.seen or "", edit, last)
            remote = replace(remote, seen=head, followed=last.number)
        if portion:
            remote = await _saved(store, remote)
            continue
        now = await store.read(lambda tx: _now(tx, memory))
        if now.last is None or now.last.number == remote.followed:
            return await asyncio.to_thread(_level, database, memory, remote, now)


async def _saved(store: Store, remote: Remote) -> Remote:
    def save(tx: Transaction) -> None:
        remotes.note(tx, replace(remote, last_error=pulling.still_told(tx, remote)))

    await store.write(save)
    return remote


def _commit(database: Database, expected: str, edit: Edit, last: BlockVersion) -> str:
    """Commit a version; one that approved a proposal merges its branch, while that is as it was made."""
    merged: Branch | None = None
    if last.proposal_id is not None:
        of_proposal = (branch for branch in database.branches() if branch.proposal_id == last.proposal_id)
        merged = next((branch for branch in of_proposal if branch.is_ours), None)
    return database.commit(expected, edit, merged)


def _level(database: Database, memory: _Memory, remote: Remote, now: _Now) -> Remote:
    """Bring over what no version tells of: titles and schemas, and which proposals wait."""
    head = remote.seen or database.head()
    there = database.rows(head)
    differing = {label: now.rows.get(label) for label in {*there, *now.rows} if there.get(label) != now.rows.get(label)}
    if differing and now.last is not None:
        said = with_trailer(
            f"Bring {', '.join(sorted(differing))} in step",
            Trailer(now.last.id.hex(), now.last.number, memory.chain_id),
        )
        edit = Edit(differing, signature(memory.owner), moment(now.at), said, stamp(now.at))
        head = database.commit(head, edit)
    wanted = {proposal.id: branch_of(memory.name, proposal) for proposal in now.waiting}
    kept = set()
    for branch in database.branches():
        if wanted.get(branch.proposal_id) == branch.name:
            kept.add(branch.proposal_id)
        elif branch.is_ours:  # what somebody committed on it would be lost with it
            database.drop_branch(branch)
    for proposal in now.waiting:
        if proposal.id not in kept:
            _open(database, proposal, wanted[proposal.id], head)
    return replace(remote, seen=head)


def _open(database: Database, proposal: Proposal, name: str, head: str) -> None:
    """Make the branch of a proposal, from the version that it was made from."""
    rows = database.rows(head)
    was = rows.get(proposal.label)
    if proposal.base is not None and (was.body if was else None) != proposal.base_value:
        start = database.commit_of(proposal.base.hex(), proposal.chain_id)
        if start is not None:
            head, was = start, database.rows(start).get(proposal.label)
    changes: dict[str, Content | None] = {proposal.label: None}
    if proposal.value is not None:
        title, schema_ref = (was.title, was.schema_ref) if was else (None, None)
        changes[proposal.new_label or proposal.label] = Content(title, proposal.value, schema_ref)
    at = proposal.created_at
    edit = Edit(changes, signature(proposal.author), moment(at), proposal_message(proposal), stamp(at))
    database.open_branch(name, head, edit)


def _memory(tx: Transaction, remote: Remote) -> _Memory:
    user = owner_of(tx, remote)
    owner = Actor("user", user.id, user.name)
    return _Memory(remote.chain_id, owner, user.identifier or user.id, Scope(remote.organization_id))


def _portion(tx: Transaction, memory: _Memory, after: int) -> list[tuple[Edit, BlockVersion]]:
    """The next versions as edits, each with the last version in it; versions of one git commit are one edit."""
    newest_first = history.page(tx, memory.chain_id, limit=_PORTION, before=after + _PORTION + 1)
    found = [version for version in reversed(newest_first) if version.number > after]
    # One commit may have changed many blocks, and is never divided.
    while found and (more := history.page(tx, memory.chain_id, limit=1, before=found[-1].number + 2)):
        if more[0].number == found[-1].number or more[0].id != found[-1].id:
            break
        found.append(more[0])
    now = {block.label: block for block in blocks.of_user(tx, memory.scope, memory.owner.id)} if found else {}
    edits = []
    for _, group in groupby(found, key=lambda version: version.id):
        versions = list(group)
        changes: dict[str, Content | None] = {}
        before: dict[str, str] = {}
        latest = {label: block.value for label, block in now.items()}
        for version in versions:
            if version.old_label:
                changes[version.old_label] = None
            elif (earlier := history.before(tx, version)) and earlier.blob and version.blob:
                before[version.label] = blobs.read(tx, memory.chain_id, earlier.blob)
            block = now.get(version.label)
            body = None if version.blob is None else blobs.read(tx, memory.chain_id, version.blob)
            title, schema_ref = (block.title, block.schema_ref) if block else (None, None)
            changes[version.label] = None if body is None else Content(title, body, schema_ref)
        last = versions[-1]
        at = last.created_at
        said = version_message(versions)
        edits.append((Edit(changes, signature(last.author), moment(at), said, stamp(at), before, latest), last))
    return edits


def _now(tx: Transaction, memory: _Memory) -> _Now:
    last = history.page(tx, memory.chain_id, limit=1)
    rows = {
        block.label: Content(block.title, block.value, block.schema_ref)
        for block in blocks.of_user(tx, memory.scope, memory.owner.id)
    }
    return _Now(last[0] if last else None, rows, proposals.waiting(tx, memory.chain_id), tx.clock.now())
