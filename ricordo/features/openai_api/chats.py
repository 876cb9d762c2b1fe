"""Chats that clients keep themselves: in which conversation a chat goes on, and which of its messages are new.

A client sends its whole chat each time. A run that answers it is noted by two digests of the chat until then: an exact one, of
all that was said, and for clients that name their chats a loose one, of what the user said alone, since clients change how
answers look. The longest beginning of the next request that is known says where to go on; where its conversation has gone on
since, as after an edit or "regenerate", that is a fork. Both are noted in the transaction that ends the run, and the loose one of a
chat that begins in the one that starts it: until then nothing else leads to its conversation.
"""

from collections.abc import Sequence
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
from ricordo.features.openai_api.answers import AnswerReader
from ricordo.features.openai_api.models import ChatMessage
from ricordo.features.openai_api.queries import AnsweredState, answered_states, note_run
from ricordo.storage import conversations, messages, runs
from ricordo.storage.engine.store import Store, Transaction

_DIGEST = 20
_LIKELY = 2  # ends of a chat that are looked for first: all but edits far back go on there


@dataclass(frozen=True, slots=True)
class ClientChat:
    """A chat as a client sends it. `name` is the client's id of it, None where it gives none; `owner` tells chats apart else."""

    agent_id: str
    name: str | None
    owner: str
    messages: Sequence[ChatMessage]
    is_retry: bool = False

    @property
    def is_answer(self) -> bool:
        """Whether it ends with results of the client's tools."""
        return self.messages[-1].role == "tool"

    def new_from(self) -> int:
        """Return where the last said messages, or results, begin."""
        place = len(self.messages)
        while place and self.messages[place - 1].role == self.messages[-1].role:
            place -= 1
        return place


@dataclass(frozen=True, slots=True)
class Continuation:
    """The conversation in which a chat goes on, and the place from which its messages are new there."""

    conversation_id: str
    new_from: int
    is_begun: bool = True


@dataclass(frozen=True, slots=True)
class _State:
    """A chat after some of its messages, by its two keys."""

    exact: str
    loose: str


class ChatStates:
    """The states of a chat: before its first message, and after each."""

    def __init__(self, scope: Scope, chat: ClientChat) -> None:
        seed = [
            scope.organization_id,
            scope.subject_id,
            chat.agent_id,
            chat.name,
            None if chat.name else chat.owner,
        ]
        exact, loose = (
            blake2b(orjson.dumps([kind, *seed]), digest_size=_DIGEST) for kind in ("exact", "loose")
        )
        self.all = [_State(exact.hexdigest(), loose.hexdigest())]
        for message in chat.messages:
            if message.role == "user":
                said = _digested("user", message)
                loose.update(said)
                exact.update(said)
            elif message.role == "assistant" and (message.text.strip() or message.tool_calls):
                exact.update(_digested("assistant", message))
            self.all.append(_State(exact.hexdigest(), loose.hexdigest()))
        self._exact = exact

    def after(self, answer: str, call_ids: Sequence[str] = ()) -> str:
        """Return the exact key of the chat with this answer."""
        exact = self._exact.copy()
        if answer.strip() or call_ids:
            exact.update(orjson.dumps(["assistant", answer.strip(), [], list(call_ids)]))
        return exact.hexdigest()


def _digested(role: str, message: ChatMessage) -> bytes:
    parts = message.content if isinstance(message.content, list) else []
    pictures = [part.model_dump()["image_url"] for part in parts if part.image_url]
    return orjson.dumps(
        [role, message.own_text, pictures, [call.id for call in message.tool_calls or ()]]
    )


@dataclass(slots=True)
class ChatNotes:
    """Notes which run answers a chat: in the run's own transactions, and what its reader knows better once that has read it."""

    store: Store
    states: ChatStates
    is_begun: bool
    _noted: set[str] = field(default_factory=set)

    def save(self, tx: Transaction, run: Run, said: Sequence[Message]) -> None:
        """Note the run as it starts or ends, with the agent's messages."""
        texts = [message.text for message in said if message.role == "assistant" and message.text]
        is_whole = bool(said) and run.stop_reason != "requires_approval"
        self._note(tx, run, [self.states.after("\n\n".join(texts))] if is_whole else [])

    async def read(self, reader: AnswerReader) -> None:
        """Note what was read of the run, where it differs from what was saved with it."""
        run = reader.run
        if run is None or (run.ended_at is None and self.is_begun):
            return
        exact = (
            []
            if run.ended_at is None
            else [self.states.after(reader.text, [call.call_id for call in reader.calls])]
        )
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
    """Return where the chat goes on; what is unknown here begins a conversation, with what was said before to be recalled.

    Raises NotFound, and Invalid for results of calls that nobody asked for.
    """
    if known := await _known(context, chat, states.all):
        new_from, state = known
        tools = () if chat.is_answer else client_tools
        if found := state.goes_on_in or await _conversation_after(context, state.run_id, tools):
            return Continuation(found, new_from)
    if chat.is_answer:
        raise Invalid(
            "These tool results answer no call of this chat. Send the chat with the calls as they came."
        )
    place = chat.new_from()
    summary = {"summary": f"chat_{chat.name}"} if chat.name else {}
    made = await create_conversation(context.runtime, context.scope, chat.agent_id, summary)
    earlier = [
        one
        for one in chat.messages[:place]
        if one.role in ("user", "assistant") and one.text.strip()
    ]
    if earlier:
        past = [
            PastMessage("user" if one.role == "user" else "assistant", (one.text,))
            for one in earlier
        ]
        await import_messages(context.store, context.scope, chat.agent_id, past, made.id)
    return Continuation(made.id, place, is_begun=False)


async def continue_after(
    context: RequestContext, chat: ClientChat, run_id: str, client_tools: Sequence[str]
) -> Continuation:
    """Return where a chat goes on after this run, of which all is new. Raises NotFound."""
    run = await context.store.read(lambda tx: runs.get(tx, context.scope, run_id))
    tools = () if chat.is_answer else client_tools
    found = (
        await _conversation_after(context, run_id, tools) if run.agent_id == chat.agent_id else None
    )
    if found is None:
        raise NotFound(
            "The earlier response is not in view any more, or another agent gave it. Begin a new chat."
        )
    return Continuation(found, 0)


async def _known(
    context: RequestContext, chat: ClientChat, states: Sequence[_State]
) -> tuple[int, AnsweredState] | None:
    """The longest beginning of the chat that a run answered, and that run."""
    last = len(chat.messages)
    places = [chat.new_from()] if chat.is_answer else _beginnings(chat)
    if chat.is_retry:
        places = [last, *places]

    def find(tx: Transaction) -> tuple[int, AnsweredState] | None:
        for some in filter(None, (places[:_LIKELY], places[_LIKELY:])):
            found = answered_states(tx, [key for place in some for key in keys_of(place)])
            for place in some:
                if state := next((found[key] for key in keys_of(place) if key in found), None):
                    return (chat.new_from() if chat.is_retry and place == last else place), state
        return None

    def keys_of(place: int) -> list[str]:
        exact, loose = states[place].exact, states[place].loose
        if chat.is_retry and place == last:
            return [loose]
        return [exact, loose] if chat.name else [exact]

    return await context.store.read(find) if places else None


def _beginnings(chat: ClientChat) -> list[int]:
    """The places before messages of the user with something of the user's before them, the last first."""
    places = [place for place, message in enumerate(chat.messages) if message.role == "user"]
    return places[:0:-1]


async def _conversation_after(
    context: RequestContext, run_id: str, client_tools: Sequence[str]
) -> str | None:
    """The conversation in which to go on after this run: its own, or a fork where it went on; None where that cannot be.

    Calls of these tools that wait there are denied, since the client went on without their results.
    """

    def find(tx: Transaction) -> tuple[Run, Conversation, list[str], Message | None]:
        run = runs.get(tx, context.scope, run_id)
        conversation = conversations.require(tx, context.scope, run.conversation_id)
        last = messages.by_ids(tx, conversation.window[-1:])
        said = [one.id for one in messages.of_run(tx, run.id)]
        return run, conversation, said, last[0] if last and last[0].is_waiting else None

    try:
        run, conversation, said, waiting = await context.store.read(find)
    except NotFound:
        return None
    if waiting and {call.name for call in waiting.tool_calls if call.is_gated} <= set(client_tools):
        await cancel_conversation(context.runtime, context.scope, conversation.id)
        return conversation.id
    if run.ended_at is None:
        await _stop_if_left(context, run)
    is_last = bool(conversation.window) and conversation.window[-1] in said
    # What a person decided on the page goes on in the conversation itself.
    if is_last or run.ended_at is None or run.stop_reason == "requires_approval":
        return conversation.id
    seen = [id for id in said if id in conversation.window]
    try:
        fork = await fork_conversation(
            context.runtime, context.scope, conversation.id, message_id=seen[-1] if seen else ""
        )
    except Invalid:  # a compaction took its messages out of view
        return None
    return fork.id


async def continue_call(context: RequestContext, chat: ClientChat) -> Continuation:
    """Return where a talk with a voice agent goes on: in the caller's default conversation, with what was said last.

    Voice stacks shorten what was interrupted, and greet on their own: what they send as said before tells nothing. Of an answer
    that they stopped reading nothing more is made once the next words are there.
    """
    scope, runtime = context.scope, context.runtime
    default = await open_conversation(runtime, scope, DEFAULT, chat.agent_id)
    for run in await context.store.read(lambda tx: runs.open_runs(tx, conversation_id=default.id)):
        await _stop_if_left(context, run)
    return Continuation(default.id, chat.new_from())


async def _stop_if_left(context: RequestContext, run: Run) -> None:
    """Cancel the run of a chat whose client left its stream and now sends the next message.

    OpenAI's API has no request that stops an answer: a client that wants no more of it closes the stream.
    """
    live = context.runtime.live.get(run.id)
    if live is not None and not live.has_readers:
        await live.cancel()
