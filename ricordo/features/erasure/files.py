"""Files of a user in the data folder beside the database: clones of the memory, remotes, backups, other databases."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ricordo.domain.clock import SECOND
from ricordo.errors import Unavailable
from ricordo.features.erasure.receipts import Erasure
from ricordo.storage.chain_files import OWNER_FILE, delete_chain_files
from ricordo.storage.engine.work_folders import Sweep, is_unused, remove_database
from ricordo.storage.scrub import holds, is_half_copied

BACKUPS, REMOTES = "backups", "remotes"
# What a database has beside its file: doltlite's lock, the mark of its owner, and what SQLite would leave.
_BESIDE = (".{}-lock", ".{}-owner", "{}-journal", "{}-wal", "{}-shm")
_ALWAYS = (
    "Clones, agent files, exports and backups outside of this data folder. Ricordo cannot delete them.",
    "What model providers store of the requests that they received.",
    "What other people said about the user, and the agents' own blocks, because removing a version would change the ids of all "
    "later ones. `agents` counts the versions there that came from the user's turns.",
)


def erase_files(
    data_dir: Path, database: Path | None, erasure: Erasure, others: Sequence[str] = ()
) -> Erasure:
    """Remove repositories, remotes in the data folder and backups that hold the user; returns what was done. Raises Unavailable."""
    done = erasure.model_copy(deep=True)
    done.note_elsewhere(_ALWAYS)
    try:
        for chain_id in erasure.chains:
            done.files.update(
                {
                    _name(path, data_dir): "removed"
                    for path in delete_chain_files(data_dir, chain_id)
                }
            )
        _remove_remotes(data_dir, erasure, others, done)
        for path in _backups(data_dir, database):
            # What is no SQLite file, as a dump, cannot be looked into: one from before the user came is without them.
            is_theirs = holds(path, erasure.user_id) if path.suffix == ".db" else None
            if is_theirs is None:
                is_theirs = (
                    erasure.began_at is None or path.stat().st_mtime * SECOND >= erasure.began_at
                )
            if is_theirs:
                remove_database(path)
                done.files[_name(path, data_dir)] = "removed, since it held the user"
        for path in sorted(data_dir.glob("*.db")):
            if path == database or not holds(path, erasure.user_id):
                continue
            if is_half_copied(path) and is_unused(path):
                remove_database(path)
                done.files[_name(path, data_dir)] = (
                    "removed, since it was half a copy that held the user"
                )
            else:
                done.elsewhere.append(
                    f"{path.name} in the data folder is another database that holds the user. Forget them there too, with "
                    "RICORDO_DATABASE_URL naming it, or remove the file."
                )
    except OSError as error:
        raise Unavailable(
            f"{error.filename or data_dir} cannot be removed: {error.strerror}. Check the folder."
        ) from error
    return done


def note_sweep(done: Erasure, swept: Sweep, data_dir: Path) -> None:
    """Note what a sweep removed, and what it could not remove."""
    done.files.update(
        {_name(path, data_dir): "removed, since a killed process left it" for path in swept.removed}
    )
    done.note_elsewhere(
        f"{path} was left by a killed process and cannot be removed. It may hold the user: delete it."
        for path in swept.failed
    )


def without_password(address: str) -> str:
    scheme, slashes, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}" if slashes else address


def _remove_remotes(data_dir: Path, erasure: Erasure, others: Sequence[str], done: Erasure) -> None:
    """Remove the remotes that lie in our own folder; those elsewhere, and those that others use too, are named."""
    own = (data_dir / REMOTES).resolve()
    used = [path for path in map(_path_at, others) if path]
    for address, kind in sorted(erasure.remotes.items()):
        path = _path_at(address)
        if path is None or own not in path.parents:
            done.elsewhere.append(f"The memory's {kind} remote at {address} keeps a copy.")
        elif any(other in (path, *path.parents) or path in other.parents for other in used):
            done.elsewhere.append(
                f"The memory's {kind} remote at {address} is one of others too, so it was left. It keeps a copy: remove it, or "
                "the user's part of it."
            )
        else:
            for each in (path, *(path.with_name(beside.format(path.name)) for beside in _BESIDE)):
                if each.exists():
                    shutil.rmtree(
                        each
                    ) if each.is_dir() and not each.is_symlink() else each.unlink()
                    done.files[_name(each, own.parent)] = "removed"
    # Repositories whose remote was removed before still say whose they are.
    for marker in sorted(own.rglob(OWNER_FILE)):
        path = marker.parent
        is_used = any(other in (path, *path.parents) or path in other.parents for other in used)
        if marker.read_text("utf-8", "replace").strip() in erasure.chains and not is_used:
            shutil.rmtree(path)
            done.files[_name(path, own.parent)] = "removed"
    left = own.iterdir() if own.is_dir() else ()
    unused = [path for path in left if not any(path in (other, *other.parents) for other in used)]
    of_each = (path.rglob("*") if path.is_dir() else [path] for path in unused)
    if count := sum(
        any(file.is_file() and file.stat().st_size for file in files) for files in of_each
    ):
        done.elsewhere.append(
            f"{REMOTES} in the data folder holds things at which no memory is followed any more: {count}. Where one was a remote "
            "of the user's memory, removed before, it still has a copy: delete it."
        )


def _path_at(address: str) -> Path | None:
    """The file or folder of this machine that is at an address, with links followed; None where it is elsewhere."""
    try:
        parts = urlsplit(address)
        is_here = not parts.netloc and parts.path.startswith("/")
        # The path of a folder is what it is; in an address, as doltlite:///a%20b.db, some signs are written by their numbers.
        return Path(unquote(parts.path) if parts.scheme else address).resolve() if is_here else None
    except (OSError, RuntimeError, ValueError):
        return None


def _backups(data_dir: Path, database: Path | None) -> Iterator[Path]:
    for folder in sorted({data_dir / BACKUPS, *([database.parent / BACKUPS] if database else [])}):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.endswith(("-wal", "-shm", "-journal", ".lock")):
                yield path


def _name(path: Path, data_dir: Path) -> str:
    return str(path.relative_to(data_dir)) if path.is_relative_to(data_dir) else str(path)
