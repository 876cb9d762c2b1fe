"""Profiles of prompts and tools by the size of a model: what a small one gets in place of the usual prompt and tools.

A profile is applied when a turn begins and stored nowhere: on the wire the agent keeps its prompt and tools, and with a larger
model it is as any other. An agent with a prompt of its own keeps that, and one with tools chosen one by one keeps those.
"""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.agent_types import SPEECH, traits_of
from ricordo.domain.agent import Agent, AgentState, AgentType
from ricordo.domain.model import LIBRARIAN, ModelInfo, ModelProfile, ProfileChoice
from ricordo.domain.tool import Tool
from ricordo.prompt.texts import text
from ricordo.tools.toolbox import Toolbox, unstored_tool

PROFILE = "model_profile"  # among an agent's settings
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
    """Return the agent's profile, else the server's; by default that of the model's size and window."""
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


def with_profile(state: AgentState, profile: ModelProfile, toolbox: Toolbox) -> AgentState:
    """Return the state with the profile's prompt and tools in place of the usual ones of its type."""
    if profile == "full":
        return state
    tools = _replaced_tools(state, profile, toolbox)
    if tools is None:
        return state
    agent = state.agent
    usual = text(traits_of(agent.agent_type).prompt_key)
    if agent.system.strip() == usual:
        agent = replace(agent, system=text(_PROMPTS[profile]))
    return replace(state, agent=agent, tools=tools)


def _replaced_tools(
    state: AgentState, profile: ModelProfile, toolbox: Toolbox
) -> tuple[Tool, ...] | None:
    """Return the profile's tools and those that the agent has beside the usual ones; None where its tools were chosen.

    They count as chosen where a usual one is missing, or where a rule, an approval or the agent's prompt names one of them.
    """
    usual = set(traits_of(state.agent.agent_type).base_tools)
    by_name = {tool.name: tool for tool in state.tools}
    if not usual <= by_name.keys() or any(by_name[name].needs_approval for name in usual):
        return None
    if any(rule.tool_name in usual for rule in state.agent.tool_rules):
        return None
    if any(name in state.agent.system for name in usual):
        return None
    others = [tool for tool in state.tools if tool.name not in usual and tool.name != SPEECH]
    taken = {tool.name for tool in others}
    if taken & {REMEMBER, CORRECT}:
        return None
    organization_id = state.agent.organization_id
    own = [
        unstored_tool(toolbox.unstored(name), organization_id) for name in _wanted(profile, taken)
    ]
    return (*own, *others)


def _wanted(profile: ModelProfile, taken: set[str]) -> Sequence[str]:
    return [name for name in _TOOLS[profile] if name not in taken]
