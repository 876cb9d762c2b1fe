"""Tools from source code over HTTP: create, change, delete, search and try."""

import asyncio

import orjson

from ricordo.api.call import RequestContext
from ricordo.api.models.base import NoteResponse
from ricordo.api.models.tools import (
    ToolResponse,
    ToolRunRequest,
    ToolRunResponse,
    ToolTrialResponse,
)
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
from ricordo.domain.tool import Tool
from ricordo.errors import ModelError, NotFound, Unsupported
from ricordo.features.custom_tools.source import models, service
from ricordo.features.custom_tools.source.environments import texts_of
from ricordo.features.custom_tools.source.runner import (
    NETWORK,
    ToolCall,
    call_of,
    custom_tools_of,
    run_call,
)
from ricordo.features.custom_tools.source.surroundings import Caller
from ricordo.offload import offload
from ricordo.storage import agents, tools
from ricordo.tools import tool_search

router = Routes(prefix="/v1", tags=["tools"], scope="tools")


@router.post("/tools/", response_model=ToolResponse)
async def create(context: RequestContext, body: models.ToolCreateRequest) -> Tool:
    """Store a tool.

    Its name, description and schema are read from the source if they are not sent.
    """
    schema = await asyncio.to_thread(service.schema_for, body)
    return await context.store.write(lambda tx: service.create(tx, context.scope, body, schema))


@router.put("/tools/", response_model=ToolResponse)
async def upsert(context: RequestContext, body: models.ToolCreateRequest) -> Tool:
    """Store a tool, or change the tool with this name; an omitted field keeps its value."""
    name = await asyncio.to_thread(service.name_for, body)
    tool = await context.store.read(lambda tx: service.tool_by_name(tx, context.scope, name))
    if tool is None:
        schema = await asyncio.to_thread(service.schema_for, body)
        return await context.store.write(lambda tx: service.upsert(tx, context.scope, body, schema))
    change = models.ToolUpdateRequest.model_validate(body.model_dump(exclude_unset=True))
    return await _changed(context, tool, change)


@router.patch("/tools/{tool_id}", response_model=ToolResponse)
async def modify(context: RequestContext, tool_id: str, body: models.ToolUpdateRequest) -> Tool:
    """Change a tool; new source code changes its schema too.

    Of the server's tools, only a few settings can be changed.
    """
    tool = await context.store.read(lambda tx: tools.get(tx, context.scope, tool_id))
    return await _changed(context, tool, body)


async def _changed(
    context: RequestContext, tool: Tool, change: models.ToolUpdateRequest, attempts: int = 5
) -> Tool:
    """Change a tool, with a schema that is made before the transaction.

    If another request has changed the tool since then, the schema is made again.
    """
    schema = await asyncio.to_thread(service.new_schema, tool, change)
    try:
        return await context.store.write(
            lambda tx: service.change(tx, context.scope, tool, change, schema)
        )
    except service.ToolChanged as changed:
        if attempts == 1:
            raise
        return await _changed(context, changed.tool, change, attempts - 1)


@router.delete("/tools/{tool_id}", response_model=NoteResponse)
async def delete(context: RequestContext, tool_id: str) -> Json:
    """Take a tool from all agents and delete it."""
    await context.store.write(lambda tx: service.delete(tx, context.scope, tool_id))
    return {"message": f"Tool id={tool_id} successfully deleted"}


@router.post("/tools/search", response_model=list[models.ToolSearchResponse])
async def search(
    context: RequestContext, body: models.ToolSearchRequest
) -> list[tool_search.FoundTool]:
    """Search tools by words and by meaning; without a query, return the newest."""
    query = body.query or ""
    candidates = await context.store.read(
        lambda tx: service.search_candidates(
            tx, context.scope, body.tool_types or (), body.tags or ()
        )
    )
    if not query.strip():
        newest = candidates[: body.limit]
        return tool_search.fuse_rankings(newest, range(len(newest)), None)
    texts = [tool_search.text_of(tool) for tool in candidates]
    word_ranking = None
    vector_ranking = None
    if body.search_mode != "vector":
        length = sum(map(len, texts))
        word_ranking = await offload(lambda: tool_search.rank_by_words(query, texts), length)
    if body.search_mode != "fts":
        embedders = context.runtime.models.embedders
        try:
            vector_ranking = await tool_search.rank_by_meaning(
                embedders,
                query,
                texts,
                context.runtime.new_clearance(),
                context.runtime.embedding_account(context.scope),
            )
        except ModelError:
            # Without the embedding model, or at the end of a budget, the search is by words.
            if body.search_mode == "vector":
                raise
    return tool_search.fuse_rankings(candidates, word_ranking, vector_ranking)[: body.limit]


@router.post("/tools/run", response_model=ToolTrialResponse)
async def try_source(context: RequestContext, body: models.ToolTrialRequest) -> Json:
    """Run a tool once from its source; nothing is stored."""
    fields = body.model_dump(
        include={"source_code", "source_type", "json_schema", "args_json_schema"}
    )
    creation = models.ToolCreateRequest(**fields, description=body.name or "A trial.")
    if body.name and not body.json_schema:
        creation.json_schema = {"name": body.name}
    schema = await asyncio.to_thread(service.schema_for, creation)
    parameters = tuple(schema.parameters.get("properties", {}))
    caller = Caller(context.scope)
    call = ToolCall(
        body.source_code,
        schema.name,
        body.args,
        body.env_vars or {},
        source_type=body.source_type,
        parameters=parameters,
        caller=caller,
        has_network=NETWORK in (body.tags or ()),
        requirements=texts_of(
            [requirement.model_dump() for requirement in body.pip_requirements or ()]
        ),
    )
    trial = await _answer(context, call)
    returned = trial["func_return"]
    if isinstance(returned, str):
        text = returned
    else:
        text = orjson.dumps(returned).decode()
    return ToolTrialResponse.of(
        None, **trial, date=context.store.clock.now(), name=schema.name, tool_return=text
    )


@router.post("/agents/{agent_id}/tools/{tool_name}/run", response_model=ToolRunResponse)
async def run_for_agent(
    context: RequestContext, agent_id: str, tool_name: str, body: ToolRunRequest
) -> Json:
    """Run one of the agent's tools from source code, outside of any turn.

    The agent does not see the call or its result.
    """
    state = await context.store.read(lambda tx: agents.load_whole(tx, context.scope, agent_id))
    tool = next((tool for tool in state.tools if tool.name == tool_name), None)
    if tool is None:
        raise NotFound(f"The agent has no tool named {tool_name}. Attach it first.")
    if tool.tool_type != "custom" or not tool.source_code:
        raise Unsupported(f"{tool_name} runs only within a turn. Ask the agent to call it.")
    caller = Caller(context.scope, state)
    return await _answer(context, call_of(tool, body.args, caller))


async def _answer(context: RequestContext, call: ToolCall) -> Json:
    runtime = context.runtime
    call = await custom_tools_of(runtime).prepare(context.store, call)
    output = await run_call(runtime.sandbox, runtime.settings, call)
    return ToolRunResponse.of(
        output,
        status="error" if output.is_error else "success",
        func_return=output.value,
        stdout=list(output.stdout),
        stderr=list(output.stderr),
    )
