"""A bare git repository of each chain, with the very ids of its versions: what is cloned and fetched from.

It is a cache in `<data>/repositories/<chain id>.git`: brought up to date before it is read, deleted at any time without loss, and
rebuilt where it is missing, damaged or in too many pieces. A branch moves only after all it needs is there, so a kill at any
point leaves a repository that is merely behind.
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

from ricordo.domain.git_objects import object_id
from ricordo.errors import NotFound, RicordoError, Unavailable
from ricordo.features.git import history
from ricordo.features.git.history import HistoryPortion
from ricordo.features.git.objects import EMPTY_TREE, KINDS, GitObject, read_commit, read_tree
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
_PIECE = 65_515  # bytes that are copied at once, as many as a line of git's protocol holds


def repository_path(data_dir: Path, chain_id: str) -> Path:
    return data_dir / chain_files.FOLDER / f"{chain_id}.git"


async def read_repository(
    store: Store, data_dir: Path, chain_id: str, work: Callable[[Path], T]
) -> T:
    """What `work` reads in a thread from a chain's current repository, rebuilt once if damaged. Raises NotFound, Unavailable."""
    path = await refreshed(store, data_dir, chain_id)
    try:
        return await asyncio.to_thread(work, path)
    except Exception as error:
        # A client's own fault is no reason to read every object, or to try again.
        is_ours = isinstance(error, RicordoError)
        if (
            not await rebuilt_if_damaged(store, data_dir, chain_id, is_thorough=not is_ours)
            and is_ours
        ):
            raise
    # Also where it was rebuilt by another request meanwhile.
    return await asyncio.to_thread(work, await refreshed(store, data_dir, chain_id))


async def rebuilt_if_damaged(
    store: Store, data_dir: Path, chain_id: str, *, is_thorough: bool = True
) -> bool:
    """Rebuild the repository if it is damaged; tells whether it was. Call it after an error that damage would explain."""
    path = repository_path(data_dir, chain_id)
    if not await asyncio.to_thread(is_damaged, path, is_thorough=is_thorough):
        return False
    log.warning("a repository for git is damaged; it is rebuilt", extra={"chain": chain_id})
    await asyncio.to_thread(chain_files.delete_chain_files, data_dir, chain_id)
    await refreshed(store, data_dir, chain_id)
    return True


def is_damaged(path: Path, *, is_thorough: bool = True) -> bool:
    """Whether the files of a repository are not what was written; thoroughly: or something of its history is missing."""
    try:
        with closing(open_repository(path)) as repository:
            for pack in repository.object_store.packs:
                pack.data.check()
                pack.index.check()
            return is_thorough and not _is_whole(repository)
    except Exception:  # damaged files fail in many ways
        return True


async def refreshed(store: Store, data_dir: Path, chain_id: str) -> Path:
    """The path of the chain's repository, brought up to its last version. Raises NotFound, Unavailable."""
    path = repository_path(data_dir, chain_id)
    tip = await store.read(lambda tx: history.tip(tx, chain_id))
    if tip is not None and tip == await asyncio.to_thread(_tip, path):
        return path
    async with _locked(data_dir, chain_id):
        tip = await store.read(lambda tx: history.tip(tx, chain_id))
        known = await asyncio.to_thread(_tip, path)
        if known is None or known != tip:
            await _catch_up(store, path, chain_id, known)
    return path


def open_repository(path: Path) -> "Repo":
    """The repository there. Raises OSError or ValueError where there is none."""
    from dulwich.errors import NotGitRepository
    from dulwich.repo import Repo  # slow to import, and few servers are cloned from

    try:
        return Repo(str(path))
    except NotGitRepository as error:
        raise FileNotFoundError(str(path)) from error


def make_repository(path: Path) -> None:
    from dulwich.repo import Repo

    path.mkdir(mode=0o700, parents=True)
    Repo.init_bare(str(path), default_branch=b"main").close()


def add_portion(path: Path, portion: HistoryPortion) -> None:
    """Store a portion in a repository as one pack, and then let the branch name its last commit."""
    with closing(open_repository(path)) as repository:
        repository.object_store.add_pack_data(len(portion.objects), iter(packed(portion.objects)))
        if portion.head is not None:
            repository.refs[BRANCH] = portion.head.hex().encode()  # type: ignore[index,assignment]


def packed(objects: Collection[GitObject]) -> "list[UnpackedObject]":
    from dulwich.pack import UnpackedObject

    return [
        UnpackedObject(
            _NUMBERS[made.kind], sha=made.id, decomp_chunks=[made.body], decomp_len=len(made.body)
        )
        for made in objects
    ]


def find_object(repository: "Repo", id: bytes) -> GitObject | None:
    try:
        kind, body = repository.object_store.get_raw(id.hex().encode())  # type: ignore[arg-type]
    except KeyError:
        return None
    if kind not in KINDS:
        raise NotFound(f"{id.hex()} is no commit, tree or text.")
    return GitObject(KINDS[kind], id, body)


def copy_whole(path: Path, write: Callable[[bytes], object]) -> None:
    """Write all objects of a repository as one pack, copied as they lie. Raises OSError (rebuilt meanwhile), ChecksumMismatch."""
    seen: set[bytes] = set()
    ranges: list[tuple[Path, int, int]] = []
    with closing(open_repository(path)) as repository:
        for pack in repository.object_store.packs:
            pack.data.check()
            source = Path(pack.data.path)
            offsets = sorted((offset, bytes(id)) for id, offset, _ in pack.index.iterentries())
            ends = [offset for offset, _ in offsets[1:]] + [source.stat().st_size - _TRAILER]
            for (start, id), end in zip(offsets, ends, strict=True):
                if id in seen:
                    continue  # an earlier pack has it
                seen.add(id)
                if ranges and ranges[-1][0] == source and ranges[-1][2] == start:
                    ranges[-1] = (source, ranges[-1][1], end)
                else:
                    ranges.append((source, start, end))
    head = b"PACK\0\0\0\2" + len(seen).to_bytes(4, "big")
    write(head)
    checksum = hashlib.sha1(head, usedforsecurity=False)
    for source, start, end in ranges:
        with source.open("rb") as file:
            file.seek(start)
            for place in range(start, end, _PIECE):
                piece = file.read(min(_PIECE, end - place))
                checksum.update(piece)
                write(piece)
    write(checksum.digest())


async def _catch_up(store: Store, path: Path, chain_id: str, known: bytes | None) -> None:
    number = None
    if known is not None and await asyncio.to_thread(_packs, path) < _MOST_PACKS:
        number = await store.read(lambda tx: history.number_of(tx, chain_id, known))
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
    with suppress(OSError, ValueError, KeyError):
        (path / "HEAD").stat()  # the library needs less of a repository than git does
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
    # A memory whose blocks are all deleted names the empty tree, and so may the first commit of a push.
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
    """Let no other request, of this server or of one that shares the folder, change the repository."""
    lock = chain_files.lock_path(data_dir, chain_id)
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        async with AsyncFileLock(lock, timeout=chain_files.PATIENCE, thread_local=False):
            yield
    except Timeout:
        raise Unavailable(
            "This memory is being prepared for git by another request. Try again in a minute."
        ) from None


def _is_whole(repository: "Repo") -> bool:
    if BRANCH not in repository.refs:  # type: ignore[operator]
        return True  # of a memory without versions; any other is rebuilt before it is read
    seen: set[bytes] = set()
    waiting = [bytes.fromhex(repository.refs[BRANCH].decode())]  # type: ignore[index]
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        found = find_object(repository, id)
        if found is None or object_id(found.kind, found.body) != id:
            return False
        if found.kind == "commit":
            commit = read_commit(found.body)
            waiting += [commit.tree, *commit.parents]
        elif found.kind == "tree":
            waiting += [entry.id for entry in read_tree(found.body)]
    return True
