"""Tools of agents, and the rules for calling them."""

from dataclasses import dataclass, field
from typing import Any, Literal

DEFAULT_RETURN_LIMIT = 50_000

ToolType = Literal[
    "custom",
    "letta_core",
    "letta_memory_core",
    "letta_multi_agent_core",
    "letta_sleeptime_core",
    "letta_voice_sleeptime_core",
    "letta_builtin",
    "letta_files_core",
    "external_langchain",
    "external_composio",
    "external_mcp",
]

# The tools added by `include_multi_agent_tools`.
MULTI_AGENT_TOOLS = (
    "send_message_to_agent_and_wait_for_reply",
    "send_message_to_agents_matching_tags",
    "send_message_to_agent_async",
)
# Missing tools of the retired Letta V1 server, and their replacements here.
REPLACEMENTS = {
    "send_message_to_all_agents_in_group": (
        "send_message_to_agents_matching_tags, with a tag that the agents of the group have"
    )
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A stored tool.

    `json_schema` is `{name, description, parameters}`; `return_limit` is in characters. `options`
    may contain `args_json_schema`, `pip_requirements` and `npm_requirements` (lists of {name,
    version}), and `function`. The last names the function in the source if its name differs from
    the tool's.
    """

    id: str
    organization_id: str
    name: str
    tool_type: ToolType
    json_schema: dict[str, Any]
    description: str = ""
    source_type: str | None = None
    source_code: str | None = None
    return_limit: int = DEFAULT_RETURN_LIMIT
    needs_approval: bool = False
    runs_in_parallel: bool = False
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    created_by: str | None = None
    updated_by: str | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def args_json_schema(self) -> dict[str, Any] | None:
        return self.options.get("args_json_schema")

    @property
    def pip_requirements(self) -> list[dict[str, Any]] | None:
        return self.options.get("pip_requirements")

    @property
    def npm_requirements(self) -> list[dict[str, Any]] | None:
        return self.options.get("npm_requirements")


@dataclass(frozen=True, slots=True)
class ClientSkill:
    """Instructions on the client's machine for one kind of work.

    The agent reads them at `location` with the client's tools.
    """

    name: str
    description: str = ""
    location: str = ""


RuleType = Literal[
    "run_first",
    "exit_loop",
    "continue_loop",
    "conditional",
    "constrain_child_tools",
    "max_count_per_step",
    "parent_last_tool",
    "required_before_exit",
    "requires_approval",
]


@dataclass(frozen=True, slots=True)
class ToolRule:
    """One rule about one tool, in the formats of the retired Letta V1 server.

    `options` holds the fields specific to its type.
    """

    tool_name: str
    type: RuleType
    prompt_template: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
