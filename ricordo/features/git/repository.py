"""A bare git repository of each chain, with the very ids of its versions: what is cloned and fetched from.

It is a cache in `<data>/repositories/<chain id>.git`: brought up to date before it is read, deleted at any time without loss, and
made anew where it is missing, damaged or in too many pieces. A branch moves only after all it needs is there, so a kill at any
point leaves a repository that is merely behind.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import AsyncFileLock, Timeout

from ricordo.domain.git_objects import object_id
from ricordo.errors import NotFound, Unavailable
from ricordo.features.git import history
from ricordo.features.git.history import Portion
from ricordo.features.git.objects import GitObject
from ricordo.storage import chain_files
from ricordo.storage.store import Store

if TYPE_CHECKING:
    from dulwich.repo import Repo

BRANCH = b"refs/heads/main"
_MOST_PACKS = 40
_KIND_NUMBERS = {"commit": 1, "tree": 2, "blob": 3}
_EMPTY_TREE = GitObject("tree", object_id("tree", b""), b"")


def repository_path(data_dir: Path, chain_id: str) -> Path:
    """Where the repository of a chain is, if it has one."""
    return data_dir / chain_files.FOLDER / f"{chain_id}.git"


async def refreshed(store: Store, data_dir: Path, chain_id: str) -> Path:
    """The path of the chain's repository, brought up to its last version. Raises NotFound, Unavailable."""
    path = repository_path(data_dir, chain_id)
    tip = await store.read(lambda tx: history.tip(tx, chain_id))
    if await asyncio.to_thread(_is_at, path, tip):
        return path
    async with _held(path):
        tip = await store.read(lambda tx: history.tip(tx, chain_id))
        known = await asyncio.to_thread(_cached_tip, path)
        if known is None or known != tip:
            await _catch_up(store, path, chain_id, known)
    return path


def branch_tip(path: Path, branch: bytes = BRANCH) -> bytes | None:
    """The commit that the branch of a repository names; None where there is none, or no repository that can be read."""
    with suppress(OSError, ValueError, KeyError), closing(open_repository(path)) as repository:
        id = repository.refs[branch]  # type: ignore[index]
        if id in repository.object_store:
            return bytes.fromhex(id.decode())
    return None


def open_repository(path: Path) -> "Repo":
    """The repository there. Raises OSError or ValueError where there is none."""
    from dulwich.errors import NotGitRepository
    from dulwich.repo import Repo  # slow to import, and few servers are cloned from

    try:
        return Repo(str(path))
    except NotGitRepository as error:
        raise FileNotFoundError(str(path)) from error


def make_repository(path: Path) -> None:
    """Make an empty bare repository in a folder that is not there yet."""
    from dulwich.repo import Repo

    path.mkdir(mode=0o700, parents=True)
    Repo.init_bare(str(path), default_branch=b"main").close()


def add_portion(path: Path, portion: Portion, branch: bytes = BRANCH) -> None:
    """Store a portion in a repository as one pack, and then let the branch name its last commit."""
    with closing(open_repository(path)) as repository:
        add_objects(repository, portion.objects)
        if portion.head is not None:
            repository.refs[branch] = portion.head.hex().encode()  # type: ignore[index,assignment]


def add_objects(repository: "Repo", objects: tuple[GitObject, ...]) -> None:
    """Store objects in a repository as one pack."""
    from dulwich.pack import UnpackedObject

    records = (
        UnpackedObject(_KIND_NUMBERS[made.kind], sha=made.id, decomp_chunks=[made.body], decomp_len=len(made.body))
        for made in objects
    )
    repository.object_store.add_pack_data(len(objects), records)


async def _catch_up(store: Store, path: Path, chain_id: str, known: bytes | None) -> None:
    number = None
    if known is not None and await asyncio.to_thread(_packs, path) < _MOST_PACKS:
        number = await store.read(lambda tx: history.number_of(tx, chain_id, known))
    if number is None:
        draft = _draft(path)
        await asyncio.to_thread(_begin, draft)
        async for portion in history.portions(store, chain_id):
            await asyncio.to_thread(add_portion, draft, portion)
        await asyncio.to_thread(_put_in_place, draft, path)
        return
    async for portion in history.portions(store, chain_id, number):
        await asyncio.to_thread(add_portion, path, portion)


def _is_at(path: Path, tip: bytes | None) -> bool:
    return tip is not None and _cached_tip(path) == tip


def _cached_tip(path: Path) -> bytes | None:
    # The library needs less of a repository than git does.
    return branch_tip(path) if (path / "HEAD").exists() else None


def _packs(path: Path) -> int:
    return sum(1 for _ in (path / "objects" / "pack").glob("*.pack"))


def _begin(draft: Path) -> None:
    _remove(draft)
    make_repository(draft)
    with closing(open_repository(draft)) as repository:
        # A memory whose blocks are all deleted names it, and so may the first commit of a push.
        add_objects(repository, (_EMPTY_TREE,))


def _put_in_place(draft: Path, path: Path) -> None:
    old = _old(path)
    _remove(old)
    with suppress(FileNotFoundError):
        path.rename(old)
    draft.rename(path)
    _remove(old)


@asynccontextmanager
async def _held(path: Path) -> AsyncIterator[None]:
    """Let no other request, of this server or of one that shares the folder, change the repository."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        async with AsyncFileLock(path.with_suffix(".lock"), timeout=chain_files.PATIENCE, thread_local=False):
            yield
    except Timeout:
        raise Unavailable("This memory is being prepared for git by another request. Try again in a minute.") from None


def _draft(path: Path) -> Path:
    return path.with_suffix(".new")


def _old(path: Path) -> Path:
    return path.with_suffix(".old")


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def find_object(repository: "Repo", id: bytes) -> GitObject | None:
    """An object of a repository by its id, None where it has none."""
    try:
        kind, body = repository.object_store.get_raw(id.hex().encode())  # type: ignore[arg-type]
    except KeyError:
        return None
    names = {number: name for name, number in _KIND_NUMBERS.items()}
    if kind not in names:
        raise NotFound(f"{id.hex()} is no commit, tree or text.")
    return GitObject(names[kind], id, body)  # type: ignore[arg-type]
