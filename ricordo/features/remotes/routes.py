"""The remotes of a user's memory over HTTP: git repositories, Dolt databases, what plugins bring."""

from fastapi import Response
from pydantic import Field, SecretStr

from ricordo.api.call import Here, RequestContext, answer
from ricordo.api.models.base import NoteResponse, RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes
from ricordo.domain.remote import Access, Remote
from ricordo.errors import Invalid, NotFound
from ricordo.features.remotes import queries, service
from ricordo.memory import user_memory
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/users/{user_id}/remotes", tags=["users' memory"])
_ADDRESS = 2_000


class RemoteRequest(RequestModel):
    """A new remote. A password may be given beside the address, and for Dolt in it; it is never shown."""

    kind: str = Field(max_length=100, description="git, dolt, or what a plugin offers.")
    address: str = Field(max_length=_ADDRESS)
    username: str | None = Field(
        None, max_length=255, description="User name at a git server; git where it is left out."
    )
    password: SecretStr | None = Field(None, max_length=_ADDRESS, description="Kept encrypted.")
    shows_toml: bool = Field(
        False, description="For git: a branch `toml` with the blocks as TOML and what waits as JSON."
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, max_length=50, description="Options of a plugin's kind."
    )


class RemoteResponse(ResponseModel):
    """One remote: `followed` is the number of the last version that is there, `last_error` why the last sync failed."""

    id: str
    kind: str
    address: str
    followed: int
    last_error: str | None
    last_at: Timestamp | None
    created_at: Timestamp


@router.put("", response_model=RemoteResponse)
async def add(here: Here, user_id: str, body: RemoteRequest) -> Response:
    """Add a remote and keep it in sync from now on; the user is made where they are new. What is there is pulled first."""
    kinds = here.runtime.remotes
    if body.kind not in kinds:
        raise Invalid(f'There are no remotes of the kind "{body.kind}". Use one of: {", ".join(sorted(kinds))}.')
    password = body.password.get_secret_value() if body.password else None
    options = {**body.options, **({"shows_toml": True} if body.shows_toml else {})}
    asked = Access(body.address, body.username, password, options)
    made = await service.add(here.store, here.runtime.settings, here.scope, user_id, kinds[body.kind], asked)
    return answer(RemoteResponse.of(made))


@router.get("", response_model=list[RemoteResponse])
async def list_remotes(here: Here, user_id: str) -> Response:
    """The remotes of the user's memory, the oldest first."""

    def read(tx: Transaction) -> list[Remote]:
        return queries.of_chain(tx, user_memory.open_memory(tx, here.scope, user_id).chain.id)

    return answer([RemoteResponse.of(remote) for remote in await here.store.read(read)])


@router.post("/{remote_id}/follow", response_model=NoteResponse)
async def sync(here: Here, user_id: str, remote_id: str) -> Response:
    """Sync the remote and the memory now, also where nothing changed in the memory."""

    def work(tx: Transaction) -> None:
        job = _find(tx, here, user_id, remote_id).job()
        if jobs.add(tx, job) is None:
            jobs.make_due(tx, job.kind, job.key or "")

    await here.store.write(work)
    return answer({"message": "The remote is brought up to date in the background."})


@router.delete("/{remote_id}", response_model=NoteResponse)
async def remove(here: Here, user_id: str, remote_id: str) -> Response:
    """Remove a remote. What is there stays there."""
    await here.store.write(lambda tx: queries.remove(tx, _find(tx, here, user_id, remote_id)))
    return answer({"message": "The memory is followed there no more. What is there stays there."})


def _find(tx: Transaction, here: RequestContext, user_id: str, remote_id: str) -> Remote:
    remote = queries.get(tx, here.scope, remote_id)
    if remote.chain_id != user_memory.open_memory(tx, here.scope, user_id).chain.id:
        raise NotFound(f"Remote with ID {remote_id} not found")
    return remote
