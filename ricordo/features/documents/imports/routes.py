"""Routes of imports: upload an export, and read a job's report."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import File, UploadFile
from pydantic import BaseModel, ConfigDict, Field

from ricordo.api.call import RequestContext, for_user
from ricordo.api.models.base import ResponseModel, Timestamp
from ricordo.api.models.jobs import JobResponse, WireStatus
from ricordo.api.routing import Routes
from ricordo.domain.job import Job
from ricordo.domain.text import Json
from ricordo.errors import Forbidden
from ricordo.features.documents.imports import queries
from ricordo.features.documents.imports.jobs import UPLOAD, add_upload
from ricordo.features.documents.imports.service import target_of
from ricordo.storage import jobs
from ricordo.storage.engine.repository import require_found
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/imports", tags=["imports"], scope="messages")


class UploadForm(BaseModel):
    """An export, with the user and the agent that receive it."""

    model_config = ConfigDict(extra="forbid")

    file: UploadFile = Field(
        description="The unchanged export: JSON, or a zip file. With `pasted`, a text whose lines "
        "are memories."
    )
    kind: Literal["chatgpt", "claude", "openwebui", "mem0", "pasted"] = Field(
        description="The program that exported it."
    )
    user: str | None = Field(
        None, description="The user, by id or name; by default the caller's user, or everybody."
    )
    agent: str | None = Field(
        None,
        description="Id of the agent that gets the import; by default one for this kind and user, which is "
        "created at the first import.",
    )


class ImportJobResponse(ResponseModel):
    """The state and the report of an import, also as a text for people."""

    id: str
    kind: str
    agent_id: str | None
    user_id: str | None
    created_at: Timestamp
    status: WireStatus
    done: int
    total: int
    error: str | None
    report: dict[str, Any]
    text: str


@router.post("", response_model=ImportJobResponse)
async def upload(context: RequestContext, body: Annotated[UploadForm, File()]) -> Json:
    """Import an export of chats or memories.

    Importing a file again changes nothing. A later file of the same chats adds their new messages.
    """
    context = await for_user(context, body.user or None, reads=False)
    if body.kind != "pasted" and not body.agent and not context.scope.may("agents:write"):
        raise Forbidden(
            "Your key lacks the scope agents:write, so it cannot create an agent. Name an "
            "existing agent in the field `agent`."
        )
    if body.kind in ("mem0", "pasted") and not context.scope.may("archives:write", "memory:write"):
        raise Forbidden("Your key lacks the scope archives:write, so no memories are imported.")
    target = await target_of(context.runtime, context.scope, body.kind, body.agent or None)
    data = await body.file.read()
    target = replace(target, takes_memories=context.scope.may("archives:write", "memory:write"))
    return await context.store.write(lambda tx: _response(tx, add_upload(tx, target, data)))


@router.get("/{import_id}", response_model=ImportJobResponse)
def retrieve(tx: Transaction, context: RequestContext, import_id: str) -> Json:
    """Return one of the caller's imports.

    Its report also counts earlier imports from the same source.
    """
    job = jobs.get(tx, context.scope, import_id)
    return _response(tx, require_found(job if job.kind == UPLOAD else None, "Import", import_id))


def _response(tx: Transaction, job: Job) -> Json:
    report = queries.report_of(tx, job.organization_id, job.payload["source"])
    return ImportJobResponse.of(
        job,
        kind=job.payload["kind"],
        agent_id=job.payload["agent_id"] or None,
        status=JobResponse.of(job)["status"],
        done=job.progress.get("done", 0),
        total=job.progress.get("total", 0),
        error=job.error and job.error["message"],
        report=report,
        text=queries.report_text(report),
    )
