"""A bare git repository for each chain, from which clones and fetches read.

Its commits have the ids of the chain's versions. The repository is a cache in
`<data>/repositories/<chain id>.git`, and may be deleted at any time. It is updated before it is
read. It is rebuilt if it is missing, damaged, or split into too many packs. A branch moves only
after all objects that it needs are stored. So after a kill the repository is at worst out of date.
"""

import asyncio
import hashlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from filelock import AsyncFileLock, Timeout

from ricordo.domain.git_objects import GitObject, object_id
from ricordo.errors import NotFound, RicordoError, Unavailable
from ricordo.features.sync.git import history
from ricordo.features.sync.git.history import HistoryPortion
from ricordo.features.sync.git.objects import EMPTY_TREE, KINDS, read_commit, read_tree
from ricordo.storage import chain_files
from ricordo.storage.engine.store import Store

if TYPE_CHECKING:
    from dulwich.pack import UnpackedObject
    from dulwich.repo import Repo

T = TypeVar("T")
log = logging.getLogger(__name__)
BRANCH = b"refs/heads/main"
_MOST_PACKS = 40
_NUMBERS = {kind: number for number, kind in KINDS.items()}
_TRAILER = 20
_PIECE = 65_515  # bytes copied at once; git's protocol limits a line to this


def repository_path(data_dir: Path, chain_id: str) -> Path:
    """Return the path of the bare repository of a chain.

    Args:
        data_dir: The server's data folder.
        chain_id: The chain.
    """
    return data_dir / chain_files.FOLDER / f"{chain_id}.git"


async def read_repository(
    store: Store, data_dir: Path, chain_id: str, work: Callable[[Path], T]
) -> T:
    """Run `work` on a chain's updated repository, in a thread.

    A damaged repository is rebuilt, and `work` is run once more.

    Args:
        store: The store.
        data_dir: The data folder.
        chain_id: The chain.
        work: A function of the repository's path. It may be called twice.

    Raises:
        NotFound: if the chain was erased.
        Conflict: if stored versions are damaged.
        Unavailable: if another request prepares the repository for too long.
    """
    path = await refreshed(store, data_dir, chain_id)
    try:
        return await asyncio.to_thread(work, path)
    except Exception as error:
        # After an error caused by the client, look only for damaged files, and try again only if
        # there are any.
        is_ours = isinstance(error, RicordoError)
        was_damaged = await rebuilt_if_damaged(store, data_dir, chain_id, is_thorough=not is_ours)
        if is_ours and not was_damaged:
            raise
    # Try again after any other error, since another request may have rebuilt the repository.
    return await asyncio.to_thread(work, await refreshed(store, data_dir, chain_id))


async def rebuilt_if_damaged(
    store: Store, data_dir: Path, chain_id: str, *, is_thorough: bool = True
) -> bool:
    """If the repository is damaged, rebuild it and return True.

    Call this after an error that damage may have caused.

    Args:
        store: The store.
        data_dir: The data folder.
        chain_id: The chain.
        is_thorough: Whether to look for missing objects too, which reads the whole history.

    Raises:
        NotFound, Conflict, Unavailable: as `refreshed` does.
    """
    path = repository_path(data_dir, chain_id)
    if not await asyncio.to_thread(is_damaged, path, is_thorough=is_thorough):
        return False
    log.warning("a repository for git is damaged; it is rebuilt", extra={"chain": chain_id})
    await asyncio.to_thread(chain_files.delete_chain_files, data_dir, chain_id)
    await refreshed(store, data_dir, chain_id)
    return True


def is_damaged(path: Path, *, is_thorough: bool = True) -> bool:
    """Return True if the files of a repository are damaged.

    Args:
        path: The repository. A missing one counts as damaged.
        is_thorough: Whether to look for missing objects too, which reads the whole history.
    """
    try:
        with closing(open_repository(path)) as repository:
            for pack in repository.object_store.packs:
                pack.data.check()
                pack.index.check()
            return is_thorough and not _is_whole(repository)
    except Exception:  # damaged files cause many kinds of errors
        return True


async def refreshed(store: Store, data_dir: Path, chain_id: str) -> Path:
    """Update the chain's repository to its last version, and return its path.

    Args:
        store: The store.
        data_dir: The data folder.
        chain_id: The chain.

    Raises:
        NotFound: if the chain was erased.
        Conflict: if stored versions are damaged.
        Unavailable: if another request prepares the repository for too long.
    """
    path = repository_path(data_dir, chain_id)
    tip = await store.read(lambda tx: history.tip(tx, chain_id))
    if tip is not None and tip == await asyncio.to_thread(_tip, path):
        return path
    async with _locked(data_dir, chain_id):
        tip = await store.read(lambda tx: history.tip(tx, chain_id))
        stored_tip = await asyncio.to_thread(_tip, path)
        if stored_tip is None or stored_tip != tip:
            await _catch_up(store, path, chain_id, stored_tip)
    return path


def open_repository(path: Path) -> "Repo":
    """Open the repository there.

    Args:
        path: The folder of a bare repository.

    Raises:
        OSError: There is no repository, or it cannot be read.
        ValueError: Its files are damaged.
    """
    from dulwich.errors import NotGitRepository
    from dulwich.repo import Repo  # slow to import, and few servers are cloned from

    try:
        return Repo(str(path))
    except NotGitRepository as error:
        raise FileNotFoundError(str(path)) from error


def make_repository(path: Path) -> None:
    """Create an empty bare repository with the branch `main`.

    Args:
        path: The folder of the repository, which must not exist.
    """
    from dulwich.repo import Repo

    path.mkdir(mode=0o700, parents=True)
    Repo.init_bare(str(path), default_branch=b"main").close()


def add_portion(path: Path, portion: HistoryPortion) -> None:
    """Store a portion as one pack, then set the branch to its head.

    Args:
        path: The repository. Only one process at a time may write there.
        portion: The next portion. Without a head, no branch is set.
    """
    with closing(open_repository(path)) as repository:
        repository.object_store.add_pack_data(len(portion.objects), iter(packed(portion.objects)))
        if portion.head is not None:
            repository.refs[BRANCH] = portion.head.hex().encode()  # type: ignore[index,assignment]


def packed(objects: Collection[GitObject]) -> "list[UnpackedObject]":
    """Return the objects in the form in which dulwich writes packs.

    Args:
        objects: The objects, uncompressed.
    """
    from dulwich.pack import UnpackedObject

    return [
        UnpackedObject(
            _NUMBERS[git_object.kind],
            sha=git_object.id,
            decomp_chunks=[git_object.body],
            decomp_len=len(git_object.body),
        )
        for git_object in objects
    ]


def find_object(repository: "Repo", id: bytes) -> GitObject | None:
    """Return an object of the repository, or None.

    Args:
        repository: The open repository.
        id: The 20 bytes of the object's id.

    Raises:
        NotFound: The object is a tag.
    """
    try:
        kind, body = repository.object_store.get_raw(id.hex().encode())  # type: ignore[arg-type]
    except KeyError:
        return None
    if kind not in KINDS:
        raise NotFound(f"{id.hex()} is not a commit, tree or text.")
    return GitObject(KINDS[kind], id, body)


def copy_whole(path: Path, write: Callable[[bytes], object]) -> None:
    """Write all objects of a repository as one pack, without unpacking them.

    Args:
        path: The repository.
        write: A function that takes the next bytes of the pack.

    Raises:
        OSError: if the repository was rebuilt meanwhile.
        ChecksumMismatch: if a pack is damaged.
    """
    copied_ids: set[bytes] = set()
    ranges: list[tuple[Path, int, int]] = []
    with closing(open_repository(path)) as repository:
        for pack in repository.object_store.packs:
            pack.data.check()
            source = Path(pack.data.path)
            offsets = sorted((offset, bytes(id)) for id, offset, _ in pack.index.iterentries())
            ends = [offset for offset, _ in offsets[1:]] + [source.stat().st_size - _TRAILER]
            for (start, id), end in zip(offsets, ends, strict=True):
                if id in copied_ids:
                    continue  # an earlier pack contains it
                copied_ids.add(id)
                if ranges and ranges[-1][0] == source and ranges[-1][2] == start:
                    ranges[-1] = (source, ranges[-1][1], end)
                else:
                    ranges.append((source, start, end))
    head = b"PACK\0\0\0\2" + len(copied_ids).to_bytes(4, "big")
    write(head)
    checksum = hashlib.sha1(head, usedforsecurity=False)
    for source, start, end in ranges:
        with source.open("rb") as file:
            file.seek(start)
            for position in range(start, end, _PIECE):
                piece = file.read(min(_PIECE, end - position))
                checksum.update(piece)
                write(piece)
    write(checksum.digest())


async def _catch_up(store: Store, path: Path, chain_id: str, stored_tip: bytes | None) -> None:
    number = None
    if stored_tip is not None and await asyncio.to_thread(_packs, path) < _MOST_PACKS:
        number = await store.read(lambda tx: history.number_of(tx, chain_id, stored_tip))
    if number is not None:
        async for portion in history.portions(store, chain_id, number):
            await asyncio.to_thread(add_portion, path, portion)
        return
    draft = path.with_suffix(".new")
    await asyncio.to_thread(_begin, draft)
    async for portion in history.portions(store, chain_id):
        await asyncio.to_thread(add_portion, draft, portion)
    await asyncio.to_thread(_put_in_place, draft, path)


def _tip(path: Path) -> bytes | None:
    """Return the id of the branch's commit; None if it is missing or cannot be read."""
    with suppress(Exception):  # damaged files cause many kinds of errors
        (path / "HEAD").stat()  # git needs this file, although the library does not
        with closing(open_repository(path)) as repository:
            id = repository.refs[BRANCH]  # type: ignore[index]
            if id in repository.object_store:
                return bytes.fromhex(id.decode())
    return None


def _packs(path: Path) -> int:
    return sum(1 for _ in (path / "objects" / "pack").glob("*.pack"))


def _begin(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    make_repository(draft)
    # Add the empty tree, which a memory without blocks and some first commits of pushes use.
    add_portion(draft, HistoryPortion((EMPTY_TREE,)))


def _put_in_place(draft: Path, path: Path) -> None:
    old = path.with_suffix(".old")
    shutil.rmtree(old, ignore_errors=True)
    with suppress(FileNotFoundError):
        path.rename(old)
    draft.rename(path)
    shutil.rmtree(old, ignore_errors=True)


@asynccontextmanager
async def _locked(data_dir: Path, chain_id: str) -> AsyncIterator[None]:
    """Lock the repository against all other requests.

    They may come from this server, or from another server that shares the folder.
    """
    lock = chain_files.lock_path(data_dir, chain_id)
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        async with AsyncFileLock(lock, timeout=chain_files.PATIENCE, thread_local=False):
            yield
    except Timeout:
        raise Unavailable(
            "Another request is preparing this memory for git. Try again in a minute."
        ) from None


def _is_whole(repository: "Repo") -> bool:
    if BRANCH not in repository.refs:  # type: ignore[operator]
        # The memory has no versions. If it had, `refreshed` would have rebuilt a repository
        # without this branch.
        return True
    visited: set[bytes] = set()
    waiting = [bytes.fromhex(repository.refs[BRANCH].decode())]  # type: ignore[index]
    while waiting:
        id = waiting.pop()
        if id in visited:
            continue
        visited.add(id)
        stored_object = find_object(repository, id)
        if stored_object is None or object_id(stored_object.kind, stored_object.body) != id:
            return False
        if stored_object.kind == "commit":
            commit = read_commit(stored_object.body)
            waiting += [commit.tree, *commit.parents]
        elif stored_object.kind == "tree":
            waiting += [entry.id for entry in read_tree(stored_object.body)]
    return True
