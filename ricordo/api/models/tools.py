"""Request and response models of tools, and of the nine types of tool rules."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from ricordo.api.models.base import (
    AuthorFields,
    From,
    RequestModel,
    ResponseModel,
    Timestamp,
    without_none,
)
from ricordo.domain.text import Json
from ricordo.domain.tool import ToolRule, ToolType
from ricordo.errors import Invalid
from ricordo.tools.rule_kinds import parse_rule

# The options of each type of rule; and the options by which a type is recognized if none is sent.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "run_first": ("args",),
    "conditional": ("child_output_mapping", "default_child", "require_output_mapping"),
    "constrain_child_tools": ("children", "child_arg_nodes"),
    "max_count_per_step": ("max_count_limit",),
    "parent_last_tool": ("children",),
}
_TYPE_OF: Mapping[str, str] = {
    "child_output_mapping": "conditional",
    "max_count_limit": "max_count_per_step",
    "child_arg_nodes": "constrain_child_tools",
}
_LONGEST_RULE = 300_000


class ToolResponse(AuthorFields):
    """A tool."""

    id: str
    name: str
    tool_type: ToolType
    description: str | None
    source_type: str | None
    source_code: str | None
    json_schema: Json | None
    args_json_schema: Json | None
    return_char_limit: Annotated[int, From("return_limit")]
    default_requires_approval: Annotated[bool | None, From("needs_approval")]
    enable_parallel_execution: Annotated[bool, From("runs_in_parallel")]
    tags: list[str]
    metadata_: Annotated[Json | None, From("metadata")]
    pip_requirements: list[Json] | None
    npm_requirements: list[Json] | None
    project_id: str | None = None


class ToolApprovalRequest(RequestModel):
    """A setting: calls of a tool need approval, or they do not."""

    requires_approval: bool


class ToolRunRequest(RequestModel):
    """The arguments of a call."""

    args: Json = Field(default_factory=dict)


class ToolRunResponse(ResponseModel):
    """The result of a call.

    `agent_state` and `sandbox_config_fingerprint` are always null, since a call does not change an
    agent.
    """

    status: Literal["success", "error"]
    func_return: Any
    stdout: list[str]
    stderr: list[str]
    agent_state: Json | None = None
    sandbox_config_fingerprint: str | None = None


class ToolTrialResponse(ToolRunResponse):
    """The result of running source code that is not stored, as a tool return message.

    The retired Letta V1 server 0.16.8 answers in this form. `func_return` is the returned value,
    `tool_return` the same value as text.
    """

    id: str = "null"  # wire fact: no message is stored
    date: Timestamp
    message_type: Literal["tool_return_message"] = "tool_return_message"
    tool_call_id: str = "null"  # wire fact
    name: str | None
    tool_return: str


def read_rule(row: dict[str, Any]) -> ToolRule:
    """Return the rule that was sent.

    The type may be omitted if the options determine it.

    Args:
        row: The fields of the rule, as in the request.

    Raises:
        Invalid: The rule is impossible or too long, or has a field that its type lacks.
    """
    implied_kinds = (kind for option, kind in _TYPE_OF.items() if option in row)
    kind: Any = row.get("type") or next(implied_kinds, None)
    options = {name: row[name] for name in _OPTIONS.get(str(kind), ()) if row.get(name) is not None}
    name = row.get("tool_name")
    template = row.get("prompt_template")
    nodes = options.get("child_arg_nodes", [])
    _require_form(name, template, nodes)
    if len(orjson.dumps([name, template, options]).decode()) > _LONGEST_RULE:
        raise Invalid(
            f"The tool rule for {str(name)[:200]} is too long: {_LONGEST_RULE} characters are "
            "allowed."
        )
    if kind == "conditional":
        options.setdefault("require_output_mapping", False)
    if nodes:
        options["child_arg_nodes"] = [
            without_none(name=node.get("name"), args=node.get("args")) for node in nodes
        ]
    rule = ToolRule(name, kind if isinstance(kind, str) else "", template, options)  # type: ignore[arg-type]
    parse_rule(rule)
    _require_known_fields(row, rule.type)
    return rule


def _require_form(name: Any, template: Any, nodes: Any) -> None:
    are_objects = isinstance(nodes, list) and all(isinstance(node, dict) for node in nodes)
    if not isinstance(template or "", str) or not are_objects:
        sentence = "prompt_template must be a text, and child_arg_nodes a list of objects"
        raise Invalid(f"The tool rule for {name} is not valid: {sentence}.")


def _require_known_fields(row: dict[str, Any], kind: str) -> None:
    fields = {"type", "tool_name", "prompt_template", "id", *_OPTIONS.get(kind, ())}
    if unknown := [name for name in row if row[name] is not None and name not in fields]:
        raise Invalid(
            f"A tool rule of the type {kind} has no field {unknown[0][:80]}. Leave it out."
        )


def rule_response(rule: ToolRule) -> Json:
    """Return a tool rule in the form of `letta-client`.

    Args:
        rule: The stored rule.
    """
    return {
        "tool_name": rule.tool_name,
        "type": rule.type,
        "prompt_template": rule.prompt_template,
        **rule.options,
    }
