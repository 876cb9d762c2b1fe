"""Where a user's memory is kept in step elsewhere: git repositories and Dolt databases, added, listed and taken away."""

import asyncio
from typing import Literal

from fastapi import Response
from pydantic import Field, SecretStr

from ricordo.api.bodies import WholeBody
from ricordo.api.call import Call, Here, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.schemas import Note, Shape
from ricordo.api.wire.times import stamp
from ricordo.domain.remote import Remote
from ricordo.errors import NotFound
from ricordo.integrations import dolt, git
from ricordo.integrations.dolt.place import read_place
from ricordo.integrations.git.transport import Place
from ricordo.memory import owning
from ricordo.secret import Secret
from ricordo.storage import jobs, remotes
from ricordo.storage.store import Transaction

router = Routes(prefix="/users/{user_id}/remotes", tags=["users' memory"])
_ADDRESS = 2_000


class RemoteBody(WholeBody):
    """Where memory shall be followed. A password may stand beside the address, and for Dolt in it; it is never shown."""

    kind: Literal["git", "dolt"]
    address: str = Field(max_length=_ADDRESS)
    username: str = Field("git", max_length=255, description="With which name a git server is entered.")
    password: SecretStr | None = Field(None, max_length=_ADDRESS, description="Kept encrypted.")
    shows_toml: bool = Field(
        False, description="For git: a branch `toml` with the blocks as TOML and what waits as JSON."
    )


class RemoteShape(Shape):
    """One remote: `followed` is the number of the last version that is there, `last_error` why it does not follow just now."""

    id: str
    kind: str
    address: str
    followed: int
    last_error: str | None
    last_at: str | None
    created_at: str


@router.put("", response_model=RemoteShape)
async def add(here: Here, user_id: str, body: RemoteBody) -> Response:
    """Let the memory be followed at a place, from now on; she is made where she is new. What is there is taken over first."""
    settings = here.runtime.settings
    password = body.password.get_secret_value() if body.password else None
    allow_private = settings.allow_private_callbacks
    if body.kind == "dolt":
        place = await asyncio.to_thread(read_place, body.address, password, allow_private=allow_private)
        chain_id = await _chain(here, user_id)
        made = await dolt.add_remote(here.store, Secret(settings.data_dir), here.scope, chain_id, place)
    else:
        repository = Place(body.address, body.username, password, allow_private)
        repository.require_usable()
        chain_id = await _chain(here, user_id)
        made = await git.add_remote(
            here.store, settings.data_dir, here.scope, chain_id, repository, shows_toml=body.shows_toml
        )
    return answer(_shown(made))


@router.get("", response_model=list[RemoteShape])
async def list_remotes(here: Here, user_id: str) -> Response:
    """The remotes of her memory, the oldest first."""

    def read(tx: Transaction) -> list[Remote]:
        return remotes.of_chain(tx, owning.open_memory(tx, here.scope, user_id).chain.id)

    return answer([_shown(remote) for remote in await here.store.read(read)])


@router.post("/{remote_id}/follow", response_model=Note)
async def follow(here: Here, user_id: str, remote_id: str) -> Response:
    """Bring the remote and the memory together as soon as possible, instead of at the next sweep."""

    def work(tx: Transaction) -> None:
        remote = _found(tx, here, user_id, remote_id)
        jobs.add(tx, dolt.job_of(remote) if remote.kind == dolt.KIND else git.job_of(remote))

    await here.store.write(work)
    return answer({"message": "The remote is brought up to date in the background."})


@router.delete("/{remote_id}", response_model=Note)
async def remove(here: Here, user_id: str, remote_id: str) -> Response:
    """Follow there no more. What is there stays there."""
    await here.store.write(lambda tx: remotes.remove(tx, _found(tx, here, user_id, remote_id)))
    return answer({"message": "The memory is followed there no more. What is there stays there."})


async def _chain(here: Call, user_id: str) -> str:
    return await here.store.write(lambda tx: owning.open_memory(tx, here.scope, user_id, makes=True).chain.id)


def _found(tx: Transaction, here: Call, user_id: str, remote_id: str) -> Remote:
    remote = remotes.get(tx, here.scope, remote_id)
    if remote.chain_id != owning.open_memory(tx, here.scope, user_id).chain.id:
        raise NotFound(f"Remote with ID {remote_id} not found")
    return remote


def _shown(remote: Remote) -> dict[str, object]:
    return {
        "id": remote.id,
        "kind": remote.kind,
        "address": remote.address,
        "followed": remote.followed,
        "last_error": remote.last_error,
        "last_at": stamp(remote.last_at),
        "created_at": stamp(remote.created_at),
    }
