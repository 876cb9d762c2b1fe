"""Remotes of users' memory, of whatever kind: how one is added, and what is common to following them.

A kind is what a plugin offers by its hook `memory_remotes`; git and Dolt are two (see integrations/). The database is the truth: a
remote follows it, by jobs that can be repeated and killed anywhere, and what its owner commits there is taken over.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from ricordo.domain.ids import new_id
from ricordo.domain.remote import Access, Remote
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, LeaseLost, RicordoError
from ricordo.memory.owning import open_memory
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import jobs, remotes
from ricordo.storage.store import Store, Transaction

# The setting that lets remotes be at private addresses.
PRIVATE = "RICORDO_ALLOW_PRIVATE_REMOTES"


@runtime_checkable
class RemoteKind(Protocol):
    """One kind of remote; `kind` is its name, as in `{"kind": "git"}`.

    Where a place may follow the memories of several users of an organisation, as a database does, `is_shared` is True.
    """

    kind: str

    def read(self, asked: Access, settings: Settings) -> Access:
        """The access as it is to be kept, with a password that stood in the address beside it. Called in a thread.

        Raises Invalid where it can be no remote, or may not be one by the operator's settings.
        """
        ...

    async def follow(self, store: Store, remote: Remote, access: Access, settings: Settings) -> Remote:
        """Bring the remote and the memory together; returns the remote with `followed`, `seen` and `last_error` as they are then.

        Raises Unavailable where it cannot be reached, Conflict or Invalid where what is there cannot be taken over. Once the job is
        another server's, each write to `store` raises LeaseLost: `require_held` asks before the remote is written to.
        """
        ...


async def add(
    store: Store, settings: Settings, scope: Scope, user_name: str, kind: RemoteKind, asked: Access
) -> Remote:
    """Let a user's memory be followed there, from now on; she is made where she is new.

    Raises Invalid, and Conflict where that place follows it already, or somebody else's memory; then nothing is made.
    """
    # What is at a place is taken over as hers, so two memories at one would become one.
    is_shared = getattr(kind, "is_shared", False)
    access = await asyncio.to_thread(kind.read, asked, settings)
    kept = {"username": access.username, "options": dict(access.options)}
    if access.password:
        kept["password"] = await asyncio.to_thread(Secret(settings.data_dir).encrypt, access.password)

    def work(tx: Transaction) -> Remote:
        chain = open_memory(tx, scope, user_name, makes=True).chain
        for one in remotes.at(tx, kind.kind, access.address):
            if one.chain_id == chain.id:
                raise Conflict(f"{access.address} follows this memory already.")
            if not is_shared or one.organization_id != chain.organization_id:
                raise Conflict(f"{access.address} follows somebody else's memory. Choose a place of its own.")
        filled = {name: value for name, value in kept.items() if value}
        id, now = new_id("remote"), tx.clock.now()
        remote = Remote(id, chain.organization_id, chain.id, kind.kind, access.address, filled, created_at=now)
        remotes.insert_one(tx, remote)
        jobs.add(tx, remote.job())
        return remote

    return await store.write(work)


def access_of(remote: Remote, secret: Secret) -> Access:
    """Where a remote is, with its password. Raises Unavailable where this server cannot read that."""
    sealed = remote.settings.get("password")
    password = secret.decrypt(sealed) if sealed else None
    return Access(remote.address, remote.settings.get("username"), password, remote.options)


async def follow(store: Store, settings: Settings, kind: RemoteKind, remote: Remote) -> Remote:
    """Bring a remote and its memory together, and note how that went; returns the remote as noted. Raises what the kind does."""
    # What is written while it follows may be in it or not, so it counts as followed up to here.
    started = store.clock.now()
    try:
        access = await asyncio.to_thread(access_of, remote, Secret(settings.data_dir))
        done = replace(await kind.follow(store, remote, access, settings), last_at=started)
    except LeaseLost:
        raise
    except Exception as error:
        is_ours = isinstance(error, RicordoError)
        said = str(error) if is_ours else f"It failed ({type(error).__name__}). The server's log says more."
        await store.write(lambda tx: note_error(tx, remote, said, started))
        raise

    def note(tx: Transaction) -> Remote:
        remotes.note(tx, done)
        return done

    return await store.write(note)


async def require_held(store: Store) -> None:
    """Raise LeaseLost where the job that this store was given to is another server's by now, or was cancelled."""

    def ask(_tx: Transaction) -> None:
        """Nothing: it is the store that asks."""

    await store.write(ask)


def require_folder(path: Path, folders: Sequence[Path]) -> None:
    """Raise Invalid where a path, with every link in it followed, lies in none of the folders in which remotes may lie."""
    try:
        real = path.resolve()
        is_inside = any(real != folder and real.is_relative_to(folder) for folder in map(Path.resolve, folders))
    except (OSError, RuntimeError):  # links that lead in a circle
        is_inside = False
    except ValueError as error:  # a sign that no path can have
        raise Invalid(f"The path cannot be used ({error}). Choose another.") from error
    if not is_inside:
        raise Invalid(
            f"{path} lies outside of the folders in which remotes may lie ({', '.join(map(str, folders)) or 'none'}). Choose a "
            "place in one of them, or let the operator name others in RICORDO_REMOTE_FOLDERS."
        )
    try:
        real.lstat()
    except FileNotFoundError:
        return
    except OSError as error:  # too long, or a file where a folder should be
        raise Invalid(f"{path} cannot be used ({error.strerror}). Choose another.") from error


def note_error(tx: Transaction, remote: Remote, said: str, at: int) -> None:
    """Note why it failed, and leave how far it came as that was noted on the way."""
    there = remotes.get(tx, Scope(remote.organization_id), remote.id)
    remotes.note(tx, replace(there, last_error=said, last_at=at))
