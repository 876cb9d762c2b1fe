"""Add, sync and sweep the remotes of users' memories.

The database is authoritative. Jobs push memories to the remotes and pull the owner's commits from
them. A job may be killed at any point and repeated. The kinds come from plugins
(`ricordo.memory.remote_kind`); git and Dolt are built in.

The transaction that changes a memory adds the job for its remotes (`storage/versions.py`). A sweep
finds other changes: the owner's commits at the remote, titles, expired proposals, and remotes that
were unreachable for long.
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
from ricordo.memory.remote_kind import RemoteKind
from ricordo.memory.user_memory import open_memory
from ricordo.new_files import create_once
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import jobs, remotes, users
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.jobs import FencedStore

# The setting that allows remotes at private addresses.
PRIVATE = "RICORDO_ALLOW_PRIVATE_REMOTES"
SWEEP = "memory_remotes_sweep"
_SYNC_AFTER = 600 * SECOND
_TRIES = 5
_AT_ONCE = 100
CLAIMED = (
    "{} holds another memory, a user's or an organization's, even if its remote was removed. Choose "
    "another address, or empty this address first if that memory is no longer needed."
)
# Paths in these folders lead to open files of processes, and are refused.
_MAGIC = ("/proc", "/dev/fd")


class RemoteMoved(Exception):
    """The remote has changed since it was read, so the sync starts again."""


async def add(
    store: Store,
    settings: Settings,
    scope: Scope,
    user_name: str,
    kind: RemoteKind,
    requested: Access,
) -> Remote:
    """Add a remote to a user's memory, and start its first sync.

    A user who does not exist yet is created. After an error, nothing is created.

    Args:
        store: The store.
        settings: The settings of the server.
        scope: The caller.
        user_name: The user's id or identifier.
        kind: The kind of the remote.
        requested: The access as the caller gave it. The password is stored encrypted.

    Raises:
        Invalid: if the address is not allowed, or no user can have this name.
        Conflict: if another memory has a remote there.
        NotFound: if the caller may not create or see the user.
        Unavailable: if the folder cannot be read.
    """
    # The content of an address is pulled into the memory, so two memories with one address would
    # merge.
    is_shared = getattr(kind, "is_shared", False)
    access = await asyncio.to_thread(kind.read, requested, settings)
    listed = await store.read(lambda tx: remotes.of_kind(tx, kind.kind))
    claimed, aliases = await asyncio.to_thread(
        _folder_at, kind, access, [remote.address for remote in listed]
    )
    stored_settings = {"username": access.username, "options": dict(access.options)}
    if access.password:
        stored_settings["password"] = await asyncio.to_thread(
            Secret(settings.data_dir).encrypt, access.password
        )

    def work(tx: Transaction) -> Remote:
        chain = open_memory(tx, scope, user_name, makes=True).chain
        for existing in (
            existing
            for address in (access.address, *aliases)
            for existing in remotes.at(tx, kind.kind, address)
        ):
            if existing.chain_id == chain.id:
                raise Conflict(f"{access.address} is a remote of this memory already.")
            if not is_shared or existing.organization_id != chain.organization_id:
                raise Conflict(
                    f"{access.address} is a remote of another memory. Choose another address."
                )
        if is_shared:
            claimant = chain.organization_id
        else:
            claimant = chain.id
        if claimed not in (None, claimant):
            raise Conflict(CLAIMED.format(access.address))
        remote = Remote(
            new_id("remote"),
            chain.organization_id,
            chain_id=chain.id,
            kind=kind.kind,
            address=access.address,
            settings={name: setting for name, setting in stored_settings.items() if setting},
            created_at=tx.clock.now(),
        )
        remotes.insert_one(tx, remote)
        jobs.add(tx, remote.job())
        return remote

    return await store.write(work)


async def add_for_all(
    runtime: Runtime,
    kind: RemoteKind,
    organization_id: str,
    requested: Access,
    is_left_out: Callable[[str], bool],
) -> None:
    """Add a remote at one address to each memory of an organization.

    A memory that already has the remote is not changed. The password is not stored.

    Args:
        runtime: The running server.
        kind: The kind of the remote, of which several memories may have one address.
        organization_id: The organization.
        requested: The access that the operator configured.
        is_left_out: A function that returns True for the identifiers of users who get no remote. A
            user without an identifier is passed as "".

    Raises:
        Invalid: if the address is not allowed.
        Conflict: if another organization has a remote there.
        Unavailable: if the folder cannot be read.
    """
    store = runtime.store
    access = await asyncio.to_thread(kind.read, requested, runtime.settings)
    listed = await store.read(lambda tx: remotes.of_kind(tx, kind.kind))
    claimed, aliases = await asyncio.to_thread(
        _folder_at, kind, access, [remote.address for remote in listed]
    )
    addresses = (access.address, *aliases)
    is_others = any(
        remote.organization_id != organization_id
        for remote in listed
        if remote.address in addresses
    )
    if is_others or claimed not in (None, organization_id):
        raise Conflict(CLAIMED.format(access.address))

    def work(tx: Transaction, after: int) -> int | None:
        rows = remotes.chains_without(
            tx, organization_id, kind.kind, addresses, after=after, limit=_AT_ONCE
        )
        for row in rows:
            if is_left_out(row.identifier or ""):
                continue
            remote = Remote(
                new_id("remote"),
                organization_id,
                chain_id=row.id,
                kind=kind.kind,
                address=access.address,
                created_at=tx.clock.now(),
            )
            remotes.insert_one(tx, remote)
            jobs.add(tx, remote.job())
        return rows[-1].seq if rows else None

    last: int | None = 0
    while last is not None:
        last = await store.write(partial(work, after=last))


@dataclass(frozen=True, slots=True)
class FolderMarker:
    """A file that names the owner of a local folder.

    The folder is used as a remote, and its content must not be pulled into another memory. So the
    file stays when the remote is removed. The file counts as long as `content` exists.
    """

    path: Path
    content: Path

    def owner(self) -> str | None:
        """Return the id of the owner in the file, or None.

        Returns None also if the folder was emptied.
        """
        try:
            if not self.content.exists():
                return None
            return self.path.read_text("utf-8").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(
                f"{self.path} cannot be read ({type(error).__name__}). Check it."
            ) from error

    def claim(self, owner: str) -> None:
        """Write the owner of the folder into the file.

        Args:
            owner: The id of a chain, or of an organization for a remote of several memories.

        Raises:
            Conflict: if the folder already belongs to another owner.
            Unavailable: if the file cannot be read or written.
        """
        noted_owner = self.owner()
        if noted_owner is None:
            try:
                if not self.content.exists():
                    self.path.unlink(missing_ok=True)
                self._write(owner)
            except OSError as error:
                raise Unavailable(
                    f"{self.path} cannot be written ({error.strerror}). Check the folder."
                ) from error
            noted_owner = self.path.read_text("utf-8").strip()
            if not noted_owner:  # as an earlier version could leave it after a kill
                raise Unavailable(
                    f"{self.path} is empty. If the folder belongs to no other memory, delete this "
                    "file and try again."
                )
        if noted_owner != owner:
            raise Conflict(CLAIMED.format(self.path.parent))

    def _write(self, owner: str) -> None:
        """Create the file, completely or not at all, if it does not exist."""
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        try:
            draft.write_text(f"{owner}\n", "utf-8")
            create_once(draft, self.path)
        finally:
            draft.unlink(missing_ok=True)


def _folder_at(
    kind: RemoteKind, access: Access, addresses: Sequence[str]
) -> tuple[str | None, list[str]]:
    """Return the owner of a local folder, and the alias addresses of the folder.

    An alias leads to the same folder in another way, for example through a link.
    """
    find = getattr(kind, "marker", None)
    if find:
        marker: FolderMarker | None = find(access.address)
    else:
        marker = None
    if marker is None or not marker.content.exists():
        return None, []
    aliases = []
    for address in addresses:
        with suppress(OSError, RicordoError):
            if find and address != access.address:
                other = find(address)
            else:
                other = None
            if other and other.content.samefile(marker.content):
                aliases.append(address)
    return marker.owner(), aliases


def access_of(remote: Remote, secret: Secret) -> Access:
    """Return a remote's address with its password.

    Args:
        remote: The stored remote.
        secret: The secret key that encrypted the password.

    Raises:
        Unavailable: if this server cannot decrypt the password.
    """
    sealed = remote.settings.get("password")
    password = secret.decrypt(sealed) if sealed else None
    return Access(remote.address, remote.settings.get("username"), password, remote.options)


async def sync(store: Store, settings: Settings, kind: RemoteKind, remote: Remote) -> Remote:
    """Sync a remote and its memory, and store the result.

    After an error, the error is stored with the remote, except LeaseLost.

    Args:
        store: The store, which checks the lease of the sync's job at each write.
        settings: The settings of the server.
        kind: The kind of the remote.
        remote: The remote with its progress so far.

    Returns:
        The stored remote.

    Raises:
        Unavailable: if this server cannot decrypt the password.
        RicordoError: as the kind's `sync` does.
    """
    # A sync may miss changes made during it, so the remote counts as synced only up to the sync's
    # start.
    started = store.clock.now()
    try:
        access = await asyncio.to_thread(access_of, remote, Secret(settings.data_dir))
        synced = replace(await kind.sync(store, remote, access, settings), last_at=started)
    except LeaseLost:
        raise
    except Exception as error:
        message = f"The sync failed ({type(error).__name__}). The server's log has the details."
        if isinstance(error, RicordoError):
            message = str(error)
        await store.write(lambda tx: note_error(tx, remote, message, started))
        raise
    await store.write(lambda tx: remotes.note(tx, synced))
    return synced


def note_error(tx: Transaction, remote: Remote, message: str, at: int) -> None:
    """Store an error with a remote. Its progress stays.

    Args:
        tx: The transaction.
        remote: The remote, which is read again.
        message: A sentence for people.
        at: The time of the sync in microseconds UTC.

    Raises:
        NotFound: The remote was removed.
    """
    stored = remotes.get(tx, Scope(remote.organization_id), remote.id)
    remotes.note(tx, replace(stored, last_error=message, last_at=at))


async def until_settled(attempt: Callable[[], Awaitable[Remote]]) -> Remote:
    """Repeat a sync while the remote or the memory changes meanwhile.

    Args:
        attempt: Syncs once. It raises RemoteMoved or Stale after such a change.

    Raises:
        Unavailable: after five such attempts.
    """
    for _ in range(_TRIES):
        with suppress(RemoteMoved, Stale):
            return await attempt()
    raise Unavailable(
        "The memory and its remote change faster than they can be merged. The sync is tried again."
    )


def owner_of(tx: Transaction, remote: Remote) -> User:
    """Return the memory's user.

    Args:
        tx: The transaction.
        remote: The remote of the memory.

    Raises:
        NotFound: The memory was erased.
    """
    return users.require(tx, Scope(remote.organization_id), remotes.owner_of(tx, remote.chain_id))


async def require_lease(store: Store) -> None:
    """Raise LeaseLost if the store's job was cancelled or taken over by another server.

    Args:
        store: The store of a running job.

    Raises:
        LeaseLost: The job was cancelled, or another server took it over.
    """
    await store.write(lambda _tx: None)  # the store checks the lease itself


def require_folder(path: Path, folders: Sequence[Path]) -> Path:
    """Return a path with every link resolved.

    Args:
        path: The path to check; it need not exist.
        folders: The folders that may contain remotes.

    Raises:
        Invalid: if the path is in none of the folders, or cannot be used.
    """
    try:
        real = path.resolve()
        if any(Path(os.path.normpath(path)).is_relative_to(folder) for folder in _MAGIC):
            raise Invalid(
                f"{path} leads through the open files of a process. Give the folder's real path."
            )
        is_inside = any(
            real != folder and real.is_relative_to(folder) for folder in map(Path.resolve, folders)
        )
    except (OSError, RuntimeError):  # links that form a circle
        is_inside = False
    except ValueError as error:  # a character that no path can contain
        raise Invalid(f"The path cannot be used ({error}). Choose another.") from error
    if not is_inside:
        raise Invalid(
            f"{path} is outside of the folders for remotes "
            f"({', '.join(map(str, folders)) or 'none'}). Choose a path in one of them. The "
            "operator can name others in RICORDO_REMOTE_FOLDERS."
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
        remote = await runtime.store.read(lambda tx: remotes.get(tx, scope, remote_id))
    except NotFound:
        return  # the remote was removed, or its user was erased
    kind = runtime.remotes.get(remote.kind)
    if kind is None:
        missing = Invalid(
            f'There are no remotes of the kind "{remote.kind}" here. Install its plugin, or remove '
            "it."
        )
        await runtime.store.write(lambda tx: note_error(tx, remote, str(missing), tx.clock.now()))
        raise missing
    try:
        await sync(FencedStore(runtime.store, job), runtime.settings, kind, remote)
    except LeaseLost:
        # A server that froze during a sync may write older content to the remote later. So the next
        # job syncs once more.
        await runtime.store.write(lambda tx: jobs.add(tx, remote.job()))
        raise


async def _sweep(runtime: Runtime, _job: Job, _report: Report) -> None:
    def work(tx: Transaction) -> None:
        for remote in remotes.due(tx, list(runtime.remotes), tx.clock.now() - _SYNC_AFTER):
            jobs.add(tx, remote.job())

    await runtime.store.write(work)


HANDLERS = (JobHandler(SYNC, _sync), JobHandler(SWEEP, _sweep, every_seconds=60.0))
