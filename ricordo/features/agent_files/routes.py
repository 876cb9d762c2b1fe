"""Agent files over HTTP: an agent out, and agents in."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import File, Header, Query, Response

from ricordo.agents.lifecycle import prepare
from ricordo.api.call import Here, answer
from ricordo.api.models.base import Json, ResponseModel
from ricordo.api.routing import Routes, needs
from ricordo.errors import Invalid
from ricordo.features.agent_files import export, service
from ricordo.features.agent_files.models import ImportForm
from ricordo.offload import offload

router = Routes(prefix="/v1/agents", tags=["agent files"], scope="agents")


@router.post("/{agent_id}/export", response_model=dict[str, Any])
@router.get("/{agent_id}/export", response_model=dict[str, Any])
@needs("agents:read")
async def export_file(
    here: Here,
    agent_id: str,
    conversation_id: Annotated[str | None, Query(description="Whose thread it holds; else the default one.")] = None,
    use_legacy_format: Annotated[bool, Query(description="Not supported.")] = False,
    scrub_messages: Annotated[bool, Query(description="Leave out what was said.")] = False,
) -> Response:
    """The agent as an agent file: what other servers read, and under `ricordo` all of its history and archives."""
    if use_legacy_format:
        raise Invalid("Legacy format is not supported. Leave use_legacy_format out.")
    made = await here.store.read(lambda tx: export.export(tx, here, agent_id, conversation_id, scrubs=scrub_messages))
    return answer(made)


class AgentImportResponse(ResponseModel):
    """The agents that were made."""

    agent_ids: list[str]


@router.post("/import", response_model=AgentImportResponse)
async def import_file(
    here: Here,
    body: Annotated[ImportForm, File()],
    x_override_embedding_model: Annotated[str | None, Header(description="As `embedding`.")] = None,
) -> Json:
    """Make the agents of an agent file: all of it in one piece, or nothing."""
    options, data = body.options(x_override_embedding_model), await body.file.read()
    try:
        content = await offload(lambda: orjson.loads(data), len(data))
    except orjson.JSONDecodeError as error:
        raise Invalid(f"The agent file is no JSON: {error}") from error
    file = await offload(lambda: service.read(here.runtime, content, options), len(data))
    ready = [await prepare(here.runtime, here.scope, spec) for spec in file.specs]
    file = replace(file, specs=[spec for spec, _ in ready])
    insert = partial(service.insert, here=here, file=file, options=options, infos=[info for _, info in ready])
    return AgentImportResponse.of(None, agent_ids=await here.store.write(insert))
