"""Profiles of prompts and tools by the size of a model, and how a model's prompt shows memory.

A small model gets a shorter prompt and fewer tools. A profile is applied when a turn begins, and
stored nowhere: on the wire the agent keeps its prompt and tools, and with a larger model it works
as usual. An agent with a prompt of its own keeps that, and one with tools chosen one by one keeps
those.
"""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.agent_types import SPEECH, traits_of
from ricordo.domain.agent import Agent, AgentState, AgentType
from ricordo.domain.model import (
    LIBRARIAN,
    MemoryInPrompt,
    MemoryInPromptChoice,
    ModelInfo,
    ModelProfile,
    ProfileChoice,
)
from ricordo.domain.tool import Tool
from ricordo.llm.openai_dialect import dialect_of
from ricordo.prompt.texts import text
from ricordo.tools.toolbox import Toolbox, unstored_tool

# Names of an agent's settings.
PROFILE = "model_profile"
MEMORY_IN_PROMPT = "memory_in_prompt"
_TYPES: frozenset[AgentType] = frozenset({"letta_v1_agent", "split_thread_agent"})
REMEMBER = "remember"
CORRECT = "correct"
SEARCH = "search"
_TOOLS: dict[ModelProfile, tuple[str, ...]] = {
    "full": (),
    "small": (REMEMBER, CORRECT, SEARCH),
    "notes": (SEARCH,),
}
_PROMPTS: dict[ModelProfile, str] = {"small": "small", "notes": "small_notes"}


def profile_of(agent: Agent, info: ModelInfo, of_server: ProfileChoice) -> ModelProfile:
    """Return the agent's profile, else the server's.

    By default it follows from the model's size and window.
    """
    choice: ProfileChoice = agent.settings.get(PROFILE) or of_server
    if (
        agent.agent_type not in _TYPES
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

    The agent's setting decides, else the server's. By default it follows from the model's server.
    """
    choice: MemoryInPromptChoice = agent.settings.get(MEMORY_IN_PROMPT) or of_server
    if choice == "auto":
        return dialect_of(info.endpoint_type, info.endpoint or "", info.name).memory_in_prompt
    return choice


def with_profile(state: AgentState, profile: ModelProfile, toolbox: Toolbox) -> AgentState:
    """Return the state with the profile's prompt and tools instead of its type's."""
    if profile == "full":
        return state
    tools = _replaced_tools(state, profile, toolbox)
    if tools is None:
        return state
    agent = state.agent
    type_prompt = text(traits_of(agent.agent_type).prompt_key)
    if agent.system.strip() == type_prompt:
        agent = replace(agent, system=text(_PROMPTS[profile]))
    return replace(state, agent=agent, tools=tools)


def _replaced_tools(
    state: AgentState, profile: ModelProfile, toolbox: Toolbox
) -> tuple[Tool, ...] | None:
    """Return the profile's tools and the agent's further ones; None to keep its tools.

    The agent's tools are kept as chosen if a usual one is missing, or if a rule, an approval or the
    agent's prompt names one of them.
    """
    type_tools = set(traits_of(state.agent.agent_type).base_tools)
    by_name = {tool.name: tool for tool in state.tools}
    if not type_tools <= by_name.keys() or any(by_name[name].needs_approval for name in type_tools):
        return None
    if any(rule.tool_name in type_tools for rule in state.agent.tool_rules):
        return None
    if any(name in state.agent.system for name in type_tools):
        return None
    further_tools = [
        tool for tool in state.tools if tool.name not in type_tools and tool.name != SPEECH
    ]
    used_names = {tool.name for tool in further_tools}
    if used_names & {REMEMBER, CORRECT}:
        return None
    organization_id = state.agent.organization_id
    profile_tools = [
        unstored_tool(toolbox.unstored(name), organization_id)
        for name in _profile_names(profile, used_names)
    ]
    return (*profile_tools, *further_tools)


def _profile_names(profile: ModelProfile, used_names: set[str]) -> Sequence[str]:
    return [name for name in _TOOLS[profile] if name not in used_names]
