"""The remotes of a user's memory over HTTP, of all kinds."""

from collections.abc import Sequence

from pydantic import Field, SecretStr

from ricordo.api.call import RequestContext, note
from ricordo.api.models.base import NoteResponse, RequestModel, ResponseModel, Timestamp
from ricordo.api.routing import Routes, needs
from ricordo.domain.remote import Access, Remote
from ricordo.domain.text import Json
from ricordo.errors import Invalid, NotFound
from ricordo.features.sync.remotes import service
from ricordo.memory import user_memory
from ricordo.storage import jobs, remotes
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/users/{user_id}/remotes", tags=["users' memory"], scope="memory")
_ADDRESS = 2_000


class RemoteRequest(RequestModel):
    """A new remote.

    A Dolt address may also contain the password; it is never shown.
    """

    kind: str = Field(max_length=100, description="git, dolt, or a plugin's kind.")
    address: str = Field(max_length=_ADDRESS)
    username: str | None = Field(
        None, max_length=255, description="User name at a git server; by default `git`."
    )
    password: SecretStr | None = Field(None, max_length=_ADDRESS, description="Kept encrypted.")
    shows_toml: bool = Field(
        False,
        description="For git: push a branch `toml` with the blocks as TOML and open proposals as JSON.",
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, max_length=50, description="Options of a plugin's kind."
    )


class RemoteResponse(ResponseModel):
    """One remote.

    `followed` is the number of the newest version at the remote. `last_error` is the reason why the
    last sync failed, or names conflicts that wait for the owner.
    """

    id: str
    kind: str
    address: str
    followed: int
    last_error: str | None
    last_at: Timestamp | None
    created_at: Timestamp


@router.put("", response_model=RemoteResponse)
@needs("memory:approve", "admin")
async def add(context: RequestContext, user_id: str, body: RemoteRequest) -> Remote:
    """Add a remote and keep it in sync.

    Its content is pulled first. A user who does not exist yet is created.
    """
    kinds = context.runtime.remotes
    if body.kind not in kinds:
        raise Invalid(
            f'There are no remotes of the kind "{body.kind}". Use one of: '
            f"{', '.join(sorted(kinds))}."
        )
    if body.password:
        password = body.password.get_secret_value()
    else:
        password = None
    options = dict(body.options)
    if body.shows_toml:
        options["shows_toml"] = True
    access = Access(body.address, body.username, password, options)
    return await service.add(
        context.store,
        context.runtime.settings,
        scope=context.scope,
        user_name=user_id,
        kind=kinds[body.kind],
        requested=access,
    )


@router.get("", response_model=list[RemoteResponse])
def list_remotes(tx: Transaction, context: RequestContext, user_id: str) -> Sequence[Remote]:
    """List the remotes of the user's memory, oldest first."""
    return remotes.of_chain(tx, user_memory.open_memory(tx, context.scope, user_id).chain.id)


@router.post("/{remote_id}/follow", response_model=NoteResponse)
@needs("memory:approve", "admin")
def sync(tx: Transaction, context: RequestContext, user_id: str, remote_id: str) -> Json:
    """Sync the remote and the memory now, even if the memory has not changed."""
    job = _find(tx, context, user_id, remote_id).job()
    if jobs.add(tx, job) is None:
        jobs.make_due(tx, job.kind, job.key or "")
    return note("The remote is brought up to date in the background.")


@router.delete("/{remote_id}", response_model=NoteResponse)
@needs("memory:approve", "admin")
def remove(tx: Transaction, context: RequestContext, user_id: str, remote_id: str) -> Json:
    """Remove a remote. Its content stays there."""
    remotes.remove(tx, _find(tx, context, user_id, remote_id))
    return note("The remote was removed. Its copy of the memory stays there.")


def _find(tx: Transaction, context: RequestContext, user_id: str, remote_id: str) -> Remote:
    remote = remotes.get(tx, context.scope, remote_id)
    if remote.chain_id != user_memory.open_memory(tx, context.scope, user_id).chain.id:
        raise NotFound(f"Remote with ID {remote_id} not found")
    return remote
