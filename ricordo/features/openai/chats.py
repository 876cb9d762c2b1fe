"""Find the conversation and the new messages of a chat that its client stores.

Such a client sends its whole chat each time. For each run that answers it, two digests of the chat
are recorded. The exact one covers all messages. The loose one, for clients that name their chats,
covers only the user's messages, since clients change how answers look.

The next request continues the conversation that is recorded for the longest known beginning of its
chat. A beginning is known by its exact digest, or because the shown answers are the agent's. So if
a person edited or deleted an answer, everything from there on counts as new. If the conversation
has newer messages, for example after an edit or "regenerate", it is forked.

Both digests are stored in the transaction that ends the run. For a new chat, the loose digest is
stored already when its run starts, since nothing else leads to the conversation until the run ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import orjson

from ricordo.agents.conversations import (
    DEFAULT,
    cancel_conversation,
    create_conversation,
    fork_conversation,
    open_conversation,
)
from ricordo.agents.history import PastMessage, import_messages
from ricordo.api.call import RequestContext
from ricordo.domain.agent import Conversation
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.features.openai.answers import AnswerReader
from ricordo.features.openai.clearance import labels_of_messages
from ricordo.features.openai.models import ChatMessage, without_reason
from ricordo.features.openai.queries import (
    AnsweredState,
    answered_states,
    chat_summary,
    note_run,
)
from ricordo.features.openai.shown_answers import (
    answer_key,
    answers_of,
    own_answers,
    shown_before,
    unsaved_rest,
)
from ricordo.storage import conversations, messages, runs
from ricordo.storage.engine.store import Store, Transaction

_DIGEST = 20
# The number of states to search first. Only after an edit far back does a chat continue an older
# state.
_LIKELY = 2


@dataclass(frozen=True, slots=True)
class ClientChat:
    """A chat as a client sends it.

    `name` is the client's id of the chat, or None. Without a name, `owner` distinguishes chats.
    """

    agent_id: str
    name: str | None
    owner: str
    messages: Sequence[ChatMessage]
    is_retry: bool = False

    @property
    def is_answer(self) -> bool:
        """True if the chat ends with results of the client's tools."""
        return self.messages[-1].role == "tool"

    def new_from(self) -> int:
        """Return the index at which the last series of messages with one role begins."""
        index = len(self.messages)
        while index and self.messages[index - 1].role == self.messages[-1].role:
            index -= 1
        return index


@dataclass(frozen=True, slots=True)
class Continuation:
    """The conversation that continues a chat, and the index of the chat's first new message.

    `is_begun` is false if the conversation is new. `shown` is the part of a stopped answer that the
    client shows but the conversation lacks. If the new messages contain answers, `own_answers` has
    the keys of the agent's answers in this chat.
    """

    conversation_id: str
    new_from: int
    is_begun: bool = True
    shown: str = ""
    own_answers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _State:
    """The two keys for a chat's state after some of its messages."""

    exact: str
    loose: str


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The first messages of a chat, up to `index`, which a run answered.

    `rest` is text of its last answer that the client shows but that is not stored.
    """

    index: int
    state: AnsweredState
    rest: str = ""


class ChatStates:
    """The states of a chat: before its first message, and after each."""

    def __init__(self, scope: Scope, chat: ClientChat) -> None:
        owner = None if chat.name else chat.owner
        seed = [scope.organization_id, scope.subject_id, chat.agent_id, chat.name, owner]
        exact, loose = (
            blake2b(orjson.dumps([kind, *seed]), digest_size=_DIGEST) for kind in ("exact", "loose")
        )
        self.all = [_State(exact.hexdigest(), loose.hexdigest())]
        for message in chat.messages:
            if message.role == "user":
                digest_input = _digested("user", message)
                loose.update(digest_input)
                exact.update(digest_input)
            elif message.role == "assistant" and (message.text.strip() or message.tool_calls):
                exact.update(_digested("assistant", message))
            self.all.append(_State(exact.hexdigest(), loose.hexdigest()))
        self._exact = exact

    def after(self, answer: str, call_ids: Sequence[str] = ()) -> str:
        """Return the exact key of the chat extended by this answer.

        Args:
            answer: The answer's text.
            call_ids: The ids of its calls of the client's tools.
        """
        exact = self._exact.copy()
        if answer.strip() or call_ids:
            exact.update(orjson.dumps(["assistant", answer.strip(), [], list(call_ids)]))
        return exact.hexdigest()


def _digested(role: str, message: ChatMessage) -> bytes:
    if isinstance(message.content, list):
        parts = message.content
    else:
        parts = []
    pictures = [part.model_dump()["image_url"] for part in parts if part.image_url]
    return orjson.dumps(
        [role, message.own_text, pictures, [call.id for call in message.tool_calls or ()]]
    )


@dataclass(slots=True)
class ChatNotes:
    """Records the run that answers a chat.

    It writes in the run's transactions. It writes again after the run's answer was read, if the
    answer differs.
    """

    store: Store
    states: ChatStates
    is_begun: bool
    _noted: set[str] = field(default_factory=set)

    def save(self, tx: Transaction, run: Run, run_messages: Sequence[Message]) -> None:
        """Record the run when it starts or ends, with the agent's messages.

        Args:
            tx: The run's transaction, at its start or its end.
            run: The run in its present state.
            run_messages: All messages of the run at its end; none at its start or after a failure.
        """
        texts = [
            message.text for message in run_messages if message.role == "assistant" and message.text
        ]
        exact = []
        if run_messages and run.stop_reason != "requires_approval":
            exact.append(self.states.after("\n\n".join(texts)))
        self._note(tx, run, exact)

    async def read(self, reader: AnswerReader) -> None:
        """Record the answer that was read, if it differs from the saved one."""
        run = reader.run
        if run is None or (run.ended_at is None and self.is_begun):
            return
        exact = []
        if run.ended_at is not None:
            call_ids = [call.call_id for call in reader.calls]
            exact.append(self.states.after(without_reason(reader.text), call_ids))
        if not self._noted.issuperset([*exact, self.states.all[-1].loose]):
            await self.store.write(lambda tx: self._note(tx, run, exact))

    def _note(self, tx: Transaction, run: Run, exact: list[str]) -> None:
        if run.ended_at is None and self.is_begun:
            return
        keys = [key for key in (self.states.all[-1].loose, *exact) if key not in self._noted]
        note_run(tx, keys, run)
        tx.after_commit.append(lambda: self._noted.update(keys))


async def continue_chat(
    context: RequestContext, chat: ClientChat, states: ChatStates, client_tools: Sequence[str]
) -> Continuation:
    """Return the conversation that continues the chat.

    An unknown chat begins a conversation; its earlier messages are stored for recall.

    Args:
        context: The request's context.
        chat: The chat as the client sent it, with at least one message.
        states: The states of this chat.
        client_tools: The names of the client's tools in this request. A waiting call of these is
            denied if the client continues without its result.

    Raises:
        NotFound: if the caller may not use the agent.
        Invalid: for results of unknown calls.
    """
    if answered := await _last_answered(context, chat, states.all):
        state = answered.state
        tools = () if chat.is_answer else client_tools
        conversation_id = state.open_conversation_id or await _conversation_after(
            context, state.run_id, tools
        )
        if conversation_id:
            own_answers = await _own_answers(context, chat, answered.index)
            return Continuation(
                conversation_id, answered.index, shown=answered.rest, own_answers=own_answers
            )
    if chat.is_answer:
        raise Invalid(
            "These tool results belong to no call of this chat. Send the chat with its calls "
            "unchanged."
        )
    new_from = chat.new_from()
    own_answers = await _own_answers(context, chat, 0)
    if own_answers:
        new_from = 0  # a known chat that was edited at its beginning
    if chat.name:
        summary = {"summary": chat_summary(chat.name)}
    else:
        summary = {}
    conversation = await create_conversation(context.runtime, context.scope, chat.agent_id, summary)
    earlier = [
        message
        for message in chat.messages[:new_from]
        if message.role in ("user", "assistant") and message.text.strip()
    ]
    if earlier:
        labels = await context.store.read(lambda tx: labels_of_messages(tx, context, chat.agent_id))
        past = [
            PastMessage(
                "user" if message.role == "user" else "assistant",
                (message.text,),
                egress=labels.get(answer_key(message.text)),
            )
            for message in earlier
        ]
        await import_messages(context.store, context.scope, chat.agent_id, past, conversation.id)
    return Continuation(conversation.id, new_from, is_begun=False, own_answers=own_answers)


async def _own_answers(context: RequestContext, chat: ClientChat, new_from: int) -> frozenset[str]:
    """If the new messages contain answers, return the keys of the agent's answers in this chat."""
    new_messages = chat.messages[new_from:]
    if not any(message.role == "assistant" and message.text.strip() for message in new_messages):
        return frozenset()
    user_id = context.scope.subject
    return await context.store.read(lambda tx: own_answers(tx, chat.agent_id, user_id, chat.name))


async def continue_after(
    context: RequestContext, chat: ClientChat, run_id: str, client_tools: Sequence[str]
) -> Continuation:
    """Return the conversation after this run; all messages of the chat are new in it.

    Args:
        context: The request's context.
        chat: The new messages.
        run_id: The run that gave the earlier response.
        client_tools: As in `continue_chat`.

    Raises:
        NotFound: if the caller does not see the run, it is another agent's, or its messages left
            the context window.
    """
    run = await context.store.read(lambda tx: runs.get(tx, context.scope, run_id))
    tools = () if chat.is_answer else client_tools
    conversation_id = None
    if run.agent_id == chat.agent_id:
        conversation_id = await _conversation_after(context, run_id, tools)
    if conversation_id is None:
        raise NotFound(
            "The earlier response left the context window, or another agent gave it. Start a new "
            "chat."
        )
    return Continuation(conversation_id, 0)


async def _last_answered(
    context: RequestContext, chat: ClientChat, states: Sequence[_State]
) -> _Beginning | None:
    """Return the longest answered beginning that the client has not changed, or None."""
    last = len(chat.messages)
    indexes = _beginnings(chat)
    if chat.is_answer:
        indexes = [chat.new_from()]

    def find(tx: Transaction) -> _Beginning | None:
        if chat.is_retry:
            state = answered_states(tx, [states[last].loose]).get(states[last].loose)
            if state:
                return _Beginning(chat.new_from(), state)
        return _answered_beginning(tx, chat, states, indexes)

    if indexes or chat.is_retry:
        return await context.store.read(find)
    return None


def _answered_beginning(
    tx: Transaction, chat: ClientChat, states: Sequence[_State], indexes: Sequence[int]
) -> _Beginning | None:
    """Return the longest beginning that is recorded, exactly or with the same answers, or None."""

    def keys_of(index: int) -> list[str]:
        state = states[index]
        if chat.name:
            return [state.exact, state.loose]
        return [state.exact]

    likely = indexes[:_LIKELY]
    answered = answered_states(tx, [key for index in likely for key in keys_of(index)])
    for index in likely:
        if state := answered.get(states[index].exact):
            return _with_rest(tx, chat, index, state)
        if state := answered.get(states[index].loose):
            if chat.is_answer:
                return _Beginning(index, state)
            break  # only a comparison of texts shows whether the client changed this answer
    if chat.is_answer or not (answered or indexes[_LIKELY:]):
        return None
    answered = answered_states(tx, [key for index in indexes for key in keys_of(index)])
    return _longest_shown(tx, chat, states, indexes, answered)


def _longest_shown(
    tx: Transaction,
    chat: ClientChat,
    states: Sequence[_State],
    indexes: Sequence[int],
    answered: Mapping[str, AnsweredState],
) -> _Beginning | None:
    """Return the longest beginning whose shown answers are the agent's, or None."""
    loose = {index: answered.get(states[index].loose) for index in indexes}
    texts = answers_of(tx, [state.run_id for state in loose.values() if state])
    longest: _Beginning | None = None
    is_shown = True
    for index in reversed(indexes):
        exact_state, state = answered.get(states[index].exact), loose[index]
        if exact_state:
            is_shown = True
            longest = _Beginning(index, exact_state)
            continue
        is_shown = is_shown and state is not None
        if is_shown and state:
            stored = answer_key(texts[state.run_id])
            shown = answer_key(shown_before(chat.messages, index)[1])
            is_shown = shown == stored or (not state.is_whole and shown.startswith(stored))
        if is_shown and state:
            longest = _Beginning(index, state)
    return longest and _with_rest(tx, chat, longest.index, longest.state)


def _with_rest(tx: Transaction, chat: ClientChat, index: int, state: AnsweredState) -> _Beginning:
    """Return the beginning with the text of a stopped answer that only the client has."""
    if state.is_whole:
        return _Beginning(index, state)
    stored = answers_of(tx, [state.run_id])[state.run_id]
    return _Beginning(index, state, unsaved_rest(stored, shown_before(chat.messages, index)[1]))


def _beginnings(chat: ClientChat) -> list[int]:
    """Return the indexes of the user's messages except the first, in reverse order."""
    indexes = [index for index, message in enumerate(chat.messages) if message.role == "user"]
    return indexes[:0:-1]


async def _conversation_after(
    context: RequestContext, run_id: str, client_tools: Sequence[str]
) -> str | None:
    """Return the conversation to continue after this run: its own, or a fork.

    The conversation is forked if it has later messages. Returns None if it cannot be continued.
    Waiting calls of these client tools are denied, since the client continued without results.
    """

    def find(tx: Transaction) -> tuple[Run, Conversation, list[str], Message | None]:
        run = runs.get(tx, context.scope, run_id)
        conversation = conversations.require(tx, context.scope, run.conversation_id)
        last_messages = messages.by_ids(tx, conversation.window[-1:])
        waiting_messages = [message for message in last_messages if message.is_waiting]
        run_message_ids = [message.id for message in messages.of_run(tx, run.id)]
        return run, conversation, run_message_ids, next(iter(waiting_messages), None)

    try:
        run, conversation, run_message_ids, waiting_message = await context.store.read(find)
    except NotFound:
        return None
    if waiting_message and all(call.name in client_tools for call in waiting_message.waiting_calls):
        await cancel_conversation(context.runtime, context.scope, conversation.id)
        return conversation.id
    if run.ended_at is None:
        await _stop_if_left(context, run)
    is_last = bool(conversation.window) and conversation.window[-1] in run_message_ids
    # If a person decided on the page, the conversation was continued there.
    if is_last or run.ended_at is None or run.stop_reason == "requires_approval":
        return conversation.id
    in_view = (id for id in reversed(run_message_ids) if id in conversation.window)
    last_id = next(in_view, "")
    try:
        fork = await fork_conversation(
            context.runtime, context.scope, conversation.id, message_id=last_id
        )
    except Invalid:  # a compaction removed its messages from view
        return None
    return fork.id


async def continue_call(context: RequestContext, chat: ClientChat) -> Continuation:
    """Return the caller's default conversation, with the last messages as new.

    Voice clients shorten interrupted answers and send greetings themselves, so their earlier
    messages are not compared. An answer that the client stopped reading is cancelled when the next
    message comes.
    """
    default = await open_conversation(context.runtime, context.scope, DEFAULT, chat.agent_id)
    for run in await context.store.read(lambda tx: runs.open_runs(tx, conversation_id=default.id)):
        await _stop_if_left(context, run)
    return Continuation(default.id, chat.new_from())


async def _stop_if_left(context: RequestContext, run: Run) -> None:
    """Cancel a chat's run if its client left the stream.

    OpenAI's API has no request to stop an answer; a client closes the stream instead.
    """
    live = context.runtime.live.get(run.id)
    if live is not None and not live.has_readers:
        await live.cancel()
