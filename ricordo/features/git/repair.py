"""Repositories that were damaged on disk: told apart from whatever else goes wrong, and made anew, since they are a cache."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ricordo.domain.git_objects import object_id
from ricordo.errors import RicordoError
from ricordo.features.git.objects import read_commit, read_tree
from ricordo.features.git.repository import (
    BRANCH,
    find_object,
    open_repository,
    refreshed,
    repository_path,
)
from ricordo.storage.chain_files import delete_chain_files
from ricordo.storage.store import Store

if TYPE_CHECKING:
    from dulwich.repo import Repo

T = TypeVar("T")
log = logging.getLogger(__name__)


async def read_healing(store: Store, data_dir: Path, chain_id: str, work: Callable[[Path], T]) -> T:
    """What `work` reads in a thread from a chain's repository, brought up to date; where that is damaged it is made anew, once.

    Any error that is not the repository's fault is raised as it came. Raises NotFound, Unavailable.
    """
    path = await refreshed(store, data_dir, chain_id)
    before = await asyncio.to_thread(_identity, path)
    try:
        return await asyncio.to_thread(work, path)
    except Exception as error:
        # What a client asks wrongly is no reason to look at every object.
        is_its_own = isinstance(error, RicordoError)
        is_other = await asyncio.to_thread(_identity, path) != before  # it was made anew in the middle of this
        if not is_other and not await healed(store, data_dir, chain_id, error, thoroughly=not is_its_own):
            raise
    return await asyncio.to_thread(work, await refreshed(store, data_dir, chain_id))


async def healed(store: Store, data_dir: Path, chain_id: str, error: Exception, *, thoroughly: bool = True) -> bool:
    """Make the repository anew if it is damaged; tells whether it was. Call it after an error that this would explain."""
    path = repository_path(data_dir, chain_id)
    if not await asyncio.to_thread(is_damaged, path, thoroughly=thoroughly):
        return False
    log.warning(
        "a repository for git is damaged; it is made anew", extra={"chain": chain_id, "error": type(error).__name__}
    )
    await asyncio.to_thread(delete_chain_files, data_dir, chain_id)
    await refreshed(store, data_dir, chain_id)
    return True


def is_damaged(path: Path, *, thoroughly: bool = True) -> bool:
    """Whether the files of a repository are not what was written; thoroughly: or something of its history is not there."""
    try:
        with closing(open_repository(path)) as repository:
            for pack in repository.object_store.packs:
                pack.data.check()
                pack.index.check()
            return thoroughly and not _is_whole(repository)
    except Exception:  # damaged files fail in many ways
        return True


def _is_whole(repository: "Repo") -> bool:
    if BRANCH not in repository.refs:  # type: ignore[operator]
        return True  # of a memory without versions; any other is made anew before it is read
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


def _identity(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0
