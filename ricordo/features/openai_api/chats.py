"""Chats that clients keep themselves: in which conversation a chat goes on, and which of its messages are new.

A client sends its whole chat each time. A run that answers it is noted by two digests of the chat until then: an exact one, of
all that was said, and for clients that name their chats a loose one, of what the user said alone, since clients change how
answers look. The longest beginning of the next request that is known says where to go on; where its conversation has gone on
since, as after an edit or "regenerate", that is a fork.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import orjson

from ricordo.agents.conversations import cancel_conversation, create_conversation, fork_conversation
from ricordo.agents.history import PastMessage, import_messages
from ricordo.api.call import RequestContext
from ricordo.domain.agent import Conversation
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.errors import Invalid, NotFound
from ricordo.features.openai_api.models import CalledFunction, ChatMessage, MadeCall
from ricordo.features.openai_api.queries import AnsweredState, answered_states, note_run
from ricordo.storage import conversations, messages, runs
from ricordo.storage.engine.store import Transaction

_DIGEST = 20


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


def states_of(here: RequestContext, chat: ClientChat) -> list[_State]:
    """Return the states of the chat: before its first message, and after each."""
    scope = here.scope
    seed = [scope.organization_id, scope.subject_id, chat.agent_id, chat.name, None if chat.name else chat.owner]
    exact, loose = (blake2b(orjson.dumps([kind, *seed]), digest_size=_DIGEST) for kind in ("exact", "loose"))
    states = [_State(exact.hexdigest(), loose.hexdigest())]
    for message in chat.messages:
        said = orjson.dumps(_said(message))
        if message.role == "user":
            loose.update(said)
        if message.role == "user" or (message.role == "assistant" and (message.text.strip() or message.tool_calls)):
            exact.update(said)
        states.append(_State(exact.hexdigest(), loose.hexdigest()))
    return states


def _said(message: ChatMessage) -> list[object]:
    parts = message.content if isinstance(message.content, list) else []
    pictures = [part.model_dump()["image_url"] for part in parts if part.image_url]
    return [message.role, message.text.strip(), pictures, [call.id for call in message.tool_calls or ()]]


async def continue_chat(here: RequestContext, chat: ClientChat, client_tools: Sequence[str]) -> Continuation:
    """Return where the chat goes on; what is unknown here begins a conversation, with what was said before to be recalled.

    Raises NotFound, and Invalid for results of calls that nobody asked for.
    """
    if known := await _known(here, chat):
        new_from, state = known
        tools = () if chat.is_answer else client_tools
        if found := state.goes_on_in or await _conversation_after(here, state.run_id, tools):
            return Continuation(found, new_from)
    if chat.is_answer:
        raise Invalid("These tool results answer no call of this chat. Send the chat with the calls as they came.")
    place = chat.new_from()
    summary = {"summary": f"chat_{chat.name}"} if chat.name else {}
    made = await create_conversation(here.runtime, here.scope, chat.agent_id, summary)
    earlier = [one for one in chat.messages[:place] if one.role in ("user", "assistant") and one.text.strip()]
    if earlier:
        past = [PastMessage("user" if one.role == "user" else "assistant", (one.text,)) for one in earlier]
        await import_messages(here.store, here.scope, chat.agent_id, past, made.id)
    return Continuation(made.id, place, is_begun=False)


async def continue_after(
    here: RequestContext, chat: ClientChat, run_id: str, client_tools: Sequence[str]
) -> Continuation:
    """Return where a chat goes on after this run, of which all is new. Raises NotFound."""
    run = await here.store.read(lambda tx: runs.get(tx, here.scope, run_id))
    tools = () if chat.is_answer else client_tools
    found = await _conversation_after(here, run_id, tools) if run.agent_id == chat.agent_id else None
    if found is None:
        raise NotFound("The earlier response is not in view any more, or another agent gave it. Begin a new chat.")
    return Continuation(found, 0)


async def note_start(here: RequestContext, chat: ClientChat, run: Run) -> None:
    """Store that this run answers the chat, before it has."""
    key = states_of(here, chat)[-1].loose
    await here.store.write(lambda tx: note_run(tx, key, run))


async def note_answer(here: RequestContext, chat: ClientChat, run: Run, text: str, call_ids: Sequence[str]) -> None:
    """Store that this run answered the chat, with this text and these calls of the client's tools."""
    calls = [MadeCall(id=id, function=CalledFunction()) for id in call_ids]
    answered = replace(
        chat, messages=[*chat.messages, ChatMessage(role="assistant", content=text, tool_calls=calls or None)]
    )
    key = states_of(here, answered)[-1].exact
    await here.store.write(lambda tx: note_run(tx, key, run))


async def _known(here: RequestContext, chat: ClientChat) -> tuple[int, AnsweredState] | None:
    """The longest beginning of the chat that a run answered, and that run."""
    states = states_of(here, chat)
    last = len(chat.messages)
    places = [chat.new_from()] if chat.is_answer else _beginnings(chat)
    if chat.is_retry:
        places = [last, *places]
    keys = [key for place in places for key in (states[place].exact, states[place].loose)]
    found = await here.store.read(lambda tx: answered_states(tx, keys))
    for place in places:
        is_same = chat.is_retry and place == last
        state = found.get(states[place].exact) if not is_same else None
        if state is None and (chat.name or is_same):
            state = found.get(states[place].loose)
        if state:
            return (chat.new_from() if is_same else place), state
    return None


def _beginnings(chat: ClientChat) -> list[int]:
    """The places before messages of the user with something of the user's before them, the last first."""
    places = [place for place, message in enumerate(chat.messages) if message.role == "user"]
    return places[:0:-1]


async def _conversation_after(here: RequestContext, run_id: str, client_tools: Sequence[str]) -> str | None:
    """The conversation in which to go on after this run: its own, or a fork where it went on; None where that cannot be.

    Calls of these tools that wait there are denied, since the client went on without their results.
    """

    def find(tx: Transaction) -> tuple[Run, Conversation, list[str], Message | None]:
        run = runs.get(tx, here.scope, run_id)
        conversation = conversations.require(tx, here.scope, run.conversation_id)
        last = messages.by_ids(tx, conversation.window[-1:])
        said = [one.id for one in messages.of_run(tx, run.id)]
        return run, conversation, said, last[0] if last and last[0].is_waiting else None

    try:
        run, conversation, said, waiting = await here.store.read(find)
    except NotFound:
        return None
    if waiting and {call.name for call in waiting.tool_calls if call.is_gated} <= set(client_tools):
        await cancel_conversation(here.runtime, here.scope, conversation.id)
        return conversation.id
    is_last = bool(conversation.window) and conversation.window[-1] in said
    # What a person decided on the page goes on in the conversation itself.
    if is_last or run.ended_at is None or run.stop_reason == "requires_approval":
        return conversation.id
    seen = [id for id in said if id in conversation.window]
    try:
        fork = await fork_conversation(here.runtime, here.scope, conversation.id, message_id=seen[-1] if seen else "")
    except Invalid:  # a compaction took its messages out of view
        return None
    return fork.id
