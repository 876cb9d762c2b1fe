"""Request and response models of tools and of rules about them, in the nine forms of `letta-client`."""

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from ricordo.api.models.base import MAX_COUNT, AuthorFields, From, Json, RequestModel, RequestPart
from ricordo.domain.tool import ToolRule, ToolType
from ricordo.errors import Invalid
from ricordo.tools.rule_kinds import parse_rule

_MAX_NAMES = 1_000
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_COMMON = {"tool_name", "type", "prompt_template"}


class ToolResponse(AuthorFields):
    """A tool."""

    id: str
    name: str
    tool_type: ToolType
    description: str | None
    source_type: str | None
    source_code: str | None
    json_schema: Json | None
    args_json_schema: Json | None = None
    return_char_limit: Annotated[int, From("return_limit")]
    default_requires_approval: Annotated[bool | None, From("needs_approval")]
    enable_parallel_execution: Annotated[bool, From("runs_in_parallel")]
    tags: list[str]
    metadata_: Annotated[Json | None, From("metadata")]
    pip_requirements: list[Json] | None = None
    npm_requirements: list[Json] | None = None
    project_id: str | None = None


class ToolApprovalRequest(RequestModel):
    """Whether calls of a tool wait for approval."""

    requires_approval: bool


class RuleRequest(RequestPart):
    """What all rules have; what else a client sends is ignored."""

    tool_name: _Name
    prompt_template: str | None = Field(None, max_length=100_000)


class PlainRule(RuleRequest):
    """A rule without options: a call of the tool ends the turn, is followed by another step, is required or needs approval."""

    type: Literal["exit_loop", "continue_loop", "required_before_exit", "requires_approval"]


class RunFirstRule(RuleRequest):
    """A turn begins with this tool."""

    type: Literal["run_first"]
    args: dict[str, Any] | None = None


class ConditionalRule(RuleRequest):
    """What the tool returned decides which tool comes next."""

    type: Literal["conditional"]
    child_output_mapping: dict[str, _Name] = Field(min_length=1, max_length=_MAX_NAMES)
    default_child: _Name | None = None
    require_output_mapping: bool = False


class ChildArguments(RequestPart):
    """Arguments that are filled in for one child."""

    name: _Name
    args: dict[str, Any] | None = None


class ChildToolsRule(RuleRequest):
    """Right after the tool comes one of its children."""

    type: Literal["constrain_child_tools"]
    children: list[_Name] = Field(min_length=1, max_length=_MAX_NAMES)
    child_arg_nodes: list[ChildArguments] | None = None


class MaxCountRule(RuleRequest):
    """The tool is called so many times a turn at most."""

    type: Literal["max_count_per_step"]
    max_count_limit: int = Field(ge=0, le=MAX_COUNT)


class ParentToolRule(RuleRequest):
    """The children are called right after the tool and at no other time."""

    type: Literal["parent_last_tool"]
    children: list[_Name] = Field(min_length=1, max_length=_MAX_NAMES)


_ANY_RULE: TypeAdapter[RuleRequest] = TypeAdapter(
    Annotated[
        RunFirstRule | PlainRule | ConditionalRule | ChildToolsRule | MaxCountRule | ParentToolRule,
        Field(discriminator="type"),
    ]
)


def read_rule(sent: dict[str, Any]) -> ToolRule:
    """Return the rule that was sent. Raises Invalid for an unknown type and for options that cannot be."""
    try:
        rule: Any = _ANY_RULE.validate_python(_typed(sent))
    except ValidationError as error:
        raise Invalid(_faults(sent, error)) from error
    made = ToolRule(
        rule.tool_name, rule.type, rule.prompt_template, rule.model_dump(exclude=_COMMON, exclude_none=True)
    )
    parse_rule(made)
    return made


def rule_response(rule: ToolRule) -> Json:
    return {"tool_name": rule.tool_name, "type": rule.type, "prompt_template": rule.prompt_template, **rule.options}


def _typed(rule: dict[str, Any]) -> dict[str, Any]:
    """Add the type, which clients may leave out where it follows from the options."""
    if not isinstance(rule, dict) or rule.get("type") is not None:
        return rule
    for option, kind in (
        ("child_output_mapping", "conditional"),
        ("max_count_limit", "max_count_per_step"),
        ("child_arg_nodes", "constrain_child_tools"),
    ):
        if option in rule:
            return {**rule, "type": kind}
    return rule


def _faults(rule: Any, error: ValidationError) -> str:
    name = rule.get("tool_name") if isinstance(rule, dict) else None
    faults = "; ".join(
        f"{'.'.join(str(place) for place in fault['loc'][1:] or fault['loc']) or 'type'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    )
    return f"The tool rule{f' for {name}' if isinstance(name, str) else ''} is not right: {faults}."
