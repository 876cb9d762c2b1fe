"""A git remote follows a user's memory: the same commits on `main`, and a branch for each proposal that waits.

What the owner commits there becomes her versions, as if she had pushed it. Each step can be repeated, and the remote's branches
move only after all that they need is there: after a kill at any point the next run brings memory and remote together.
"""

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ricordo.domain.remote import Remote
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Stale, Unavailable
from ricordo.features.git import history, layout, queries, transport
from ricordo.features.git.adoption import Adoption, adopt
from ricordo.features.git.branches import PREFIX, Branch, open_branches, settle_merged
from ricordo.features.git.merge import joined, known_parents
from ricordo.features.git.objects import GitObject
from ricordo.features.git.packs import read_pack
from ricordo.features.git.push import Push
from ricordo.features.git.repository import (
    BRANCH,
    add_objects,
    find_object,
    make_repository,
    open_repository,
    refreshed,
)
from ricordo.features.git.transport import Moved, Place
from ricordo.features.remotes.service import owner_of, require_lease
from ricordo.memory.schemas import FOLDER as SCHEMAS
from ricordo.storage import blocks
from ricordo.storage.store import Store, Transaction

# Where an owner finds the memory's side of a conflict, to merge it there.
ASIDE = b"refs/heads/from-ricordo"
# The option that asks for a branch which shows the memory as TOML.
SHOWS_TOML = "shows_toml"
_TRIES = 4


@dataclass(frozen=True, slots=True)
class _Memory:
    """Whose memory it is, and in whose name commits are taken over."""

    chain_id: str
    owner: Actor
    scope: Scope
    schemas: Path
    shows_toml: bool = False


async def sync(store: Store, data_dir: Path, remote: Remote, place: Place) -> Remote:
    """Bring the remote and the memory together; returns the remote as it is to be noted then.

    Raises Unavailable where it cannot be reached, Conflict or Invalid where what is committed there cannot be taken over; nothing
    is lost on either side.
    """
    memory = await store.read(lambda tx: _memory(tx, remote, data_dir))
    tip = await _together(store, data_dir, memory, remote, place)
    number = await store.read(lambda tx: history.number_of(tx, memory.chain_id, tip) if tip else 0)
    return replace(remote, followed=number or 0, seen=tip.hex() if tip else None, last_error=None)


async def _together(store: Store, data_dir: Path, memory: _Memory, remote: Remote, place: Place) -> bytes | None:
    """Pull, then push; returns the commit that both are at. Whoever writes meanwhile makes it begin again."""
    for _ in range(_TRIES):
        path = await refreshed(store, data_dir, memory.chain_id)
        tip = await store.read(lambda tx: history.tip(tx, memory.chain_id))
        seen = await asyncio.to_thread(transport.branches, place)
        theirs = seen.get(BRANCH)
        try:
            if theirs and theirs != tip and not await asyncio.to_thread(_has, path, theirs):
                await _pull(store, path, memory, place, theirs, tip)
                continue
            with _beside(path, remote) as aside:
                await _push(store, aside, memory, place, seen, tip)
        except (Moved, Stale):
            continue
        except Conflict:
            await _set_aside(store, path, place, seen, tip)
            raise
        return tip
    raise Unavailable("The memory and its remote change faster than they can be brought together. This is tried again.")


async def _pull(store: Store, path: Path, memory: _Memory, place: Place, theirs: bytes, tip: bytes | None) -> None:
    """Make versions of what is committed at the remote, by a merge where the memory went on too."""
    pack = await asyncio.to_thread(transport.fetch, place, theirs, path)
    now = await store.read(lambda tx: blocks.of_user(tx, memory.scope, memory.owner.id))
    limits = {block.label: block.limit for block in now}
    new = await asyncio.to_thread(_unpack, path, pack)
    parents = await asyncio.to_thread(_known_parents, path, new, limits, theirs)
    base = await store.read(lambda tx: _newest(tx, memory.chain_id, parents))

    def plan() -> Adoption:
        with closing(open_repository(path)) as repository:
            push = Push(new, partial(find_object, repository), limits)
            if tip is None or tip in parents:
                return push.adoption(tip, theirs)
            return joined(push, base, tip, theirs, memory.owner, store.clock.now())

    adoption = await asyncio.to_thread(plan)
    metadata = ChangeMetadata(memory.owner)
    await store.write(lambda tx: adopt(tx, memory.scope, memory.chain_id, adoption, metadata))


async def _push(
    store: Store, aside: Path, memory: _Memory, place: Place, seen: Mapping[bytes, bytes], tip: bytes | None
) -> None:
    waiting = await store.read(lambda tx: open_branches(tx, memory.chain_id))
    if await store.read(lambda tx: any(queries.pushed(tx, memory.chain_id, each.commit) for each in waiting)):
        await store.write(lambda tx: settle_merged(tx, memory.chain_id, memory.owner))
        waiting = await store.read(lambda tx: open_branches(tx, memory.chain_id))
    await asyncio.to_thread(_add, aside, waiting)
    wanted: dict[bytes, bytes | None] = {branch.name: branch.commit for branch in waiting}
    if tip is not None:
        wanted[BRANCH] = tip
    if memory.shows_toml:
        shown = await store.read(
            lambda tx: layout.shown(tx, memory.scope, memory.chain_id, memory.owner, memory.schemas)
        )
        wanted[layout.BRANCH] = await asyncio.to_thread(layout.commit, aside, shown)
    for name in seen:
        if (name.startswith(PREFIX) or name == ASIDE) and name not in wanted:
            wanted[name] = None
    await _move(store, aside, place, seen, wanted)


async def _set_aside(store: Store, path: Path, place: Place, seen: Mapping[bytes, bytes], tip: bytes | None) -> None:
    if tip is not None:
        await _move(store, path, place, seen, {ASIDE: tip})


async def _move(
    store: Store, path: Path, place: Place, seen: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes | None]
) -> None:
    changed = {name: id for name, id in wanted.items() if seen.get(name) != id}
    if changed:
        await require_lease(store)
        await asyncio.to_thread(transport.push, place, path, dict(seen), changed)


def _memory(tx: Transaction, remote: Remote, data_dir: Path) -> _Memory:
    user, scope = owner_of(tx, remote), Scope(remote.organization_id)
    owner = Actor("user", user.id, user.name)
    return _Memory(remote.chain_id, owner, scope, data_dir / SCHEMAS, bool(remote.options.get(SHOWS_TOML)))


def _newest(tx: Transaction, chain_id: str, ids: list[bytes]) -> bytes | None:
    """Of commits of the history the one that has most versions before it."""
    return max(ids, key=lambda id: history.number_of(tx, chain_id, id) or 0, default=None)


def _known_parents(path: Path, new: Mapping[bytes, GitObject], limits: Mapping[str, int], theirs: bytes) -> list[bytes]:
    with closing(open_repository(path)) as repository:
        return known_parents(Push(new, partial(find_object, repository), limits), theirs)


def _unpack(path: Path, pack: bytes) -> dict[bytes, GitObject]:
    with closing(open_repository(path)) as repository:
        return read_pack(pack, partial(find_object, repository))


def _has(path: Path, commit: bytes) -> bool:
    with closing(open_repository(path)) as repository:
        return commit.hex().encode() in repository.object_store  # type: ignore[operator]


@contextmanager
def _beside(path: Path, remote: Remote) -> Iterator[Path]:
    """A repository for as long as a push takes, with what the one at the path has: proposals are no part of that."""
    aside = path.with_suffix(f".{remote.id}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    make_repository(aside)
    try:
        with closing(open_repository(aside)) as repository:
            repository.object_store.add_alternate_path(str(path / "objects"))
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _add(aside: Path, waiting: list[Branch]) -> None:
    """Store the commits of proposals where branches are pushed from."""
    lacking = {made.id: made for branch in waiting for made in branch.objects}
    if lacking:
        with closing(open_repository(aside)) as repository:
            add_objects(repository, tuple(lacking.values()))
