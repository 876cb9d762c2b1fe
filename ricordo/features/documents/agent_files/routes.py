"""Routes to export and import agents as files."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import File, Header, Query, Response

from ricordo.agents.lifecycle import AgentSpec, prepare
from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.models.base import ResponseModel
from ricordo.api.routing import Routes, needs
from ricordo.domain.model import ModelInfo
from ricordo.domain.text import Json
from ricordo.errors import Invalid, RicordoError
from ricordo.features.documents.agent_files import export, service
from ricordo.features.documents.agent_files.decoding import decode
from ricordo.features.documents.agent_files.models import ImportForm
from ricordo.features.documents.agent_files.specs import ImportOptions
from ricordo.features.documents.agent_files.tolerance import ImportNotes
from ricordo.offload import offload

router = Routes(prefix="/v1/agents", tags=["agent files"], scope="agents")


@router.post("/{agent_id}/export", response_model=dict[str, Any])
@router.get("/{agent_id}/export", response_model=dict[str, Any])
@needs("agents:read")
async def export_file(
    context: RequestContext,
    agent_id: str,
    conversation_id: Annotated[
        str | None,
        Query(
            description="The conversation whose messages are exported as the agent's; by default "
            "the caller's default conversation."
        ),
    ] = None,
    use_legacy_format: Annotated[bool, Query(description="Not supported.")] = False,
    scrub_messages: Annotated[
        bool, Query(description="Leave messages, conversations and schedules out.")
    ] = False,
) -> Response:
    """Return the agent as an agent file.

    Other servers read the standard fields. The field `ricordo` has the conversations, the history
    of the memory, the archives and the schedules, without those of single users.
    """
    if use_legacy_format:
        raise Invalid("Legacy format is not supported. Leave use_legacy_format out.")
    file = await context.store.read(
        lambda tx: export.export(tx, context, agent_id, conversation_id, scrubs=scrub_messages)
    )
    return answer(file)


class AgentImportResponse(ResponseModel):
    """The created agents, and notes on parts that were mended or left out."""

    agent_ids: list[str]
    warnings: list[str]


@router.post("/import", response_model=AgentImportResponse)
async def import_file(
    context: RequestContext,
    body: Annotated[ImportForm, File()],
    x_override_embedding_model: Annotated[str | None, Header(description="As `embedding`.")] = None,
) -> Json:
    """Create the agents of an agent file, all of them or none.

    Invalid parts are mended or left out, and listed in the response.
    """
    options = body.options(x_override_embedding_model)
    data = await body.file.read()
    notes = ImportNotes()
    for name, value in (body.model_extra or {}).items():
        notes.add_unknown("The form", f"form.{name}", value)
    file = await offload(
        lambda: service.read(context.runtime, decode(data, notes), options, notes), len(data)
    )
    prepared = [await _prepare(context, spec, options, notes) for spec in file.specs]
    file = replace(file, specs=[spec for spec, _ in prepared])
    insert = partial(
        service.insert,
        context=context,
        file=file,
        options=options,
        infos=[info for _, info in prepared],
    )
    agent_ids = await context.store.write(insert)
    return AgentImportResponse.of(None, agent_ids=agent_ids, warnings=file.note_lines())


async def _prepare(
    context: RequestContext, spec: AgentSpec, options: ImportOptions, notes: ImportNotes
) -> tuple[AgentSpec, ModelInfo]:
    """Return the spec with its model.

    If its model cannot be used here and the options name no other, the default model replaces it.
    """
    try:
        return await prepare(context.runtime, context.scope, spec)
    except RicordoError as error:
        if options.model or not spec.model:
            raise
        handle = spec.model
        reason = str(error)
    spec, info = await prepare(
        context.runtime, context.scope, replace(spec, model=None, context_window=None)
    )
    notes.add(f"Agent: its model {handle} cannot be used here, so it has {info.handle}. {reason}")
    return spec, info
