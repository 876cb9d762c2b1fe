"""Tool rules as callers send them, in the nine forms of `letta-client`; `api/wire/tools.py` shows them again."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ricordo.domain.tool import ToolRule
from ricordo.errors import Invalid
from ricordo.tools.rule_kinds import kind_of

_MAX_COUNT = 1_000_000_000
_MAX_NAMES = 1_000
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_COMMON = ("tool_name", "type", "prompt_template")


class RuleBody(BaseModel):
    """What all rules say; what else a client sends is let through and forgotten."""

    model_config = ConfigDict(extra="ignore")

    tool_name: _Name
    prompt_template: str | None = Field(None, max_length=100_000)


class RunFirstBody(RuleBody):
    """A turn begins with this tool."""

    type: Literal["run_first"]
    args: dict[str, Any] | None = None


class ExitLoopBody(RuleBody):
    """A call of the tool ends the turn."""

    type: Literal["exit_loop"]


class ContinueLoopBody(RuleBody):
    """After a call of the tool there is another step."""

    type: Literal["continue_loop"]


class ConditionalBody(RuleBody):
    """What the tool returned decides which tool comes next."""

    type: Literal["conditional"]
    child_output_mapping: dict[str, _Name] = Field(min_length=1, max_length=_MAX_NAMES)
    default_child: _Name | None = None
    require_output_mapping: bool = False


class ChildArguments(BaseModel):
    """Arguments that are filled in for one child."""

    model_config = ConfigDict(extra="ignore")

    name: _Name
    args: dict[str, Any] | None = None


class ChildToolsBody(RuleBody):
    """Right after the tool comes one of its children."""

    type: Literal["constrain_child_tools"]
    children: list[_Name] = Field(min_length=1, max_length=_MAX_NAMES)
    child_arg_nodes: list[ChildArguments] | None = None


class MaxCountBody(RuleBody):
    """The tool is called so many times a turn at most."""

    type: Literal["max_count_per_step"]
    max_count_limit: int = Field(ge=0, le=_MAX_COUNT)


class ParentToolBody(RuleBody):
    """The children are called right after the tool and at no other time."""

    type: Literal["parent_last_tool"]
    children: list[_Name] = Field(min_length=1, max_length=_MAX_NAMES)


class RequiredBeforeExitBody(RuleBody):
    """The turn does not end before the tool was called."""

    type: Literal["required_before_exit"]


class RequiresApprovalBody(RuleBody):
    """A person decides about each call of the tool."""

    type: Literal["requires_approval"]


AnyRuleBody = Annotated[
    RunFirstBody
    | ExitLoopBody
    | ContinueLoopBody
    | ConditionalBody
    | ChildToolsBody
    | MaxCountBody
    | ParentToolBody
    | RequiredBeforeExitBody
    | RequiresApprovalBody,
    Field(discriminator="type"),
]
_ANY_RULE: TypeAdapter[AnyRuleBody] = TypeAdapter(AnyRuleBody)


def rule_from_wire(rule: dict[str, Any] | RuleBody) -> ToolRule:
    """The rule that was sent; raises Invalid for a type we do not know and for options that cannot be."""
    if isinstance(rule, RuleBody):
        body: Any = rule
    else:
        try:
            body = _ANY_RULE.validate_python(_typed(rule))
        except ValidationError as error:
            raise Invalid(_faults(rule, error)) from error
    options = body.model_dump(exclude=set(_COMMON), exclude_none=True)
    made = ToolRule(body.tool_name, body.type, body.prompt_template, options)
    kind_of(made)
    return made


def _typed(rule: dict[str, Any]) -> dict[str, Any]:
    """The rule with its type, which clients may leave out where the options tell it."""
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
