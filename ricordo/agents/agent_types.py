"""What a type of agent is: its prompt, its way of talking, the tools and rules it gets, and the messages it begins with."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from ricordo.agents.request import NewMessage
from ricordo.domain.agent import Agent, AgentType
from ricordo.domain.clock import Clock
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part, ReasoningPart, Role, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.tool import ToolRule
from ricordo.errors import Unsupported
from ricordo.prompt.packaging import local_time, login_event
from ricordo.tools.builtin.recall import SENT

SPEECH = "send_message"
FIRST_THOUGHT = "I have been switched on and know who I am. A first word will show that my messages arrive."
FIRST_WORDS = "Here I am. What is on your mind?"

_TALKING = (SPEECH, "conversation_search", "archival_memory_insert", "archival_memory_search")
_CORE_MEMORY = ("core_memory_append", "core_memory_replace", "memory", "memory_apply_patch")
_LINE_MEMORY = ("memory_replace", "memory_insert")
_OWNED = ("list_memory_blocks", "read_memory_block", "edit_memory_block", "propose_memory_edit")
_KEEPING = (*_LINE_MEMORY, "memory_rethink", "memory_finish_edits")
_ENDING = frozenset({SPEECH, "send_message_to_agent_async", "memory_finish_edits"})
_CONTINUING = frozenset({*_TALKING, *_CORE_MEMORY, *_KEEPING, *_OWNED}) - _ENDING
# Some local models want a user's message before any call.
_LOGIN_FIRST = frozenset({"lmstudio"})

StyleName = Literal["heartbeat", "native"]


@dataclass(frozen=True, slots=True)
class TypeTraits:
    """One type of agent.

    `begins` says what stands in a new thread after the system message: nothing, a login, or a first word of the agent's and a
    login. With `packs_user_messages` its model reads what users say as JSON; with `clears_buffer` each turn begins with an empty
    window.
    """

    prompt_key: str
    style: StyleName
    base_tools: tuple[str, ...]
    begins: Literal["empty", "login", "greeting"]
    has_base_rules: bool = True
    clears_buffer: bool = False
    packs_user_messages: bool = False


_NATIVE = TypeTraits(
    "letta_v1",
    "native",
    ("conversation_search", "memory_insert", "memory_replace", "archival_memory_insert", "archival_memory_search"),
    "empty",
    has_base_rules=False,
)
_TRAITS: dict[AgentType, TypeTraits] = {
    "letta_v1_agent": _NATIVE,
    "split_thread_agent": _NATIVE,
    "memgpt_agent": TypeTraits(
        "memgpt_chat", "heartbeat", (*_TALKING, *_CORE_MEMORY), "greeting", packs_user_messages=True
    ),
    "memgpt_v2_agent": TypeTraits(
        "memgpt_v2_chat", "heartbeat", (*_TALKING, *_LINE_MEMORY), "greeting", packs_user_messages=True
    ),
    "react_agent": TypeTraits("react", "heartbeat", (), "greeting"),
    "workflow_agent": TypeTraits("workflow", "heartbeat", (), "greeting", clears_buffer=True),
    "sleeptime_agent": TypeTraits("sleeptime_v2", "native", _KEEPING, "login"),
}


def traits_of(agent_type: AgentType) -> TypeTraits:
    """What this type of agent is; raises Unsupported for a type this version does not run."""
    traits = _TRAITS.get(agent_type)
    if traits is None:
        raise Unsupported(
            f"Agents of type {agent_type} are not supported by this version: voice agents come with groups."
        )
    return traits


def base_rules(tool_names: Iterable[str]) -> tuple[ToolRule, ...]:
    """The rules that tools of ours bring along (blueprint §7.4): speaking and finishing end a turn, the others let it go on."""
    names = list(dict.fromkeys(tool_names))
    return (
        *(ToolRule(name, "exit_loop") for name in names if name in _ENDING),
        *(ToolRule(name, "continue_loop") for name in names if name in _CONTINUING),
    )


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where first messages are put: an agent's thread, at the moment that the clock tells."""

    agent: Agent
    conversation_id: str
    clock: Clock


def initial_messages(beginning: Beginning, tool_names: Collection[str], provider: str) -> list[Message]:
    """The messages of a new thread after its system message, as the agent's type wants them.

    `provider` is the model's. An agent that cannot call `send_message` does not begin with a call of it.
    """
    agent = beginning.agent
    begins = traits_of(agent.agent_type).begins
    if begins == "empty":
        return []
    if begins == "login" or SPEECH not in tool_names:
        return [_login(beginning)]
    thought = ReasoningPart(FIRST_THOUGHT, native=False)
    if provider in _LOGIN_FIRST:
        return [_login(beginning), *_spoken(beginning, FIRST_WORDS, (thought,))]
    return [*_spoken(beginning, FIRST_WORDS, (thought,)), _login(beginning)]


def given_messages(beginning: Beginning, given: Sequence[NewMessage]) -> list[Message]:
    """A client's own first messages, in the place of `initial_messages`.

    What the assistant says in them is a call of `send_message` for an agent that speaks by calls.
    """
    speaks_by_calls = traits_of(beginning.agent.agent_type).style == "heartbeat"
    made: list[Message] = []
    for item in given:
        if item.role == "assistant" and speaks_by_calls:
            words = "\n".join(part.text for part in item.parts if isinstance(part, TextPart))
            made += _spoken(beginning, words)
        else:
            made.append(_message(beginning, item.role, item.parts, item))
    return made


def _login(beginning: Beginning) -> Message:
    time = local_time(beginning.clock.now(), beginning.agent.timezone)
    return _message(beginning, "user", (login_event(time),))


def _spoken(beginning: Beginning, words: str, thoughts: tuple[Part, ...] = ()) -> list[Message]:
    call_id = new_id("call")
    call = ToolCallPart(call_id, SPEECH, orjson.dumps({"message": words}).decode())
    return [
        _message(beginning, "assistant", (*thoughts, call)),
        _message(beginning, "tool", (ToolReturnPart(call_id, SPEECH, "success", SENT),)),
    ]


def _message(beginning: Beginning, role: Role, parts: tuple[Part, ...], given: NewMessage | None = None) -> Message:
    agent = beginning.agent
    return Message(
        id=new_id("message"),
        agent_id=agent.id,
        conversation_id=beginning.conversation_id,
        role=role,
        parts=parts,
        created_at=beginning.clock.now(),
        organization_id=agent.organization_id,
        otid=given.otid if given else None,
        name=given.name if given else None,
        sender_id=given.sender_id if given else None,
        group_id=given.group_id if given else None,
    )
