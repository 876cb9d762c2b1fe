"""A push, from its pack to versions or proposals: each branch is taken whole or refused with sentences for whoever pushed.

`main` is the memory itself; `propose/<any name>` makes a proposal of each block that the commit changes. There is no other branch.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ricordo.domain.block import Block, Chain
from ricordo.domain.git_objects import path_of
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, NotFound, RicordoError, Stale
from ricordo.features.git import history
from ricordo.features.git.adoption import Adoption, adopt
from ricordo.features.git.objects import Commit, GitObject
from ricordo.features.git.packs import Find, Lacking, read_pack
from ricordo.features.git.push import Push, Refused
from ricordo.features.git.repair import healed
from ricordo.features.git.repository import BRANCH, find_object, open_repository, refreshed
from ricordo.memory.merge import merge_lines
from ricordo.memory.proposals import Draft, propose
from ricordo.storage import blocks
from ricordo.storage.store import Store, Transaction
from ricordo.storage.versions import Change

PROPOSE = b"refs/heads/propose/"
_HEADS = b"refs/heads/"
_STALE = "The memory changed since you fetched it. Fetch and merge first, then push again."


@dataclass(frozen=True, slots=True)
class Command:
    """What a push asks for one branch: from the commit that its sender believes it to be at, to another; None: no such branch."""

    old: bytes | None
    new: bytes | None
    branch: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command: why it was refused, or None; `said` are sentences for whoever pushed."""

    branch: bytes
    refusal: str | None = None
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pusher:
    """Who pushes: what the credential may see, in whose name, and for how long proposals wait (microseconds; None: for ever)."""

    scope: Scope
    actor: Actor
    expires_after: int | None = None


@dataclass(frozen=True, slots=True)
class _Proposed:
    """The last commit of a branch of proposals, and what it changes against the commit of the memory that it came from."""

    commit: Commit
    changes: tuple[Change, ...]


async def receive(
    store: Store, data_dir: Path, chain: Chain, pusher: Pusher, commands: Sequence[Command], pack: bytes
) -> list[Outcome]:
    """Carry out a push. Raises Invalid where the pack cannot be read; then nothing is done."""
    try:
        return await _receive(store, data_dir, chain, pusher, commands, pack)
    except Lacking as error:
        # Also where the repository lost what the push rightly counts on; nothing was done yet.
        if not await healed(store, data_dir, chain.id, error):
            raise
    return await _receive(store, data_dir, chain, pusher, commands, pack)


async def _receive(
    store: Store, data_dir: Path, chain: Chain, pusher: Pusher, commands: Sequence[Command], pack: bytes
) -> list[Outcome]:
    path = await refreshed(store, data_dir, chain.id)
    tip = await store.read(lambda tx: history.tip(tx, chain.id))
    now = await store.read(lambda tx: blocks.of_user(tx, pusher.scope, chain.owner_id))
    limits = {block.label: block.limit for block in now}
    new = await asyncio.to_thread(_unpack, path, pack)
    outcomes: list[Outcome] = []
    for command in commands:
        try:
            if refusal := _refusal(command, tip):
                outcomes.append(Outcome(command.branch, refusal))
            elif command.branch == BRANCH:
                outcomes.append(await _adopt(store, path, chain, pusher, command, Objects(new, limits)))
            else:
                outcomes.append(await _propose(store, path, chain, pusher, command, Objects(new, limits)))
        except Lacking as error:
            if not outcomes:
                raise
            outcomes.append(_refused(command, error))
        except RicordoError as error:
            outcomes.append(_refused(command, error))
    return outcomes


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a push by id, and the limits of the blocks that are there, by label."""

    new: Mapping[bytes, GitObject]
    limits: Mapping[str, int]

    def push(self, find: Find) -> Push:
        """The push, with a way to find what is here already."""
        return Push(self.new, find, self.limits)


def _refusal(command: Command, tip: bytes | None) -> str | None:
    """Why a command is refused whatever it brings."""
    if command.branch != BRANCH and not command.branch.startswith(PROPOSE):
        what = "branches" if command.branch.startswith(_HEADS) else "tags"
        return f"Memory keeps no other {what}. Push to main, or to propose/<any name> for the owner to decide."
    if command.new is None:
        return "A branch of memory cannot be deleted. Delete files and push that, or erase the user."
    if command.branch == BRANCH and command.old != tip:
        return _STALE
    return None


async def _adopt(store: Store, path: Path, chain: Chain, pusher: Pusher, command: Command, objects: Objects) -> Outcome:
    adoption = await asyncio.to_thread(_adoption, path, command, objects)
    metadata = ChangeMetadata(pusher.actor)
    await store.write(lambda tx: adopt(tx, pusher.scope, chain.id, adoption, metadata))
    changed = sorted({change.label for one in adoption.main for change in one.changes})
    return Outcome(command.branch, said=tuple(f"{path_of(label)} is a new version now." for label in changed))


def _adoption(path: Path, command: Command, objects: Objects) -> Adoption:
    with closing(open_repository(path)) as repository:
        return objects.push(partial(find_object, repository)).adoption(command.old, command.new or b"")


async def _propose(
    store: Store, path: Path, chain: Chain, pusher: Pusher, command: Command, objects: Objects
) -> Outcome:
    proposed = await asyncio.to_thread(_changes, path, command, objects)
    said = await store.write(lambda tx: _store_proposals(tx, chain, pusher, proposed))
    return Outcome(command.branch, said=tuple(said))


def _changes(path: Path, command: Command, objects: Objects) -> _Proposed:
    with closing(open_repository(path)) as repository:
        push = objects.push(partial(find_object, repository))
        order = push.new_commits(command.new or b"")
        if not order:
            raise Refused(["This branch holds no commit that the memory does not have. Commit your proposal first."])
        # From the newest commit back by first parents to the first that is here.
        by_id = {commit.id: commit for commit in order}
        base: bytes | None = order[-1].id
        while base in by_id:
            base = next(iter(by_id[base].parents), None)
        if base is None:
            raise Refused(["This branch has no commit of the memory below it. Fetch, and make it from main."])
        changes = tuple(push.changes(base, order[-1].id))
        push.require_faultless()
        if not changes:
            raise Refused(["This branch changes no block. Commit your proposal first."])
        return _Proposed(order[-1], changes)


def _store_proposals(tx: Transaction, chain: Chain, pusher: Pusher, proposed: _Proposed) -> list[str]:
    metadata = ChangeMetadata(pusher.actor, proposed.commit.message.strip())
    now = {block.label: block for block in blocks.of_user(tx, pusher.scope, chain.owner_id)}
    said = []
    for change in proposed.changes:
        label = change.old_label or change.label
        block = now.get(label)
        value = _value(change, block)
        if block is not None and metadata.policy_decision(block.rule) == "refuse":
            raise Forbidden(f"{path_of(label)}: this block is read-only; only its owner may change it.")
        if value is not None:
            (block or Block("", chain.organization_id, chain.id, label, "")).require_fits(value)
        new_label = change.label if change.old_label else None
        draft = Draft(chain.id, chain.organization_id, label, value, block, new_label)
        made = propose(tx, draft, metadata, pusher.expires_after)
        said.append(f"{path_of(label)} is proposed as {made.id} and waits for the owner.")
    return said


def _value(change: Change, block: Block | None) -> str | None:
    """The text that is proposed, on top of what the block holds now."""
    path = path_of(change.label)
    if change.value is None or change.old_label is not None:
        if block is None:
            raise NotFound(f"{path}: the block is not there any more. Fetch and merge first.")
        return None if change.value is None else block.value
    if change.before is None:
        if block is not None and block.value != change.value:
            raise Conflict(f"{path}: there is such a block by now. Fetch and merge first.")
        return change.value
    if block is None:
        raise NotFound(f"{path}: the block is not there any more. Fetch and merge first.")
    merged = merge_lines(change.before, block.value, change.value)
    if merged is None:
        raise Stale(f"{path}: the same lines changed in the memory. Fetch and merge first.")
    return merged


def _unpack(path: Path, pack: bytes) -> dict[bytes, GitObject]:
    with closing(open_repository(path)) as repository:
        return read_pack(pack, partial(find_object, repository))


def _refused(command: Command, error: RicordoError) -> Outcome:
    if isinstance(error, Refused):
        return Outcome(command.branch, error.faults[0], error.faults)
    if isinstance(error, Forbidden) and command.branch == BRANCH:
        return Outcome(command.branch, str(error), (str(error), "Push to propose/<any name> for the owner to decide."))
    return Outcome(command.branch, str(error), (str(error),))
