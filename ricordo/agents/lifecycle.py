"""Create, change, reset and delete agents.

An agent is created as a whole or not at all.
"""

import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from ricordo.agents import deletion
from ricordo.agents.agent_types import (
    TRAITS,
    base_rules,
    base_tools,
    chosen_system,
    given_messages,
    initial_messages,
)
from ricordo.agents.conversations import (
    DEFAULT,
    cancel_run,
    deny_waiting,
    open_conversation,
    require_own,
    require_subject,
    system_message,
)
from ricordo.agents.followers import set_sleeptime, with_groups
from ricordo.agents.request import (
    NewMessage,
)
from ricordo.domain.agent import Agent, AgentState, AgentType, Conversation
from ricordo.domain.block import (
    DEFAULT_LIMIT,
    SHARED_POLICY,
    Block,
    Chain,
    Policy,
    new_in,
    require_label,
)
from ricordo.domain.clock import zone
from ricordo.domain.ids import new_id, unique
from ricordo.domain.message import Message
from ricordo.domain.model import ModelInfo, ModelSettings
from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool, ToolRule
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Invalid
from ricordo.llm.provider_table import with_usual_thinking
from ricordo.memory.rotation import read_rotation
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agents, blocks, conversations, runs, tools, users
from ricordo.storage.agent_access import keep_to
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
_SMALL_WINDOW = 4_096  # tokens


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """A block to be created. `egress` is the label of its egress policy (`domain/egress.py`)."""

    label: str
    value: str = ""
    description: str | None = None
    limit: int = DEFAULT_LIMIT
    read_only: bool = False
    hidden: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    policy: Policy | None = None
    shared: bool = False
    title: str | None = None
    schema_ref: str | None = None
    egress: str | None = None


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """An agent to be created; None takes the default."""

    id: str | None = None
    name: str | None = None
    agent_type: AgentType = "letta_v1_agent"
    system: str | None = None
    model: str | None = None
    embedding: str | None = None
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    context_window: int | None = None
    description: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    timezone: str = "UTC"
    hidden: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[BlockSpec, ...] = ()
    block_ids: tuple[str, ...] = ()
    tool_names: tuple[str, ...] = ()
    tool_ids: tuple[str, ...] = ()
    has_base_tools: bool = True
    # None: the default of its type.
    has_base_rules: bool | None = None
    tool_rules: tuple[ToolRule, ...] = ()
    clears_buffer: bool | None = None
    folder_ids: tuple[str, ...] = ()
    identity_ids: tuple[str, ...] = ()
    # The conversation's first messages; None: those of its type.
    beginning: tuple[NewMessage, ...] | None = None
    tags: tuple[str, ...] = ()
    # The user whose memory its conversation shows too, by id or by name.
    user: str | None = None
    # Another agent works on its memory after its turns.
    has_sleeptime: bool = False
    # The agent gets an empty folder of files that only it has.
    has_default_folder: bool = False


async def create_agent(runtime: Runtime, scope: Scope, spec: AgentSpec) -> AgentState:
    """Create the agent with its conversation, system message, blocks and tools.

    Args:
        runtime: The server's parts.
        scope: The caller.
        spec: The agent; `None` in its fields takes the default.

    Raises:
        NotFound: A model, block, tool, prompt, user or folder that the spec names does not exist.
        Invalid: The spec cannot be carried out, for example because a block is too long.
        Forbidden: The caller may not choose these users or folders.
        Conflict: An agent has this id, or the name of a new user looks like another's.
        Unavailable: The file of the system prompt cannot be read.
    """
    spec, info = await prepare(runtime, scope, spec)
    state = await runtime.store.write(lambda tx: insert_agent(tx, runtime, scope, spec, info))
    warn_of_small_window(state.agent)
    return state


async def prepare(runtime: Runtime, scope: Scope, spec: AgentSpec) -> tuple[AgentSpec, ModelInfo]:
    """Return the spec with defaults chosen, and its model's description.

    Providers may be asked for their lists of models.

    Args:
        runtime: The server's parts.
        scope: The caller, for the models of the organization.
        spec: The agent; the returned spec has a system prompt and, unless the default is used, an
            embedding model.

    Raises:
        NotFound: There is no such model, embedding model or system prompt.
        Invalid: The time zone, or the key or file of the prompt, cannot be used.
        Unavailable: The file of the system prompt cannot be read.
    """
    zone(spec.timezone)
    models = await runtime.organization_providers.of(scope.organization_id)
    info = await models.require(spec.model or (await runtime.models.find_default()).handle)
    spec = replace(spec, embedding=await runtime.models.embedders.choose(spec.embedding))
    default_key = TRAITS[spec.agent_type].prompt_key
    return replace(
        spec, system=chosen_system(spec.system, default_key, runtime.settings.data_dir)
    ), info


def warn_of_small_window(agent: Agent) -> None:
    """Log a warning if little more than the agent's prompt fits into its window.

    Args:
        agent: The stored agent, with a window in tokens.
    """
    if agent.context_window < _SMALL_WINDOW:
        log_fields = {"agent": agent.id, "tokens": agent.context_window}
        log.warning(
            "the context window of an agent is small: little more than its prompt fits",
            extra=log_fields,
        )


async def change_model(runtime: Runtime, agent: Agent, handle: str) -> Agent:
    """Return the agent with this model and the model's window, not yet stored.

    Args:
        runtime: The server's parts.
        agent: The agent, for its organization.
        handle: The handle of the model, such as "openai/gpt-4.1".

    Raises:
        NotFound: The organization has no such model.
    """
    info = await (await runtime.organization_providers.of(agent.organization_id)).require(handle)
    return replace(agent, model=info.handle, context_window=info.context_window)


async def reset_messages(runtime: Runtime, scope: Scope, agent_id: str) -> AgentState:
    """Delete all messages of the agent's default conversation and start it again.

    Args:
        runtime: The server's parts.
        scope: The caller, whose default conversation is meant.
        agent_id: The agent.

    Raises:
        NotFound: The caller has no such agent.
        Forbidden: The caller may only read the conversation.
        Busy: A turn runs in it.
        Conflict: Forks share its messages.
    """
    if scope.subject:
        await open_conversation(runtime, scope, DEFAULT, agent_id)
    state, newest = await runtime.store.write(lambda tx: _reset(tx, runtime, scope, agent_id))
    await deletion.purge(runtime, "messages", state.conversation.id, newest)
    return state


async def delete_agent(runtime: Runtime, scope: Scope, agent_id: str) -> None:
    """Stop the agent's turns that the caller may cancel, and delete it with its conversations.

    Args:
        runtime: The server's parts.
        scope: The caller.
        agent_id: The agent.

    Raises:
        NotFound: The caller has no such agent.
        Conflict: The agent manages a group.
    """
    await cancel_runs(runtime, scope, agent_id)
    await deletion.delete_agent(runtime, scope, agent_id)


async def cancel_runs(
    runtime: Runtime, scope: Scope, agent_id: str, run_ids: Sequence[str] | None = None
) -> dict[str, bool]:
    """Cancel the agent's open runs, or the named ones, and deny their waiting calls.

    Without names, the calls that wait in any of its conversations are denied.

    Args:
        runtime: The server's parts.
        scope: The caller; runs of other users are not cancelled.
        agent_id: The agent.
        run_ids: The runs to cancel; None for all open ones. A run counts as not cancelled if it is
            unknown, or if it has ended and none of its calls wait.

    Returns:
        By run id, whether the run was cancelled. A run whose waiting calls were denied counts as
        cancelled.

    Raises:
        NotFound: The caller has no such agent.
    """

    def find(tx: Transaction) -> list[str]:
        agents.require(tx, scope, agent_id)
        return [run.id for run in runs.open_runs(tx, agent_id=agent_id) if scope.owns(run.user_id)]

    open_ids = await runtime.store.read(find)
    outcome: dict[str, bool] = {}
    for run_id in open_ids if run_ids is None else run_ids:
        outcome[run_id] = run_id in open_ids and await cancel_run(runtime, scope, run_id)
    for id in await runtime.store.read(
        lambda tx: conversations.waiting_of_agent(tx, scope, agent_id)
    ):
        deny = partial(deny_waiting, conversation_id=id, run_ids=run_ids)
        denied = await runtime.store.write(deny)
        if denied and denied.run_id:
            outcome[denied.run_id] = True
    return outcome


def new_block(tx: Transaction, scope: Scope, spec: BlockSpec, chain: Chain) -> Block:
    """Return a block from its spec, not yet stored.

    Args:
        tx: The transaction, for its quotas and time.
        scope: The caller, who is recorded as the block's creator.
        spec: The block. Without a `policy`, a shared block is guarded and any other one direct.
        chain: The chain of the block's future owner.

    Raises:
        Invalid: The label, the value or the settings cannot be used; TooLong if it is too large.
    """
    fields = {name: getattr(spec, name) for name in BlockSpec.__slots__} | {
        "tags": tuple(unique(spec.tags))
    }
    # Untrusted content must not change a block that the prompts of all users contain.
    fields["policy"] = spec.policy or (SHARED_POLICY if spec.shared else "direct")
    block = new_in(
        chain, require_label(fields.pop("label")), scope.user_id, tx.clock.now(), **fields
    )
    block.require_fits(block.value)
    tx.quotas.require_block(block.label, block.size)
    # Normalize the value here too, since prompts and answers use this block before it is stored.
    # The placeholder of a secret may be longer than the secret.
    block = blocks.as_stored(block)
    block.require_fits(block.value)
    read_rotation(block.metadata)
    return block


def require_distinct_labels(agent_blocks: Sequence[Block]) -> None:
    """Raise Invalid if two blocks of an agent have the same label.

    Args:
        agent_blocks: The blocks that the agent is to have.

    Raises:
        Invalid: Two of them have the same label, which the message names.
    """
    labels = [block.label for block in agent_blocks]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise Invalid(
            f'Two blocks are labelled "{repeated}". Give each block of an agent a different label.'
        )


def attach_block(tx: Transaction, scope: Scope, agent_id: str, block_id: str) -> None:
    """Put a block into an agent's prompt; no effect if it is already there.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent.
        block_id: The block, of any owner that the caller may see.

    Raises:
        NotFound: The caller has no such agent or block.
        Conflict: Another block of the agent has this label.
    """
    agents.lock(tx, scope, agent_id)
    blocks.lock(tx, block_id)
    agents.require(tx, scope, agent_id)
    block = blocks.get(tx, scope, block_id)
    attached = blocks.attached(tx, agent_id)
    if any(other.id == block_id for other in attached):
        return
    if any(other.shown_label == block.label for other in attached):
        raise Conflict(
            f'The agent already has a block labelled "{block.label}". Detach that one first, or '
            "rename one of them."
        )
    blocks.attach(tx, agent_id, [block])


def insert_agent(
    tx: Transaction, runtime: Runtime, scope: Scope, spec: AgentSpec, info: ModelInfo
) -> AgentState:
    """Store the agent of a prepared spec, with everything that belongs to it.

    Args:
        tx: The transaction.
        runtime: The server's parts.
        scope: The caller.
        spec: The spec that `prepare` returned.
        info: The description of the model that `prepare` returned.

    Raises:
        NotFound: A block, tool, user or folder that the spec names does not exist.
        Invalid: The spec cannot be carried out, for example because a block is too long.
        Forbidden: The caller may not choose these users or folders.
        Conflict: An agent has this id, or the name of a new user looks like another's.
    """
    agent = _agent(tx, scope, spec, info)
    chain = Chain(new_id("chain"), scope.organization_id, "agent", agent.id)
    own_blocks = [new_block(tx, scope, block, chain) for block in spec.blocks]
    shared = blocks.by_ids(tx, scope, spec.block_ids) if spec.block_ids else []
    attached = (*own_blocks, *shared)
    require_distinct_labels(attached)
    if spec.has_base_tools:
        base = base_tools(spec.agent_type, has_sleeptime=spec.has_sleeptime)
        if TRAITS[spec.agent_type].takes_further:
            base += tuple(tool.name for tool in runtime.toolbox if tool.is_base)
    else:
        base = ()
    agent_tools = tuple(tools.find(tx, scope, unique([*base, *spec.tool_names]), spec.tool_ids))
    conversation = Conversation(
        id=conversations.default_id(agent.id),
        organization_id=agent.organization_id,
        agent_id=agent.id,
        is_default=True,
        user_id=require_subject(tx, scope, spec.user),
        created_by=agent.created_by,
        created_at=agent.created_at,
        updated_at=tx.clock.now(),
    )
    agent = replace(agent, tool_rules=rules_of(spec, agent_tools))
    tags = tuple(sorted(set(spec.tags)))
    agents.insert_one(tx, agent, tags)
    own_blocks = blocks.insert_all(
        tx,
        own_blocks,
        [chain] if own_blocks else [],
        ChangeMetadata(scope.actor, f"Make {agent.name}"),
    )
    attached = (*own_blocks, *shared)
    blocks.attach(tx, agent.id, attached, is_new=True)
    if shared or conversation.user_id:
        visible_blocks = _visible_blocks(tx, agent, conversation.user_id, attached)
    else:
        visible_blocks = tuple(own_blocks)
    state = AgentState(
        agent=agent,
        conversation=conversation,
        blocks=visible_blocks,
        tools=agent_tools,
        archives=(),
        tags=tags,
    )
    first_messages, key = _first_messages(tx, runtime, state, spec)
    window = tuple(message.id for message in first_messages)
    conversation = replace(
        conversation, window=window, prompt_key=key, message_count=len(first_messages)
    )
    state = replace(state, conversation=conversation)
    conversations.insert_one(tx, state.conversation)
    insert_messages(tx, first_messages)
    tools.attach(tx, agent.id, [tool.id for tool in agent_tools])
    if not (spec.folder_ids or spec.identity_ids or spec.has_sleeptime or spec.has_default_folder):
        return state
    return _add_users_and_folders(tx, runtime, scope, spec, state)


def _add_users_and_folders(
    tx: Transaction, runtime: Runtime, scope: Scope, spec: AgentSpec, state: AgentState
) -> AgentState:
    """Give a new agent its users, its sleeptime agent and its folders."""
    agent = state.agent
    user_ids = tuple(map(users.user_id_of, spec.identity_ids))
    if user_ids:
        keep_to(tx, scope, agent.id, user_ids)
    if spec.has_sleeptime:
        set_sleeptime(tx, runtime, scope, replace(state, user_ids=user_ids), is_on=True)
    runtime.set_folders(tx, scope, agent.id, spec.folder_ids)
    if spec.has_default_folder:
        runtime.make_folder(tx, scope, agent)
    return whole_agent(tx, runtime, scope, agent.id)


def whole_agent(tx: Transaction, runtime: Runtime, scope: Scope, agent_id: str) -> AgentState:
    """Return the agent with all parts that the wire format shows.

    Args:
        tx: The transaction, or a read.
        runtime: The server's parts.
        scope: The caller.
        agent_id: The agent.

    Raises:
        NotFound: The caller has no such agent.
    """
    (state,) = runtime.complete(tx, (agents.load_whole(tx, scope, agent_id),))
    return with_groups(tx, runtime, [state])[0]


def _visible_blocks(
    tx: Transaction, agent: Agent, user_id: str | None, attached: Sequence[Block]
) -> tuple[Block, ...]:
    """Return the blocks in the new agent's conversation with this user.

    They include the user's blocks; attached blocks of other users are left out.
    """
    tags = {block.id: block.tags for block in attached}
    visible = blocks.of_agent(tx, agent.id, user_id, agent.course, memory_id=agent.memory_id)
    return tuple(replace(block, tags=tags.get(block.id, ())) for block in visible)


def model_fields(spec: AgentSpec, info: ModelInfo) -> dict[str, Any]:
    """Return the fields of an agent that depend on its model.

    Args:
        spec: The requested agent.
        info: Its model.
    """
    return {
        "model": info.handle,
        "context_window": spec.context_window or info.context_window,
        "model_settings": with_usual_thinking(spec.model_settings, info),
    }


def _agent(tx: Transaction, scope: Scope, spec: AgentSpec, info: ModelInfo) -> Agent:
    now = tx.clock.now()
    agent_fields = {field.name for field in fields(Agent) if field.init}
    values = {name: getattr(spec, name) for name in AgentSpec.__slots__ if name in agent_fields}
    values |= model_fields(spec, info)
    if spec.clears_buffer is None:
        values["clears_buffer"] = TRAITS[spec.agent_type].clears_buffer
    return Agent(
        **values
        | {"name": spec.name or f"agent-{secrets.token_hex(3)}", "system": spec.system or ""}
        | {"id": spec.id or new_id("agent")},
        organization_id=scope.organization_id,
        created_by=scope.user_id,
        updated_by=scope.user_id,
        created_at=now,
        updated_at=now,
    )


def _first_messages(
    tx: Transaction, runtime: Runtime, state: AgentState, spec: AgentSpec
) -> tuple[list[Message], str]:
    """Return a conversation's first messages, the system message first, and its prompt key.

    The key tells which prompt the system message was rendered from.
    """
    system, key = system_message(tx, runtime, state)
    if spec.beginning is not None:
        return [system, *given_messages(state, tx.clock, spec.beginning)], key
    provider = (
        runtime.organization_providers.known(state.agent.organization_id)
        .get(state.agent.model)
        .info.provider
    )
    return [system, *initial_messages(state, tx.clock, provider)], key


def rules_of(spec: AgentSpec, agent_tools: Sequence[Tool]) -> tuple[ToolRule, ...]:
    """Return the agent's tool rules, each once.

    They are the rules of the spec, those of its base tools if the spec or its type asks for them,
    and the approvals that its tools need.

    Args:
        spec: The spec. Its rules about the end of a turn override those of base tools.
        agent_tools: All tools of the agent.
    """
    traits = TRAITS[spec.agent_type]
    uses_base_rules = traits.has_base_rules if spec.has_base_rules is None else spec.has_base_rules
    ending_tools = {
        rule.tool_name for rule in spec.tool_rules if rule.type in ("exit_loop", "continue_loop")
    }
    base = (
        base_rules(tool.name for tool in agent_tools if tool.name not in ending_tools)
        if uses_base_rules
        else ()
    )
    if uses_base_rules and not {rule.tool_name for rule in traits.rules} - {
        tool.name for tool in agent_tools
    }:
        base = (*traits.rules, *base)
    gated = tuple(
        ToolRule(tool.name, "requires_approval") for tool in agent_tools if tool.needs_approval
    )
    return each_once((*spec.tool_rules, *base, *gated))


def each_once(rules: Iterable[ToolRule]) -> tuple[ToolRule, ...]:
    """Return the rules in their order, without repetitions.

    Args:
        rules: The rules; of equal ones the first stays.
    """
    unique_rules: list[ToolRule] = []
    for rule in rules:
        if rule not in unique_rules:
            unique_rules.append(rule)
    return tuple(unique_rules)


def _reset(
    tx: Transaction, runtime: Runtime, scope: Scope, agent_id: str
) -> tuple[AgentState, int]:
    """Start the conversation over.

    Returns the state, and a seq up to which old messages may still have to be purged.
    """
    state = agents.load_whole(tx, scope, agent_id)
    conversation = require_own(scope, runs.lock_idle(tx, scope, state.conversation.id))
    # A conversation of usual length is emptied here. For a long one, only the window is emptied.
    newest = deletion.empty_conversation(tx, scope, conversation.id)
    runs.forget_bodies(tx, conversation.id)
    first_messages, key = _first_messages(
        tx, runtime, state, AgentSpec(agent_type=state.agent.agent_type)
    )
    insert_messages(tx, first_messages)
    window = [message.id for message in first_messages]
    conversations.start_over(tx, conversation.id, window, key)
    emptied = replace(conversation, window=tuple(window), prompt_key=key, message_count=len(window))
    return replace(state, conversation=emptied), newest
