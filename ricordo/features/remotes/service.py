"""Remotes of users' memory: how one is added, and what every kind of remote needs.

The database is the truth: jobs keep a remote in sync with it, can be repeated and killed anywhere, and pull what the owner commits
at the remote. The kinds come from plugins (`ricordo.memory.remote_kind`); git and Dolt are built in.

The transaction that changes a memory adds the job of its remotes (`storage/versions.py`). A sweep is for what changes without that:
what the owner commits at the remote, titles, proposals that expire, and remotes that could not be reached for long.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import SYNC, Access, Remote
from ricordo.domain.scope import Scope, User
from ricordo.errors import Conflict, Invalid, LeaseLost, NotFound, RicordoError, Stale, Unavailable
from ricordo.features.remotes import queries
from ricordo.memory.remote_kind import RemoteKind
from ricordo.memory.user_memory import open_memory
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import jobs, users
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.jobs import FencedStore

# The setting that allows remotes at private addresses.
PRIVATE = "RICORDO_ALLOW_PRIVATE_REMOTES"
SWEEP = "memory_remotes_sweep"
_SYNC_AFTER = 600 * SECOND
_TRIES = 5
_AT_ONCE = 100
CLAIMED = (
    "{} holds another user's memory, also where its remote was removed. Choose another address, or empty it first if that memory "
    "is no longer needed."
)
# Paths in these lead to what processes have open.
_MAGIC = ("/proc", "/dev/fd")


class RemoteMoved(Exception):
    """What is at the remote is not any more what was seen there a moment ago; the sync begins again."""


async def add(
    store: Store, settings: Settings, scope: Scope, user_name: str, kind: RemoteKind, asked: Access
) -> Remote:
    """Add a remote to a user's memory and have it synced; the user is made where they are new.

    Raises Invalid, and Conflict where a memory has a remote there already; then nothing is made.
    """
    # What is at an address is pulled as this user's, so two memories at one address would become one.
    is_shared = getattr(kind, "is_shared", False)
    access = await asyncio.to_thread(kind.read, asked, settings)
    listed = await store.read(lambda tx: queries.of_kind(tx, kind.kind))
    claimed, aliases = await asyncio.to_thread(
        _folder_at, kind, access, [one.address for one in listed]
    )
    kept = {"username": access.username, "options": dict(access.options)}
    if access.password:
        kept["password"] = await asyncio.to_thread(
            Secret(settings.data_dir).encrypt, access.password
        )

    def work(tx: Transaction) -> Remote:
        chain = open_memory(tx, scope, user_name, makes=True).chain
        for one in (
            found
            for address in (access.address, *aliases)
            for found in queries.at(tx, kind.kind, address)
        ):
            if one.chain_id == chain.id:
                raise Conflict(f"{access.address} is a remote of this memory already.")
            if not is_shared or one.organization_id != chain.organization_id:
                raise Conflict(
                    f"{access.address} is a remote of another memory. Choose another address."
                )
        if claimed not in (None, chain.organization_id if is_shared else chain.id):
            raise Conflict(CLAIMED.format(access.address))
        filled = {name: value for name, value in kept.items() if value}
        id = new_id("remote")
        now = tx.clock.now()
        remote = Remote(
            id, chain.organization_id, chain.id, kind.kind, access.address, filled, created_at=now
        )
        queries.insert_one(tx, remote)
        jobs.add(tx, remote.job())
        return remote

    return await store.write(work)


async def add_for_all(
    runtime: Runtime,
    kind: RemoteKind,
    organization_id: str,
    asked: Access,
    is_left_out: Callable[[str], bool],
) -> None:
    """Add a remote at one address to each memory of the organization's users that lacks it; its password is not stored.

    Users with an identifier that `is_left_out` get none. Raises Invalid, Conflict where another organization has a remote there.
    """
    store = runtime.store
    access = await asyncio.to_thread(kind.read, asked, runtime.settings)
    listed = await store.read(lambda tx: queries.of_kind(tx, kind.kind))
    claimed, aliases = await asyncio.to_thread(
        _folder_at, kind, access, [one.address for one in listed]
    )
    addresses = (access.address, *aliases)
    is_others = any(
        one.organization_id != organization_id for one in listed if one.address in addresses
    )
    if is_others or claimed not in (None, organization_id):
        raise Conflict(CLAIMED.format(access.address))

    def work(tx: Transaction, after: int) -> int | None:
        found = queries.chains_without(
            tx, organization_id, kind.kind, addresses, after=after, most=_AT_ONCE
        )
        for row in found:
            if not is_left_out(row.identifier or ""):
                id = new_id("remote")
                now = tx.clock.now()
                made = Remote(
                    id, organization_id, row.id, kind.kind, access.address, created_at=now
                )
                queries.insert_one(tx, made)
                jobs.add(tx, made.job())
        return found[-1].seq if found else None

    last: int | None = 0
    while last is not None:
        last = await store.write(partial(work, after=last))


@dataclass(frozen=True, slots=True)
class FolderMarker:
    """The file that says whose a folder of this machine is that serves as a remote, for as long as `content` is there.

    It stays where the remote is removed: what is in the folder is of that memory, and pulled into no other.
    """

    path: Path
    content: Path

    def owner(self) -> str | None:
        """Whose the folder is: the id that was noted; None where nobody's is noted, or where it was emptied."""
        try:
            return (self.path.read_text("utf-8").strip() or None) if self.content.exists() else None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(
                f"{self.path} cannot be read ({type(error).__name__}). Check it."
            ) from error

    def claim(self, owner: str) -> None:
        """Note whose the folder is. Raises Conflict where it is another's already."""
        found = self.owner()
        if found is None:
            try:
                if not self.content.exists():
                    self.path.unlink(missing_ok=True)
                self._write(owner)
            except OSError as error:
                raise Unavailable(
                    f"{self.path} cannot be written ({error.strerror}). Check the folder."
                ) from error
            found = self.path.read_text("utf-8").strip() or owner
        if found != owner:
            raise Conflict(CLAIMED.format(self.path.parent))

    def _write(self, owner: str) -> None:
        """Make the file, whole or not at all, unless it is there."""
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        try:
            draft.write_text(f"{owner}\n", "utf-8")
            with suppress(FileExistsError):
                try:
                    os.link(draft, self.path)
                except FileExistsError:
                    raise
                except OSError:  # a file system without links
                    with self.path.open("x", encoding="utf-8") as file:
                        file.write(f"{owner}\n")
        finally:
            draft.unlink(missing_ok=True)


def _folder_at(
    kind: RemoteKind, access: Access, addresses: Sequence[str]
) -> tuple[str | None, list[str]]:
    """Whose a folder of this machine is, and those of the addresses that name the same folder in another way."""
    find = getattr(kind, "marker", None)
    marker: FolderMarker | None = find(access.address) if find else None
    if marker is None or not marker.content.exists():
        return None, []
    aliases = []
    for address in addresses:
        with suppress(OSError, RicordoError):
            other = find(address) if find and address != access.address else None
            if other and other.content.samefile(marker.content):
                aliases.append(address)
    return marker.owner(), aliases


def access_of(remote: Remote, secret: Secret) -> Access:
    """A remote's address with its password. Raises Unavailable where this server cannot decrypt that."""
    sealed = remote.settings.get("password")
    password = secret.decrypt(sealed) if sealed else None
    return Access(remote.address, remote.settings.get("username"), password, remote.options)


async def sync(store: Store, settings: Settings, kind: RemoteKind, remote: Remote) -> Remote:
    """Bring a remote and its memory together, and store how that went; returns the remote as stored. Raises what the kind does."""
    # What is written during the sync may be in it or not, so the remote counts as synced up to its start.
    started = store.clock.now()
    try:
        access = await asyncio.to_thread(access_of, remote, Secret(settings.data_dir))
        done = replace(await kind.sync(store, remote, access, settings), last_at=started)
    except LeaseLost:
        raise
    except Exception as error:
        is_ours = isinstance(error, RicordoError)
        message = (
            str(error)
            if is_ours
            else f"It failed ({type(error).__name__}). The server's log says more."
        )
        await store.write(lambda tx: note_error(tx, remote, message, started))
        raise
    await store.write(lambda tx: queries.note(tx, done))
    return done


def note_error(tx: Transaction, remote: Remote, message: str, at: int) -> None:
    stored = queries.get(tx, Scope(remote.organization_id), remote.id)
    queries.note(tx, replace(stored, last_error=message, last_at=at))


async def until_settled(attempt: Callable[[], Awaitable[Remote]]) -> Remote:
    """What an attempt at a sync returns; it begins again where the remote or the memory moved meanwhile. Raises Unavailable."""
    for _ in range(_TRIES):
        with suppress(RemoteMoved, Stale):
            return await attempt()
    raise Unavailable(
        "The memory and its remote change faster than they can be brought together. This is tried again."
    )


def owner_of(tx: Transaction, remote: Remote) -> User:
    """The user whose memory it is. Raises NotFound where that was erased."""
    return users.require(tx, Scope(remote.organization_id), queries.owner_of(tx, remote.chain_id))


async def require_lease(store: Store) -> None:
    """Raise LeaseLost where another server has taken over the job that this store belongs to, or it was cancelled."""
    await store.write(lambda _tx: None)  # the store itself checks the lease


def require_folder(path: Path, folders: Sequence[Path]) -> Path:
    """Return a path with every link resolved. Raises Invalid where it lies in none of the folders that may hold remotes."""
    try:
        real = path.resolve()
        if any(Path(os.path.normpath(path)).is_relative_to(folder) for folder in _MAGIC):
            raise Invalid(
                f"{path} leads through what a process has open. Give the folder's own path."
            )
        is_inside = any(
            real != folder and real.is_relative_to(folder) for folder in map(Path.resolve, folders)
        )
    except (OSError, RuntimeError):  # links that form a circle
        is_inside = False
    except ValueError as error:  # a character that no path can have
        raise Invalid(f"The path cannot be used ({error}). Choose another.") from error
    if not is_inside:
        raise Invalid(
            f"{path} lies outside of the folders in which remotes may lie ({', '.join(map(str, folders)) or 'none'}). Choose a "
            "path in one of them, or let the operator name others in RICORDO_REMOTE_FOLDERS."
        )
    try:
        real.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:  # too long, or a file where a folder should be
        raise Invalid(f"{path} cannot be used ({error.strerror}). Choose another.") from error
    return real


async def _sync(runtime: Runtime, job: Job, _report: Report) -> None:
    scope = Scope(job.organization_id)
    remote_id = job.payload["remote_id"]
    try:
        remote = await runtime.store.read(lambda tx: queries.get(tx, scope, remote_id))
    except NotFound:
        return  # it was removed, or its user was erased
    kind = runtime.remotes.get(remote.kind)
    if kind is None:
        missing = Invalid(
            f'There are no remotes of the kind "{remote.kind}" here. Install its plugin, or remove it.'
        )
        await runtime.store.write(lambda tx: note_error(tx, remote, str(missing), tx.clock.now()))
        raise missing
    try:
        await sync(FencedStore(runtime.store, job), runtime.settings, kind, remote)
    except LeaseLost:
        # A server that froze in the middle may have written something older there since: the next job syncs once more.
        await runtime.store.write(lambda tx: jobs.add(tx, remote.job()))
        raise


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    def work(tx: Transaction) -> None:
        for remote in queries.due(tx, list(runtime.remotes), tx.clock.now() - _SYNC_AFTER):
            jobs.add(tx, remote.job())

    await runtime.store.write(work)


HANDLERS = (JobHandler(SYNC, _sync), JobHandler(SWEEP, _sweep, every_seconds=60.0))
