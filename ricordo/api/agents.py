"""Routes of agents: create, list, change and delete them, and show their context windows."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import ValidationError

from ricordo.agents.agent_types import chosen_system
from ricordo.agents.conversations import (
    DEFAULT,
    open_conversation,
    set_window,
)
from ricordo.agents.followers import set_sleeptime, with_groups
from ricordo.agents.lifecycle import (
    AgentSpec,
    attach_block,
    change_model,
    create_agent,
    delete_agent,
    each_once,
    warn_of_small_window,
)
from ricordo.agents.memory_variables import fill_variables, require_variables
from ricordo.agents.step_decisions import rulebook
from ricordo.api.call import Paging, RequestContext, agent_json, note, whole_agent
from ricordo.api.messages import new_message
from ricordo.api.models.agents import (
    AgentFields,
    AgentRequest,
    AgentResponse,
    AgentUpdate,
    ContextResponse,
)
from ricordo.api.models.base import NoteResponse, without_none
from ricordo.api.models.tools import read_rule
from ricordo.api.routing import Routes
from ricordo.domain.agent import (
    Agent,
    CompactionSettings,
    effective,
)
from ricordo.domain.clock import zone
from ricordo.domain.model import DEFAULT_CONTEXT_WINDOW, ModelSettings
from ricordo.domain.run import StopReason
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.domain.tool import MULTI_AGENT_TOOLS
from ricordo.errors import Invalid, Unsupported
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import agent_access, agents, blocks, messages, tools, users
from ricordo.storage.agents import AgentOrder
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import schema_of

router = Routes(prefix="/v1/agents", tags=["agents"], scope="agents")
_OLDER_SETTINGS = (
    ("max_output_tokens", "max_tokens"),
    ("max_reasoning_tokens", "max_reasoning_tokens"),
    ("parallel_tool_calls", "parallel_tool_calls"),
    ("response_format", "response_format"),
)
_PLAIN = ("system", "metadata", "hidden")
_JSON_SETTINGS = (
    "max_files_open",
    "per_file_view_window_char_limit",
    "user_block_policy",
    "model_profile",
    "memory_in_prompt",
)


@router.post("/", response_model=AgentResponse)
async def create(context: RequestContext, body: AgentRequest) -> Json:
    """Create an agent."""
    await _require_window(context, body, body.model_handle)
    if body.agent_type == "voice_convo_agent" and not body.enable_sleeptime:
        raise Unsupported(
            "A voice_convo_agent needs another agent that keeps its memory. Send enable_sleeptime: true."
        )
    return agent_json(
        context, await create_agent(context.runtime, context.scope, spec_of(context.runtime, body))
    )


@dataclass(frozen=True, slots=True)
class AgentFilters:
    """The query parameters of a list of agents."""

    name: str | None = None
    query_text: Annotated[str | None, Query(description="A part of the name.")] = None
    tags: Annotated[list[str] | None, Query()] = None
    match_all_tags: bool = False
    hidden: bool | None = None
    identity_id: Annotated[
        str | None, Query(description="Only agents for this user, by its identity id.")
    ] = None
    identifier_keys: Annotated[
        list[str] | None, Query(description="Only agents for any of these users.")
    ] = None
    template_id: Annotated[
        str | None, Query(description="Created from this version of a template.")
    ] = None
    base_template_id: Annotated[str | None, Query(description="Created from this template.")] = None
    created_by_id: Annotated[str | None, Query(description="Created by this user.")] = None
    last_stop_reason: Annotated[
        StopReason | None,
        Query(
            description="Only agents whose last turn in the default conversation ended for this reason."
        ),
    ] = None
    sort_by: Annotated[
        AgentOrder | None,
        Query(description="The older name of `order_by`; ignored if `order_by` is sent."),
    ] = None


@dataclass(frozen=True, slots=True)
class AgentPaging(Paging):
    """The paging of a list of agents, with more orders."""

    order_by: Annotated[AgentOrder | None, Query(description="The field to sort by.")] = None  # type: ignore[assignment]


@router.get("/", response_model=list[AgentResponse])
def list_agents(
    tx: Transaction,
    context: RequestContext,
    paging: Annotated[AgentPaging, Depends()],
    filters: Annotated[AgentFilters, Depends()],
) -> list[Json]:
    """List agents, by default newest first.

    Filters include the name, a part of the name, tags, and the users to whom an agent is
    restricted.
    """
    user_ids = users.ids_of(tx, context.scope, filters.identity_id, filters.identifier_keys or ())
    if user_ids is None:
        conditions = []
    else:
        conditions = [agents.is_kept_to(user_ids)]
    if filters.last_stop_reason:
        conditions.append(agents.last_ended_for(tx, context.scope, filters.last_stop_reason))
    if template := without_none(
        template_id=filters.template_id, base_template_id=filters.base_template_id
    ):
        conditions.append(agents.is_made_from(**template))
    if filters.query_text:
        conditions.append(agents.is_named_like(filters.query_text))
    options: Any = {
        "tags": filters.tags or (),
        "all_tags": filters.match_all_tags,
        "position": agents.place_of(
            tx, context.scope, paging.order_by or filters.sort_by or "created_at"
        ),
        **without_none(name=filters.name, hidden=filters.hidden, created_by=filters.created_by_id),
    }
    states = agents.page(tx, context.scope, paging.page(), *conditions, **options)
    return [
        agent_json(context, state)
        for state in with_groups(tx, context.runtime, context.runtime.complete(tx, states))
    ]


@router.get("/count", response_model=int)
def count(tx: Transaction, context: RequestContext) -> int:
    """Return the number of agents."""
    return agents.count(tx, context.scope)


@router.get("/{agent_id}", response_model=AgentResponse)
def retrieve(tx: Transaction, context: RequestContext, agent_id: str) -> Json:
    """Return one agent."""
    return whole_agent(tx, context, agent_id)


@router.patch("/{agent_id}", response_model=AgentResponse)
async def modify(context: RequestContext, agent_id: str, body: AgentUpdate) -> Json:
    """Change an agent; omitted fields keep their values.

    The prompt changes at the agent's next turn.
    """
    if body.timezone:
        zone(body.timezone)
    before = await context.store.read(lambda tx: agents.load(tx, context.scope, agent_id))
    await _require_window(context, body, body.model_handle or before.agent.model)
    if body.system is not None:
        body = body.model_copy(
            update={"system": chosen_system(body.system, "", context.runtime.settings.data_dir)}
        )
    handle = body.model_handle
    if handle:
        remodelled = await change_model(context.runtime, before.agent, handle)
    else:
        remodelled = None
    embedding = None
    if body.embedding_handle:
        embedding = await context.runtime.models.embedders.choose(body.embedding_handle)

    def change(tx: Transaction) -> Json:
        agents.lock(tx, context.scope, agent_id)
        agent = agents.load(tx, context.scope, agent_id).agent
        if remodelled:
            agent = replace(agent, model=remodelled.model, context_window=remodelled.context_window)
        if embedding:
            agent = replace(agent, embedding=embedding)
        if body.tags is None:
            tags = None
        else:
            tags = sorted(set(body.tags))
        secrets = _sealed(context.runtime, body, agent.settings.get("secrets", {}))
        if secrets is not None:
            agent = replace(agent, settings={**agent.settings, "secrets": secrets})
        agent = _changed(tx, agent, body, context.scope.user_id)
        warn_of_small_window(agent)
        agents.update(tx, agent, tags)
        if "enable_sleeptime" in body.model_fields_set:
            state = agents.load_whole(tx, context.scope, agent_id)
            set_sleeptime(
                tx, context.runtime, context.scope, state, is_on=bool(body.enable_sleeptime)
            )
        _change_attachments(tx, context, agent_id, body)
        if body.tool_rules is not None or body.tool_ids is not None:
            # Refuse rules under which no turn could end, so that the next message does not fail.
            rulebook(agents.load(tx, context.scope, agent_id))
        return whole_agent(tx, context, agent_id)

    return await context.store.write(change)


@router.delete("/{agent_id}", response_model=NoteResponse)
async def delete(context: RequestContext, agent_id: str) -> Json:
    """Delete an agent with its messages.

    Its blocks and archives are not deleted. Other routes delete them.
    """
    await delete_agent(context.runtime, context.scope, agent_id)
    return note(f"Agent id={agent_id} successfully deleted")


@router.get("/{agent_id}/context", response_model=ContextResponse)
async def context(
    context: RequestContext,
    agent_id: str,
    conversation_id: Annotated[
        str, Query(description="The conversation whose context window is returned.")
    ] = DEFAULT,
) -> Json:
    """Return the content of the agent's context window, in tokens by our estimate."""
    conversation = await open_conversation(
        context.runtime, context.scope, conversation_id, agent_id
    )

    def read(tx: Transaction) -> Json:
        state = effective(agents.load(tx, context.scope, agent_id, conversation.id))
        tools = [schema_of(tool) for tool in state.tools]
        return ContextResponse.from_window(
            state, messages.by_ids(tx, state.conversation.window), tools
        )

    return await context.store.read(read)


async def _require_window(context: RequestContext, body: AgentFields, handle: str | None) -> None:
    """Raise Invalid for a context window above the model's, if that is known."""
    limit = body.context_window_limit
    if limit is None:
        return
    models = await context.runtime.organization_providers.of(context.scope.organization_id)
    info = await models.require(handle or (await context.runtime.models.find_default()).handle)
    if info.context_window != DEFAULT_CONTEXT_WINDOW and limit > info.context_window:
        # wire fact: this sentence comes from the retired Letta V1 server
        raise Invalid(
            f"Context window limit ({limit}) is greater than maximum of ({info.context_window})"
        )


def _as_tuple(names: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(names or ())


def spec_of(runtime: Runtime, body: AgentRequest) -> AgentSpec:
    """Return the agent that a body describes.

    Raises:
        Invalid: A variable is in no block, or a rule, schema or message cannot be used.
        Unavailable: A block schema cannot be read.
    """
    sequence = body.initial_message_sequence
    settings = _settings(body)
    memory_blocks = tuple(
        block.spec(runtime.settings.data_dir) for block in body.memory_blocks or ()
    )
    if body.memory_variables:
        require_variables(memory_blocks, body.memory_variables, "agent")
        memory_blocks = fill_variables(memory_blocks, body.memory_variables)
    if secrets := _sealed(runtime, body, {}):
        settings["secrets"] = secrets
    return AgentSpec(
        name=body.name,
        agent_type=body.agent_type,
        system=body.system,
        model=body.model_handle,
        embedding=body.embedding_handle,
        model_settings=_model_settings(body, ModelSettings()),
        context_window=body.window,
        description=body.description,
        metadata=body.metadata or {},
        timezone=body.timezone or runtime.settings.timezone,
        hidden=bool(body.hidden),
        settings=settings,
        blocks=memory_blocks,
        block_ids=_as_tuple(body.block_ids),
        tool_names=(
            *_as_tuple(body.tools),
            *(MULTI_AGENT_TOOLS if body.include_multi_agent_tools else ()),
        ),
        tool_ids=_as_tuple(body.tool_ids),
        has_base_tools=body.include_base_tools is not False,
        has_base_rules=body.include_base_tool_rules,
        tool_rules=tuple(read_rule(rule) for rule in body.tool_rules or ()),
        clears_buffer=body.message_buffer_autoclear,
        beginning=None if sequence is None else tuple(new_message(message) for message in sequence),
        tags=_as_tuple(body.tags),
        folder_ids=_as_tuple(body.all_folder_ids),
        identity_ids=_as_tuple(body.identity_ids),
        user=body.user_id,
        has_sleeptime=bool(body.enable_sleeptime),
        has_default_folder=bool(body.include_default_source),
    )


def change_secret(
    tx: Transaction, runtime: Runtime, scope: Scope, agent_id: str, change: tuple[str, str | None]
) -> None:
    """Store one secret of the agent, or delete it if its text is None.

    Args:
        tx: The transaction.
        runtime: The server's parts, for the key that encrypts secrets.
        scope: The caller, who is recorded as the author of the change.
        agent_id: The agent.
        change: The secret's name and its text. None deletes the secret; an empty text leaves a
            stored secret as it is.

    Raises:
        NotFound: The caller has no such agent.
        Invalid: The name or the text cannot be used.
    """
    name, text = change
    try:
        AgentUpdate.model_validate({"secrets": {name: text or ""}})
    except ValidationError as error:
        raise Invalid(
            "A secret's name has letters, digits and _, at most 200, and its text at most 20,000 "
            "characters."
        ) from error
    agents.lock(tx, scope, agent_id)
    agent = agents.load(tx, scope, agent_id).agent
    secrets = dict(agent.settings.get("secrets", {}))
    if text is None:
        secrets.pop(name, None)
    elif text or name not in secrets:  # an empty text leaves a stored secret as it is
        secrets[name] = Secret(runtime.settings.data_dir).encrypt(text)
    changed = replace(agent, settings={**agent.settings, "secrets": secrets})
    agents.update(tx, replace(changed, updated_by=scope.user_id, updated_at=tx.clock.now()))


def _sealed(
    runtime: Runtime, body: AgentFields, stored: Mapping[str, str]
) -> dict[str, str] | None:
    """Return the agent's secrets encrypted, by name; None if none were sent.

    An empty value keeps the stored value.
    """
    secrets = body.all_secrets
    if not secrets:
        return secrets
    cipher = Secret(runtime.settings.data_dir)
    return {
        name: cipher.encrypt(secret) if secret or name not in stored else stored[name]
        for name, secret in secrets.items()
    }


def _settings(body: AgentFields, current: CompactionSettings | None = None) -> dict[str, Any]:
    """Return the sent settings that the agent stores as JSON, such as those of compaction."""
    settings = {
        name: setting for name in _JSON_SETTINGS if (setting := getattr(body, name)) is not None
    }
    if body.compaction_settings is not None:
        settings["compaction"] = asdict(body.compaction_settings.settings(current))
    return settings


def _model_settings(body: AgentFields, current: ModelSettings) -> ModelSettings:
    """Return the settings with the sent changes; null resets a setting."""
    if body.llm_config:
        changes = body.llm_config.changes(current.extra)
    else:
        changes = {}
    if body.model_settings:
        changes |= body.model_settings.changes(current if isinstance(body, AgentUpdate) else None)
    for name, older in _OLDER_SETTINGS:
        if older in body.model_fields_set:
            changes[name] = getattr(body, older)
    if body.thinks is False:
        changes |= {"reasoning_effort": "none", "max_reasoning_tokens": None}
    elif body.thinks and current.reasoning_effort == "none":
        changes.setdefault("reasoning_effort", None)
    return replace(current, **changes)


def _changed(tx: Transaction, agent: Agent, body: AgentUpdate, user_id: str) -> Agent:
    changes = {name: field for name in _PLAIN if (field := getattr(body, name)) is not None}
    if body.tool_rules is not None:
        changes["tool_rules"] = each_once(read_rule(rule) for rule in body.tool_rules)
    if body.message_buffer_autoclear is not None:
        changes["clears_buffer"] = body.message_buffer_autoclear
    if "description" in body.model_fields_set:
        changes["description"] = body.description
    return replace(
        agent,
        **changes,
        name=body.name or agent.name,
        timezone=body.timezone or agent.timezone,
        model_settings=_model_settings(body, agent.model_settings),
        context_window=body.window or agent.context_window,
        settings=agent.settings | _settings(body, agent.compaction),
        updated_by=user_id,
        updated_at=tx.clock.now(),
    )


def _change_attachments(
    tx: Transaction, context: RequestContext, agent_id: str, body: AgentUpdate
) -> None:
    if body.tool_ids is not None:
        rows = tools.by_ids(tx, context.scope, list(dict.fromkeys(body.tool_ids)))
        tools.detach_all(tx, agent_id)
        tools.attach(tx, agent_id, [tool.id for tool in rows])
    if body.block_ids is not None:
        attached = {block.id: block for block in blocks.of_agent(tx, agent_id)}
        for block_id in attached.keys() - set(body.block_ids):
            blocks.detach(tx, agent_id, block_id)
        for block_id in dict.fromkeys(body.block_ids):
            attach_block(tx, context.scope, agent_id, block_id)
    if body.identity_ids is not None:
        user_ids = list(map(users.user_id_of, body.identity_ids))
        agent_access.keep_to(tx, context.scope, agent_id, user_ids)
    if body.message_ids is not None:
        conversation = agents.load(tx, context.scope, agent_id).conversation
        set_window(tx, context.scope, conversation.id, body.message_ids)
    if body.all_folder_ids is not None:
        context.runtime.set_folders(tx, context.scope, agent_id, body.all_folder_ids)
