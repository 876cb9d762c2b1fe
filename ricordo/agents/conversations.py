"""Create, change, fork, recompile, cancel and delete an agent's conversations.

Each conversation has a separate system message, window and lease. They all share the agent's blocks
and tools. A message belongs to only one conversation. A fork shares the earlier messages of its
origin, so nothing is copied.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson

from ricordo.agents.agent_types import memory_in_prompt, profile_of, with_profile
from ricordo.agents.deletion import delete_conversation
from ricordo.agents.run_end import CANCELLED, cancel_open, denied
from ricordo.agents.step_decisions import rulebook
from ricordo.domain.agent import AgentState, Conversation, effective
from ricordo.domain.egress import Destination
from ricordo.domain.ids import is_any_id, new_id
from ricordo.domain.message import Message, TextPart
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, Conflict, Forbidden, Invalid, NotFound
from ricordo.memory.egress import spans_of
from ricordo.prompt.egress import cleared_state
from ricordo.prompt.system_prompt import SystemPrompt, system_prompt
from ricordo.prompt.truncation import exchanges
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agents, blocks, conversations, messages, proposals, runs, users
from ricordo.storage.engine.repository import require_found
from ricordo.storage.engine.store import Transaction

DEFAULT = "default"
_SUMMARY_LENGTH = 200  # characters of a program's name that a new conversation shows
SHARED = (
    "This conversation is shared, so others would see your message. Create a separate one: POST "
    "/v1/conversations/."
)


def resolve_conversation(
    tx: Transaction, scope: Scope, name: str, agent_id: str | None = None
) -> Conversation:
    """Return the conversation that a caller names.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        name: The conversation's id; or `default`; or an agent's id, which means that agent's
            default conversation with the caller.
        agent_id: The agent of the conversation. Required with `default`; otherwise None skips the
            check that the conversation belongs to this agent.

    Raises:
        NotFound: There is no such conversation, or it belongs to another agent.
        Invalid: The name is `default`, without an agent.
    """
    if name == DEFAULT and not agent_id:
        raise Invalid('Every agent has a conversation "default". Name the agent in agent_id.')
    if owner_id := _agent_of(name, agent_id):
        conversation = conversations.default_of(tx, scope, owner_id)
        if conversation is None:
            agents.require(tx, scope, owner_id)
        return require_found(conversation, "Conversation", name)
    conversation = conversations.require(tx, scope, name)
    if agent_id and conversation.agent_id != agent_id:
        raise NotFound(f"Conversation with ID {name} not found")
    return conversation


async def open_conversation(
    runtime: Runtime, scope: Scope, name: str, agent_id: str | None = None
) -> Conversation:
    """Return the conversation that a caller names; create a user's missing default one.

    Args:
        runtime: The server's parts.
        scope: The caller. A default conversation is created only for a caller who is limited to one
            user.
        name: A name as in `resolve_conversation`.
        agent_id: An agent as in `resolve_conversation`.

    Raises:
        NotFound: There is no such conversation or agent.
        Invalid: The name is `default`, without an agent.
    """
    try:
        return await runtime.store.read(lambda tx: resolve_conversation(tx, scope, name, agent_id))
    except NotFound:
        if not (scope.subject and _agent_of(name, agent_id)):
            raise
    try:
        await runtime.organization_providers.of(scope.organization_id)
        owner_id = _agent_of(name, agent_id) or ""
        return await runtime.store.write(lambda tx: begin_default(tx, runtime, scope, owner_id))
    except Collision:
        return await runtime.store.read(lambda tx: resolve_conversation(tx, scope, name, agent_id))


async def open_named_conversation(
    runtime: Runtime, scope: Scope, agent_id: str, name: str
) -> Conversation:
    """Return the caller's conversation with this name; create it if missing.

    Args:
        runtime: The server's parts.
        scope: The caller.
        agent_id: The agent.
        name: The id of a conversation that the caller may see, or any text. The id of a named
            conversation is derived from the user, the agent and the text, so the same text names a
            different conversation for each user and agent. A new conversation's summary shows the
            text's first 200 characters.

    Raises:
        NotFound: There is no such agent, or no conversation with this id.
    """
    if is_any_id(name, "conv"):
        return await open_conversation(runtime, scope, name, agent_id)
    key = orjson.dumps([scope.organization_id, scope.subject_id, agent_id, name]).decode()
    id = f"conv-{uuid5(NAMESPACE_URL, key)}"
    try:
        return await open_conversation(runtime, scope, id, agent_id)
    except NotFound:
        values = {"summary": name[:_SUMMARY_LENGTH]}
    try:
        return await create_conversation(runtime, scope, agent_id, values, id=id)
    except Collision:
        return await open_conversation(runtime, scope, id, agent_id)


async def waiting_message(runtime: Runtime, conversation: Conversation) -> Message | None:
    """Return the conversation's last message if its calls wait for an answer, else None.

    Args:
        runtime: The server's parts.
        conversation: The conversation as it was read. Its window names the last message.
    """
    last = await runtime.store.read(lambda tx: messages.by_ids(tx, conversation.window[-1:]))
    return next((message for message in last if message.is_waiting), None)


def begin_default(tx: Transaction, runtime: Runtime, scope: Scope, agent_id: str) -> Conversation:
    """Return the caller's default conversation with the agent; create it if missing.

    Args:
        tx: The transaction.
        runtime: The server's parts. The organization's models should have been read, since the new
            system message is rendered for the agent's model.
        scope: The caller.
        agent_id: The agent.

    Raises:
        NotFound: The caller has no such agent.
        Collision: Another transaction created the conversation meanwhile.
    """
    state = agents.load(tx, scope, agent_id)
    if not state.conversation.window:
        # Wait for a concurrent creation, since a collision would undo this whole transaction.
        agents.lock(tx, scope, agent_id)
        state = agents.load(tx, scope, agent_id)
    if state.conversation.window:
        return state.conversation
    now = tx.clock.now()
    system, key = system_message(tx, runtime, state)
    conversation = replace(
        state.conversation, window=(system.id,), prompt_key=key, message_count=1, hidden=True
    )
    return _insert(
        tx, replace(conversation, created_by=scope.user_id, created_at=now, updated_at=now), system
    )


def require_own(scope: Scope, conversation: Conversation) -> Conversation:
    """Return the conversation if the caller may write in it.

    Args:
        scope: The caller.
        conversation: A conversation that the caller may read.

    Raises:
        Forbidden: The caller may only read the conversation.
    """
    if not scope.owns(conversation.user_id):
        raise Forbidden(SHARED)
    return conversation


def _agent_of(name: str, agent_id: str | None) -> str | None:
    """Return the agent whose default conversation the caller names.

    Returns None for another conversation.
    """
    if name == DEFAULT:
        return agent_id
    if name.startswith("agent-"):
        return name
    return None


async def create_conversation(
    runtime: Runtime,
    scope: Scope,
    agent_id: str,
    values: Mapping[str, Any],
    user: str | None = None,
    *,
    id: str | None = None,
) -> Conversation:
    """Create another conversation of the agent, with a separate system message.

    Args:
        runtime: The server's parts.
        scope: The caller.
        agent_id: The agent.
        values: Columns of the conversation; the agent's values are used for missing columns.
            `model_settings` contains only differences.
        user: The user whose memory the conversation shows, by id or by name; an unknown name
            creates a user. None: the caller's user, or else the user of the agent's default
            conversation.
        id: The id of the new conversation; None generates one.

    Raises:
        NotFound: The agent, the model or the user does not exist.
        Invalid: No user can have this name.
        Forbidden: The caller may not name this user.
        Collision: A conversation has this `id` already, or the name looks like another user's.
    """
    if handle := values.get("model"):
        info = await (await runtime.organization_providers.of(scope.organization_id)).require(
            handle
        )
        window = values.get("context_window") or info.context_window
        values = {**values, "model": info.handle, "context_window": window}

    def work(tx: Transaction) -> Conversation:
        state = agents.load(tx, scope, agent_id)
        now = tx.clock.now()
        conversation = Conversation(
            **values,
            id=id or new_id("conv"),
            organization_id=state.agent.organization_id,
            agent_id=agent_id,
            user_id=require_subject(tx, scope, user) or state.conversation.user_id,
            created_by=scope.user_id,
            created_at=now,
            updated_at=now,
            message_count=1,
        )
        user_id = scope.subject_id or conversation.user_id
        visible_blocks = blocks.of_agent(
            tx, agent_id, user_id, state.agent.course, memory_id=state.agent.memory_id
        )
        system, key = system_message(
            tx, runtime, replace(state, conversation=conversation, blocks=visible_blocks)
        )
        return _insert(tx, replace(conversation, window=(system.id,), prompt_key=key), system)

    return await runtime.store.write(work)


async def change_conversation(
    runtime: Runtime, scope: Scope, conversation_id: str, changes: Mapping[str, Any]
) -> Conversation:
    """Change these columns of the conversation.

    A running turn continues with the old values.

    Args:
        runtime: The server's parts.
        scope: The caller.
        conversation_id: The conversation's id, not another name of it.
        changes: New values by column. `model` is a handle, or None for the agent's model. A new
            model without a `context_window` also sets the window to the model's.

    Raises:
        NotFound: There is no such conversation or model.
        Forbidden: The caller may only read the conversation.
    """
    conversation = await runtime.store.read(lambda tx: _own(tx, scope, conversation_id))
    if "model" in changes or ("context_window" in changes and not changes["context_window"]):
        handle = changes.get("model", conversation.model)
        models = await runtime.organization_providers.of(scope.organization_id)
        info = await models.require(handle) if handle else None
        # The window is now the new model's, and token counts of another provider are useless.
        window = changes.get("context_window") or (info and info.context_window)
        changes = {**changes, "context_window": window, "token_percent": None}
        if "model" in changes:
            changes["model"] = info and info.handle

    def work(tx: Transaction) -> Conversation:
        conversations.change(tx, conversation_id, **changes)
        return conversations.require(tx, scope, conversation_id)

    return await runtime.store.write(work)


async def fork_conversation(
    runtime: Runtime,
    scope: Scope,
    conversation_id: str,
    *,
    message_id: str | None = None,
    is_hidden: bool = False,
    id: str | None = None,
) -> Conversation:
    """Create a conversation that continues the saved window of this one.

    Calls without results are left out, such as calls that wait for approval or belong to a running
    turn. Only the original conversation can answer them.

    Args:
        runtime: The server's parts.
        scope: The caller, who only has to be allowed to read the conversation.
        conversation_id: The conversation to fork.
        message_id: The last message of the window that the fork shares, with the results of its
            calls; None: the window's end.
        is_hidden: Lists leave the fork out.
        id: The id of the fork; None generates one.

    Raises:
        NotFound: There is no such conversation.
        Invalid: The message is not in the window, or its calls have no results yet.
        Collision: Another conversation has this `id`.
    """

    def work(tx: Transaction) -> Conversation:
        # Under the lock no one can save in the conversation, or delete it before its fork is
        # stored.
        conversations.lock(tx, conversation_id)
        source = conversations.require(tx, scope, conversation_id)
        state = agents.load(tx, scope, source.agent_id, source.id)
        window = messages.by_ids(tx, source.window)
        end = _end_of_fork(window, message_id)
        open_runs = runs.open_runs(tx, conversation_id=source.id)
        unsaved = [
            message
            for run in open_runs
            for message in messages.of_run(tx, run.id)
            if message.id not in source.window
        ]
        shared = window[1:end]
        left_out = [*window[max(end, 1) :], *unsaved]
        newest = (
            min(
                (message.seq for message in left_out),
                default=conversations.newest_of(tx, source.id) + 1,
            )
            - 1
        )
        count = conversations.count_shared(tx, source, newest) + 1
        now = tx.clock.now()
        fork = replace(
            source,
            id=id or new_id("conv"),
            is_default=False,
            user_id=source.user_id or scope.subject,
            hidden=is_hidden,
            archived_at=None,
            forked_from=source.id,
            forked_seq=newest,
            message_count=count,
            last_message_at=None,
            last_run_ended_at=None,
            last_run_ms=None,
            last_stop_reason=None,
            created_by=scope.user_id,
            created_at=now,
            updated_at=now,
        )
        recall_count = max(0, count - len(shared) - 1)
        system, key = system_message(
            tx, runtime, replace(state, conversation=fork), recall_count=recall_count
        )
        # The new system message gets the time of the source's system message, so that it comes
        # before all shared messages.
        system = replace(system, created_at=window[0].created_at) if window else system
        ids = (system.id, *(message.id for message in shared))
        return _insert(tx, replace(fork, window=ids, prompt_key=key), system)

    return await runtime.store.write(work)


async def recompile_system(
    runtime: Runtime, scope: Scope, conversation_id: str, *, is_dry: bool = False
) -> str:
    """Render the conversation's system message again, and return its text.

    Args:
        runtime: The server's parts.
        scope: The caller.
        conversation_id: The conversation.
        is_dry: Return the text without saving it.

    Raises:
        NotFound: There is no such conversation.
        Forbidden: The text is to be saved, and the caller may only read the conversation.
        Busy: A turn runs in it, so its system message cannot be saved.
        Conflict: Its window does not begin with a system message.
    """

    def compile_prompt(tx: Transaction) -> tuple[Conversation, SystemPrompt]:
        conversation = conversations.require(tx, scope, conversation_id)
        state = agents.load(tx, scope, conversation.agent_id, conversation.id)
        return conversation, _prompt(
            tx, runtime, state, max(0, conversation.message_count - len(conversation.window))
        )

    def work(tx: Transaction) -> str:
        # A running turn keeps its system message in memory and saves it with its steps.
        require_own(scope, runs.lock_idle(tx, scope, conversation_id))
        conversation, prompt = compile_prompt(tx)
        system = next(iter(messages.by_ids(tx, conversation.window[:1])), None)
        if system is None or system.role != "system":
            raise Conflict(
                "This conversation does not begin with a system message, so there is none to "
                "recompile."
            )
        messages.rewrite(tx, system.with_text(prompt.text))
        conversations.change(tx, conversation.id, prompt_key=prompt.key)
        return prompt.text

    if is_dry:
        return await runtime.store.read(lambda tx: compile_prompt(tx)[1].text)
    return await runtime.store.write(work)


async def stop_and_delete(runtime: Runtime, scope: Scope, conversation_id: str) -> None:
    """Stop the conversation's turn and delete it.

    Args:
        runtime: The server's parts.
        scope: The caller.
        conversation_id: The conversation.

    Raises:
        NotFound: There is no such conversation.
        Forbidden: The caller may only read the conversation.
        Conflict: It is a default conversation of its agent or of a user.
    """
    conversation = await runtime.store.read(lambda tx: _own(tx, scope, conversation_id))
    if not conversations.is_any_default(conversation):
        await _cancel_open(runtime, scope, conversation_id)
    await delete_conversation(runtime, scope, conversation_id)


async def cancel_conversation(
    runtime: Runtime, scope: Scope, conversation_id: str
) -> dict[str, bool]:
    """Cancel the conversation's runs, and deny its waiting calls.

    Args:
        runtime: The server's parts.
        scope: The caller.
        conversation_id: The conversation.

    Returns:
        By run id, True if the run was cancelled. A run whose waiting calls were denied counts as
        cancelled.

    Raises:
        NotFound: There is no such conversation.
        Forbidden: The caller may only read the conversation.
    """
    outcome = await _cancel_open(runtime, scope, conversation_id)
    denial = await runtime.store.write(lambda tx: deny_waiting(tx, conversation_id))
    return outcome | ({denial.run_id: True} if denial and denial.run_id else {})


async def cancel_run(runtime: Runtime, scope: Scope, run_id: str) -> bool:
    """Cancel an open run of any process; return False if it had ended already.

    Args:
        runtime: The server's parts.
        scope: The caller.
        run_id: The run.

    Raises:
        NotFound: The caller has no such run.
    """
    if live := runtime.live.get(run_id):
        await runtime.store.read(lambda tx: runs.get(tx, scope, run_id))
        await live.cancel()
        run = await runtime.store.read(lambda tx: runs.get(tx, scope, run_id))
        return run.status == "cancelled"
    cancelled = await runtime.store.write(lambda tx: cancel_open(tx, runs.get(tx, scope, run_id)))
    return cancelled is not None


def deny_waiting(
    tx: Transaction, conversation_id: str, run_ids: Collection[str] | None = None
) -> Message | None:
    """Deny the conversation's waiting calls; return None if no call waits.

    Nothing is denied if a turn is already resuming with an answer.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        run_ids: Deny only calls of these runs; None for calls of any run.
    """
    conversations.lock(tx, conversation_id)
    conversation = conversations.get(tx, conversation_id)
    if conversation is None or runs.open_runs(tx, conversation_id=conversation_id):
        return None
    last = messages.by_ids(tx, conversation.window[-1:])
    if not last or not last[0].is_waiting:
        return None
    if run_ids is not None and last[0].run_id not in run_ids:
        return None
    results = denied(tx, last[0], CANCELLED)
    insert_messages(tx, [results])
    # The turn that asked has ended, so the conversation's stop reason is changed here.
    conversations.save_window(
        tx, conversation.id, [*conversation.window, results.id], conversation.prompt_key, added=1
    )
    conversations.change(tx, conversation.id, last_stop_reason="cancelled")
    return results


def require_subject(tx: Transaction, scope: Scope, name: str | None) -> str | None:
    """Return the id of the user whose memory a conversation shows.

    Args:
        tx: The transaction.
        scope: The caller.
        name: The user's id or name; an unknown name creates a user. None: the caller's user, if the
            caller is limited to one.

    Raises:
        NotFound: No user has this id.
        Invalid: No user can have this name.
        Forbidden: The caller is limited to another user.
        Collision: The name looks like another user's.
    """
    if name is None:
        return scope.subject
    if scope.subject_id is not None and users.find(tx, scope, name) is None:
        raise Forbidden("Your key can only create conversations about yourself. Leave user_id out.")
    return users.find_or_make(tx, scope, name).id


def _own(tx: Transaction, scope: Scope, conversation_id: str) -> Conversation:
    return require_own(scope, conversations.require(tx, scope, conversation_id))


def system_message(
    tx: Transaction, runtime: Runtime, state: AgentState, *, recall_count: int = 0
) -> tuple[Message, str]:
    """Return a new system message for the state, not yet stored, and its prompt's key.

    Parts of the memory that an egress policy withholds from the agent's model are left out.

    Args:
        tx: The transaction, or a read.
        runtime: The server's parts. The organization's models should have been read.
        state: The agent with the conversation that gets the message.
        recall_count: The number of the conversation's messages outside its window.
    """
    prompt = _prompt(tx, runtime, state, recall_count)
    message = state.conversation.new_message("system", (TextPart(prompt.text),), tx.clock.now())
    return message, prompt.key


def _prompt(
    tx: Transaction, runtime: Runtime, state: AgentState, recall_count: int
) -> SystemPrompt:
    (state,) = runtime.complete(tx, (effective(state),))
    models = runtime.organization_providers.known(state.agent.organization_id)
    find_spans = partial(spans_of, runtime.settings.data_dir)
    try:
        info = models.get(state.agent.model).info
        provider = info.provider
        destination = runtime.networks.of_model(info)
        state = cleared_state(state, destination, runtime.new_clearance(), find_spans)
        profile = profile_of(state.agent, info, runtime.settings.model_profile)
        state = with_profile(state, profile, runtime.toolbox)
        mode = memory_in_prompt(state.agent, info, runtime.settings.memory_in_prompt)
    except NotFound:  # an imported agent whose provider is not configured yet
        provider = state.agent.model.partition("/")[0]
        state = cleared_state(state, Destination(provider), runtime.new_clearance(), find_spans)
        profile = "full"
        mode = "step"
    lines = rulebook(state).lines
    return system_prompt(
        state,
        provider,
        tx.clock.now(),
        recall_count=recall_count,
        rule_lines=lines,
        is_brief=profile != "full",
        has_line_numbers=mode == "step",
    )


async def _cancel_open(runtime: Runtime, scope: Scope, conversation_id: str) -> dict[str, bool]:
    def find(tx: Transaction) -> list[str]:
        _own(tx, scope, conversation_id)
        return [run.id for run in runs.open_runs(tx, conversation_id=conversation_id)]

    return {
        run_id: await cancel_run(runtime, scope, run_id)
        for run_id in await runtime.store.read(find)
    }


def _insert(tx: Transaction, conversation: Conversation, system: Message) -> Conversation:
    user_id = conversation.user_id
    if user_id and proposals.are_untold(tx, conversation.agent_id, user_id):
        # The new conversation reports the rejections that no other conversation has reported.
        conversation = replace(conversation, has_untold=True)
    conversations.insert_one(tx, conversation)
    insert_messages(tx, [system])
    return conversation


def _end_of_fork(window: Sequence[Message], message_id: str | None) -> int:
    """Return the index at which a fork's part of the window ends.

    That part ends with `message_id` and the results of its calls; it contains no call without its
    result.
    """
    pieces = exchanges(window)
    index = -1
    if message_id is not None:
        index = next(
            (index for index, message in enumerate(window) if message.id == message_id), -1
        )
        if index < 0:
            raise Invalid(
                f"Message {message_id} is not in view in this conversation. "
                "Fork at one of its messages in view."
            )
        pieces = [piece for piece in pieces if piece[0] <= index]
    if not pieces:
        return 0
    begin, end = pieces[-1]
    results = {
        part.call_id
        for message in window[begin:end]
        for part in message.tool_returns
        if message.role == "tool"
    }
    if all(call.call_id in results for call in window[begin].tool_calls):
        return end
    if index >= begin:
        raise Invalid(
            f"Message {message_id} belongs to a call that has no result yet. "
            "Fork at a message before it, or wait for the result."
        )
    return begin


def set_window(tx: Transaction, scope: Scope, conversation_id: str, ids: Sequence[str]) -> None:
    """Set the context window to these messages.

    Args:
        tx: The transaction.
        scope: The caller.
        conversation_id: The conversation.
        ids: Messages of this conversation, each once, the system message first.

    Raises:
        NotFound: There is no such conversation.
        Busy: A turn runs in the conversation.
        Conflict: Calls of the conversation wait for an answer.
        Invalid: The ids are not as described above.
    """
    conversation = runs.lock_idle(tx, scope, conversation_id)
    if conversation.waits:
        raise Conflict("Tool calls of this conversation wait for an answer. Answer them first.")
    messages_by_id = {
        message.id: message
        for message in messages.by_ids(tx, ids)
        if message.conversation_id == conversation.id
    }
    if not ids or len(messages_by_id) < len(ids) or messages_by_id[ids[0]].role != "system":
        raise Invalid(
            "message_ids must begin with the system message, and name messages of this "
            "conversation, each once."
        )
    # The next turn renders the prompt again, since the first message may now be an older system
    # message.
    conversations.change(tx, conversation.id, window=list(ids), prompt_key="")
