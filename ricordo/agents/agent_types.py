"""Types of agents: prompt, style of talking, tools, rules and first messages.

A small model gets a shorter prompt and fewer tools than its agent's type. Such a profile is applied
when a turn begins, and the agent's record does not change. Clients see the agent's usual prompt and
tools, and with a larger model the agent works as usual. An agent with a custom prompt or with
individually chosen tools keeps these.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import orjson

from ricordo.agents.request import (
    NewMessage,
)
from ricordo.domain.agent import Agent, AgentState, AgentType, Conversation
from ricordo.domain.clock import Clock
from ricordo.domain.ids import new_id
from ricordo.domain.message import (
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import (
    LIBRARIAN,
    MemoryInPrompt,
    MemoryInPromptChoice,
    ModelInfo,
    ModelProfile,
    ProfileChoice,
)
from ricordo.domain.tool import Tool, ToolRule
from ricordo.errors import Invalid, NotFound, Unavailable
from ricordo.llm.openai_dialect import dialect_of
from ricordo.prompt.texts import BUILT_IN, text
from ricordo.prompt.transcript import local_time, login_event
from ricordo.tools.builtin.recall import SENT
from ricordo.tools.rule_kinds import names_in
from ricordo.tools.toolbox import Toolbox, unstored_tool

SPEECH = "send_message"
FIRST_THOUGHT = (
    "I have been switched on and know who I am. A first word will show that my messages arrive."
)
FIRST_WORDS = "Here I am. What is on your mind?"

_TALKING = (SPEECH, "conversation_search", "archival_memory_insert", "archival_memory_search")
_CORE_MEMORY = ("core_memory_append", "core_memory_replace", "memory", "memory_apply_patch")
_LINE_MEMORY = ("memory_replace", "memory_insert")
_OWNED = ("list_memory_blocks", "read_memory_block", "edit_memory_block", "propose_memory_edit")
_KEEPING = (*_LINE_MEMORY, "memory_rethink", "memory_finish_edits")
_VOICE_KEEPING = ("store_memories", "rethink_user_memory", "finish_rethinking_memory")
_ENDING = frozenset(
    {SPEECH, "send_message_to_agent_async", "memory_finish_edits", "finish_rethinking_memory"}
)
_CONTINUING = frozenset({*_TALKING, *_CORE_MEMORY, *_KEEPING, *_VOICE_KEEPING, *_OWNED}) - _ENDING
# Some local models want a user's message before any call.
_LOGIN_FIRST = frozenset({"lmstudio"})

FOLDER = "system_prompts"  # in the data folder
REFERENCE = "prompt:"
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

# Names of an agent's settings.
PROFILE = "model_profile"
MEMORY_IN_PROMPT = "memory_in_prompt"
_PROFILED_TYPES: frozenset[AgentType] = frozenset({"letta_v1_agent", "split_thread_agent"})
REMEMBER = "remember"
CORRECT = "correct"
SEARCH = "search"
_PROFILE_TOOLS: dict[ModelProfile, tuple[str, ...]] = {
    "full": (),
    "small": (REMEMBER, CORRECT, SEARCH),
    "notes": (SEARCH,),
}
_PROFILE_PROMPTS: dict[ModelProfile, str] = {"small": "small", "notes": "small_notes"}

StyleName = Literal["heartbeat", "native"]


@dataclass(frozen=True, slots=True)
class TypeTraits:
    """One type of agent.

    Attributes:
        begins: The messages after the system message of a new conversation: none, a login, or a
            greeting and a login.
        packs_user_messages: The model reads user messages as JSON.
        clears_buffer: Each turn begins with only the system message in the window.
        speaks_aloud: The agent speaks a sentence with every tool call. It gets no tools that edit
            memory.
        takes_further: New agents of this type also get the base tools of features.
        rules: These rules replace the agent's rules if it has the tools that they name.
    """

    prompt_key: str
    style: StyleName
    base_tools: tuple[str, ...]
    begins: Literal["empty", "login", "greeting"]
    has_base_rules: bool = True
    clears_buffer: bool = False
    packs_user_messages: bool = False
    speaks_aloud: bool = False
    takes_further: bool = False
    rules: tuple[ToolRule, ...] = ()


_NATIVE = TypeTraits(
    "letta_v1",
    "native",
    (
        "conversation_search",
        "memory_insert",
        "memory_replace",
        "archival_memory_insert",
        "archival_memory_search",
    ),
    "empty",
    has_base_rules=False,
    takes_further=True,
)
# First store passages once, then edit the block any number of times, then finish.
_VOICE_RULES = (
    ToolRule("store_memories", "run_first"),
    ToolRule(
        "store_memories", "constrain_child_tools", options={"children": ["rethink_user_memory"]}
    ),
    ToolRule(
        "rethink_user_memory",
        "constrain_child_tools",
        options={"children": ["rethink_user_memory", "finish_rethinking_memory"]},
    ),
    ToolRule("finish_rethinking_memory", "exit_loop"),
    ToolRule("rethink_user_memory", "continue_loop"),
)
TRAITS: Mapping[AgentType, TypeTraits] = {
    "letta_v1_agent": _NATIVE,
    "split_thread_agent": _NATIVE,
    "memgpt_agent": TypeTraits(
        "memgpt_chat", "heartbeat", (*_TALKING, *_CORE_MEMORY), "greeting", packs_user_messages=True
    ),
    "memgpt_v2_agent": TypeTraits(
        "memgpt_v2_chat",
        "heartbeat",
        (*_TALKING, *_LINE_MEMORY),
        "greeting",
        packs_user_messages=True,
    ),
    "react_agent": TypeTraits("react", "heartbeat", (), "greeting"),
    "workflow_agent": TypeTraits("workflow", "heartbeat", (), "greeting", clears_buffer=True),
    "sleeptime_agent": TypeTraits("sleeptime_v2", "native", _KEEPING, "login"),
    "voice_convo_agent": TypeTraits(
        "voice_chat",
        "native",
        (SPEECH, "search_memory"),
        "empty",
        has_base_rules=False,
        speaks_aloud=True,
    ),
    "voice_sleeptime_agent": TypeTraits(
        "voice_sleeptime", "native", _VOICE_KEEPING, "empty", rules=_VOICE_RULES
    ),
}


def base_tools(agent_type: AgentType, *, has_sleeptime: bool = False) -> tuple[str, ...]:
    """Return the names of the tools that an agent of this type gets.

    Args:
        agent_type: The type of the agent.
        has_sleeptime: A sleep-time agent edits this agent's memory, so tools that edit memory are
            left out.
    """
    traits = TRAITS[agent_type]
    if not has_sleeptime or traits.speaks_aloud:
        return traits.base_tools
    speech = (SPEECH,) if traits.style == "heartbeat" else ()
    return (*speech, "conversation_search", "archival_memory_search")


def base_rules(tool_names: Iterable[str]) -> tuple[ToolRule, ...]:
    """Return the rules of the built-in tools (§7.4 of `docs/internals/blueprint.md`).

    Tools that speak or finish end a turn; after other tools it continues.
    """
    names = list(dict.fromkeys(tool_names))
    return (
        *(ToolRule(name, "exit_loop") for name in names if name in _ENDING),
        *(ToolRule(name, "continue_loop") for name in names if name in _CONTINUING),
    )


def initial_messages(state: AgentState, clock: Clock, provider: str) -> list[Message]:
    """Return the messages of a new conversation after its system message.

    If the agent cannot call `send_message`, the messages contain no such call.

    Args:
        state: The new agent, with its conversation and tools.
        clock: Gives the messages' creation times and the time in the login event.
        provider: The provider of the agent's model, such as "lmstudio". For some local providers
            the login comes before the greeting.
    """
    begins = TRAITS[state.agent.agent_type].begins
    if begins == "empty":
        return []
    event = login_event(local_time(clock.now(), state.agent.timezone))
    login = state.conversation.new_message("user", (event,), clock.now())
    if begins == "login" or all(tool.name != SPEECH for tool in state.tools):
        return [login]
    greeting = _speech_call(
        state.conversation, clock, FIRST_WORDS, ReasoningPart(FIRST_THOUGHT, native=False)
    )
    if provider in _LOGIN_FIRST:
        return [login, *greeting]
    return [*greeting, replace(login, created_at=clock.now())]


def given_messages(
    state: AgentState, clock: Clock, new_messages: Sequence[NewMessage]
) -> list[Message]:
    """Return a client's first messages, which replace those of `initial_messages`.

    Args:
        state: The new agent with its conversation.
        clock: Gives the messages' creation times.
        new_messages: The client's messages in order, without a system message. If the agent speaks
            by calls, an assistant's message becomes a call of `send_message` with its result. Only
            the message's text is used.
    """
    speaks_by_calls = TRAITS[state.agent.agent_type].style == "heartbeat"
    first_messages: list[Message] = []
    for new_message in new_messages:
        if new_message.role == "assistant" and speaks_by_calls:
            speech = "\n".join(
                part.text for part in new_message.parts if isinstance(part, TextPart)
            )
            first_messages += _speech_call(state.conversation, clock, speech)
        else:
            first_messages.append(
                new_message.signed(
                    state.conversation.new_message(new_message.role, new_message.parts, clock.now())
                )
            )
    return first_messages


def _speech_call(
    conversation: Conversation, clock: Clock, speech: str, *thoughts: Part
) -> list[Message]:
    call_id = new_id("call")
    call = ToolCallPart(call_id, SPEECH, orjson.dumps({"message": speech}).decode())
    result = ToolReturnPart(call_id, SPEECH, "success", SENT)
    return [
        conversation.new_message("assistant", (*thoughts, call), clock.now()),
        conversation.new_message("tool", (result,), clock.now()),
    ]


def chosen_system(system: str | None, default_key: str, data_dir: Path) -> str:
    """Return the text of the chosen system prompt.

    Args:
        system: The text of the prompt, or `prompt:<key>`; None chooses `default_key`.
        default_key: The key of the prompt that the agent's type uses.
        data_dir: The data folder, whose folder `system_prompts` holds the operator's prompts.

    Raises:
        NotFound: There is no prompt with this key.
        Invalid: The key or the prompt's file cannot be used.
        Unavailable: The prompt's file cannot be read.
    """
    if system is not None and not system.startswith(REFERENCE):
        return system
    return system_text(
        default_key if system is None else system.removeprefix(REFERENCE).strip(), data_dir / FOLDER
    )


def system_text(key: str, folder: Path) -> str:
    """Return the prompt with this key: a built-in one, else `<folder>/<key>.txt`.

    Args:
        key: The key: letters, digits, "_", "-" and ".", at most 100.
        folder: The operator's folder of prompts, which is created if missing.

    Raises:
        NotFound: There is no such prompt.
        Invalid: The key cannot be used, or the file is empty or not UTF-8.
        Unavailable: The file cannot be read.
    """
    if key in BUILT_IN:
        return text(key)
    if not _KEY.fullmatch(key):
        raise Invalid(
            f'"{key[:80]}" cannot be the key of a system prompt. '
            'Use letters, digits, "_", "-" and ".", at most 100 of them.'
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        custom = (folder / f"{key}.txt").read_text("utf-8").strip()
    except FileNotFoundError:
        raise NotFound(
            f'There is no system prompt "{key}". Put it into {FOLDER}/{key}.txt in the data '
            "folder, or use one of: "
            f"{', '.join(BUILT_IN)}."
        ) from None
    except UnicodeDecodeError:
        raise Invalid(f"{FOLDER}/{key}.txt is not UTF-8 text. Save it as UTF-8.") from None
    except OSError as error:
        raise Unavailable(
            f"{FOLDER}/{key}.txt cannot be read: {error.strerror}. Check its permissions."
        ) from error
    if not custom:
        raise Invalid(f"{FOLDER}/{key}.txt is empty. Write the prompt into it.")
    return custom


def profile_of(agent: Agent, info: ModelInfo, of_server: ProfileChoice) -> ModelProfile:
    """Return the agent's profile, or the server's if the agent has none.

    Only some types of agents have profiles; all others get "full", and so does the librarian.

    Args:
        agent: The agent, whose setting `model_profile` comes first.
        info: The agent's model. With "auto", a small model gets "small" and all others "full".
        of_server: The setting RICORDO_MODEL_PROFILE.
    """
    choice: ProfileChoice = agent.settings.get(PROFILE) or of_server
    if (
        agent.agent_type not in _PROFILED_TYPES
        or info.handle == LIBRARIAN
        or (choice == "auto" and not info.is_small)
    ):
        return "full"
    if choice == "auto":
        return "small"
    return choice


def memory_in_prompt(
    agent: Agent, info: ModelInfo, of_server: MemoryInPromptChoice
) -> MemoryInPrompt:
    """Return when the memory in the agent's prompt is rendered again.

    Args:
        agent: The agent, whose setting `memory_in_prompt` comes first.
        info: The model that reads the prompt. With "auto", its server's dialect decides.
        of_server: The setting RICORDO_MEMORY_IN_PROMPT, for an agent without this setting.
    """
    choice: MemoryInPromptChoice = agent.settings.get(MEMORY_IN_PROMPT) or of_server
    if choice == "auto":
        return dialect_of(info.endpoint_type, info.endpoint or "", info.name).memory_in_prompt
    return choice


def with_profile(state: AgentState, profile: ModelProfile, toolbox: Toolbox) -> AgentState:
    """Return the state with the profile's prompt and tools instead of its type's.

    Args:
        state: The agent, which is not changed. If a person seems to have chosen its tools, it is
            returned as it is; a prompt other than its type's stays.
        profile: The profile of this turn's model; "full" changes nothing.
        toolbox: The server's tools, which include those of the profiles.
    """
    if profile == "full":
        return state
    tools = _replaced_tools(state, profile, toolbox)
    if tools is None:
        return state
    agent = state.agent
    type_prompt = text(TRAITS[agent.agent_type].prompt_key)
    if agent.system.strip() == type_prompt:
        agent = replace(agent, system=text(_PROFILE_PROMPTS[profile]))
    return replace(state, agent=agent, tools=tools)


def _replaced_tools(
    state: AgentState, profile: ModelProfile, toolbox: Toolbox
) -> tuple[Tool, ...] | None:
    """Return the profile's tools and the agent's further tools; None to keep its tools.

    An agent keeps its tools if a person seems to have chosen them. That is so if a tool of its type
    is missing, if the prompt names such a tool, or if a rule or an approval names a tool that would
    be replaced. It also keeps them if one of its further tools is named `remember` or `correct`.
    """
    type_tools = set(TRAITS[state.agent.agent_type].base_tools)
    by_name = {tool.name: tool for tool in state.tools}
    if not type_tools <= by_name.keys():
        return None
    if any(name in state.agent.system for name in type_tools):
        return None
    base_names = (tool.name for tool in toolbox if tool.is_base)
    replaced = by_name.keys() & {*type_tools, SPEECH, *base_names}
    if any(by_name[name].needs_approval for name in replaced):
        return None
    if any(not replaced.isdisjoint(names_in(rule)) for rule in state.agent.tool_rules):
        return None
    further_tools = [tool for tool in state.tools if tool.name not in replaced]
    used_names = {tool.name for tool in further_tools}
    if used_names & {REMEMBER, CORRECT}:
        return None
    organization_id = state.agent.organization_id
    profile_tools = [
        unstored_tool(toolbox.unstored(name), organization_id)
        for name in _PROFILE_TOOLS[profile]
        if name not in used_names
    ]
    return (*profile_tools, *further_tools)
