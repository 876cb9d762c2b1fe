"""Where a user's memory is kept in step elsewhere: git repositories, Dolt databases, what plugins bring."""

from fastapi import Response
from pydantic import Field, SecretStr

from ricordo.api.call import Call, Here, answer
from ricordo.api.models.base import Note, RequestModel, ResponseModel, stamp
from ricordo.api.routing import Routes
from ricordo.domain.remote import Access, Remote
from ricordo.errors import Invalid, NotFound
from ricordo.features.remotes import queries as remotes
from ricordo.features.remotes.service import add as add_remote
from ricordo.memory import user_memory
from ricordo.storage import jobs
from ricordo.storage.store import Transaction

router = Routes(prefix="/users/{user_id}/remotes", tags=["users' memory"])
_ADDRESS = 2_000


class RemoteBody(RequestModel):
    """Where memory shall be followed. A password may stand beside the address, and for Dolt in it; it is never shown."""

    kind: str = Field(max_length=100, description="git, dolt, or what a plugin offers.")
    address: str = Field(max_length=_ADDRESS)
    username: str | None = Field(
        None, max_length=255, description="With which name a git server is entered; git where it is left out."
    )
    password: SecretStr | None = Field(None, max_length=_ADDRESS, description="Kept encrypted.")
    shows_toml: bool = Field(
        False, description="For git: a branch `toml` with the blocks as TOML and what waits as JSON."
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, max_length=50, description="What a plugin's kind wants to know beside these."
    )


class RemoteShape(ResponseModel):
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
    kinds = here.runtime.remotes
    if body.kind not in kinds:
        raise Invalid(f'There are no remotes of the kind "{body.kind}". Use one of: {", ".join(sorted(kinds))}.')
    password = body.password.get_secret_value() if body.password else None
    options = {**body.options, **({"shows_toml": True} if body.shows_toml else {})}
    asked = Access(body.address, body.username, password, options)
    made = await add_remote(here.store, here.runtime.settings, here.scope, user_id, kinds[body.kind], asked)
    return answer(_shown(made))


@router.get("", response_model=list[RemoteShape])
async def list_remotes(here: Here, user_id: str) -> Response:
    """The remotes of her memory, the oldest first."""

    def read(tx: Transaction) -> list[Remote]:
        return remotes.of_chain(tx, user_memory.open_memory(tx, here.scope, user_id).chain.id)

    return answer([_shown(remote) for remote in await here.store.read(read)])


@router.post("/{remote_id}/follow", response_model=Note)
async def follow(here: Here, user_id: str, remote_id: str) -> Response:
    """Bring the remote and the memory together now, also where nothing changed in the memory."""

    def work(tx: Transaction) -> None:
        job = _found(tx, here, user_id, remote_id).job()
        if jobs.add(tx, job) is None:
            jobs.make_due(tx, job.kind, job.key or "")

    await here.store.write(work)
    return answer({"message": "The remote is brought up to date in the background."})


@router.delete("/{remote_id}", response_model=Note)
async def remove(here: Here, user_id: str, remote_id: str) -> Response:
    """Follow there no more. What is there stays there."""
    await here.store.write(lambda tx: remotes.remove(tx, _found(tx, here, user_id, remote_id)))
    return answer({"message": "The memory is followed there no more. What is there stays there."})


def _found(tx: Transaction, here: Call, user_id: str, remote_id: str) -> Remote:
    remote = remotes.get(tx, here.scope, remote_id)
    if remote.chain_id != user_memory.open_memory(tx, here.scope, user_id).chain.id:
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
