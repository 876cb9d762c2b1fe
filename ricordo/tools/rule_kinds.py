"""The nine kinds of tool rules: options, allowed tools and texts for models."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ricordo.domain.tool import RuleType, ToolRule
from ricordo.errors import Invalid
from ricordo.prompt.system_prompt import disarm

_CALL_LIMIT = 1_000_000_000
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}
_PLACEHOLDER = re.compile(
    r"\{\{\s*(\w+)\s*(?:\|\s*join\(\s*(?:'([^']*)'|\"([^\"]*)\")\s*\)\s*)?\}\}"
)

SENTENCES: dict[RuleType, str] = {
    "run_first": "Your first tool call has to be {{ first_tools }}.",
    "exit_loop": "Calling {{ tool_name }} finishes your turn.",
    "continue_loop": "A call of {{ tool_name }} never comes last: go on after it.",
    "conditional": "What {{ tool_name }} returns decides which tool comes next: {{ child_output_mapping }}.",
    "constrain_child_tools": "Right after {{ tool_name }}, call one of these and nothing else: {{ children }}.",
    "max_count_per_step": "Calls of {{ tool_name }} in one turn: {{ max_count_limit }} at most.",
    "parent_last_tool": "Right after {{ tool_name }}, and at no other time, call one of these: {{ children }}.",
    "required_before_exit": "Do not end your turn before you have called {{ tool_name }}.",
    "requires_approval": "A call of {{ tool_name }} waits until a person has approved it.",
}


@dataclass(frozen=True, slots=True)
class ParsedRule:
    """A rule with its options parsed.

    Attributes:
        children: The tools that may follow its tool.
        arguments: Arguments to fill in, by name. For rules about children, by child and then by
            name.
        mapping: For `conditional`: the next tool by output. `default` and `requires_match` apply to
            other outputs.
        limit: For `max_count_per_step`: the most calls.
    """

    type: RuleType
    tool: str
    children: frozenset[str] = frozenset()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    mapping: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    requires_match: bool = False
    limit: int = 0

    def __str__(self) -> str:
        details = ", ".join(
            sorted(self.children) or [f"{case}: {child}" for case, child in self.mapping.items()]
        )
        if self.type == "max_count_per_step":
            details = str(self.limit)
        return f"{self.type} of {self.tool}" + (f" ({details})" if details else "")

    def successors(self, output: str | None) -> frozenset[str] | None:
        """Return the tools that may follow this output; None: all tools.

        The output None represents any output. An output with equal text takes precedence over one
        with an equal value.
        """
        if self.type != "conditional":
            return self.children
        if output is None:
            matching = frozenset(self.mapping.values())
        elif output in self.mapping:
            return frozenset({self.mapping[output]})
        else:
            comparable = _comparable(output)
            matching = frozenset(
                [child for case, child in self.mapping.items() if _comparable(case) == comparable][
                    :1
                ]
            )
            if matching:
                return matching
        if self.requires_match:
            return matching
        if self.default is None:
            return None
        return matching | {self.default}


def parse_rule(rule: ToolRule) -> ParsedRule:
    """Return the rule with its options parsed.

    Raises Invalid for an unknown type, and for impossible options.
    """
    if not _is_name(rule.tool_name):
        raise Invalid(f"A tool rule of type {rule.type} names no tool. Give its tool_name.")
    if rule.type not in SENTENCES:
        known_types = ", ".join(SENTENCES)
        raise Invalid(
            f'The rule for {rule.tool_name} has the unknown type "{rule.type}". Use one of: '
            f"{known_types}."
        )
    options: dict[str, Any] = {}
    if rule.type in ("constrain_child_tools", "parent_last_tool"):
        options["children"] = _names(rule, "children")
    match rule.type:
        case "run_first":
            options["arguments"] = _arguments(rule, rule.options.get("args"))
        case "constrain_child_tools":
            options["arguments"] = _child_arguments(rule, options["children"])
        case "conditional":
            options = _branches(rule)
        case "max_count_per_step":
            limit = options["limit"] = rule.options.get("max_count_limit")
            if type(limit) is not int or not 0 <= limit <= _CALL_LIMIT:
                raise _fault(
                    rule, f"max_count_limit must be a whole number from 0 to {_CALL_LIMIT}"
                )
    return ParsedRule(rule.type, rule.tool_name, **options)


def names_in(rule: ToolRule) -> Iterator[str]:
    """Yield the tool of a rule, and the tools that the rule lets follow it.

    Args:
        rule: Any rule, also one with impossible options.
    """
    yield rule.tool_name
    if isinstance(children := rule.options.get("children"), list):
        yield from map(str, children)
    if isinstance(mapping := rule.options.get("child_output_mapping"), dict):
        yield from map(str, mapping.values())
    if default := rule.options.get("default_child"):
        yield str(default)


def line_of(rule: ToolRule, first_tools: Sequence[str]) -> str:
    """Return the rule's text for the model.

    It is the rule's template, or else a default sentence, in which `{{ tool_name }}` and the
    options are filled in. Nothing is evaluated. Placeholders with a known name are replaced, and
    all others are kept.
    """
    if len(first_tools) == 1:
        first = first_tools[0]
    else:
        first = f"one of these: {', '.join(first_tools)}"
    fields = {"tool_name": rule.tool_name, "type": rule.type, "first_tools": first, **rule.options}

    def fill(match: re.Match[str]) -> str:
        if match[2] is not None:
            separator = match[2]
        else:
            separator = match[3]
        if match[1] in fields:
            return _text_of(fields[match[1]], separator)
        return match[0]

    line = disarm(_PLACEHOLDER.sub(fill, rule.prompt_template or SENTENCES[rule.type]))
    if rule.prompt_template:
        return line
    return f"<tool_rule>\n{line}\n</tool_rule>"


def _text_of(content: Any, separator: str | None) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return (separator or ", ").join(f"{key} → {part}" for key, part in content.items())
    if isinstance(content, (list, tuple)):
        joint = ", " if separator is None else separator
        return joint.join(part if isinstance(part, str) else _json(part) for part in content)
    return _json(content)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def _comparable(text: str) -> tuple[str, Any]:
    """Return the value that a text represents, with a name for its type.

    So 1 equals 1.0 and "1", but not true.
    """
    bare = text.strip()
    if bare.lower() in _CONSTANTS:
        return "word", _CONSTANTS[bare.lower()]
    try:
        parsed = orjson.loads(bare)
        if isinstance(parsed, int | float):
            return "number", parsed
        if isinstance(parsed, str):
            return _comparable(parsed)
        return ("json", orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return "text", bare


def _child_arguments(rule: ToolRule, children: frozenset[str]) -> dict[str, dict[str, Any]]:
    arguments_by_child: dict[str, dict[str, Any]] = {}
    for node in rule.options.get("child_arg_nodes") or ():
        if isinstance(node, Mapping):
            name = node.get("name")
        else:
            name = None
        if not _is_name(name) or name not in children:
            raise _fault(rule, f"child_arg_nodes names {name}, which is not among its children")
        for key, argument in _arguments(rule, node.get("args")).items():
            if (
                key in arguments_by_child.setdefault(name, {})
                and arguments_by_child[name][key] != argument
            ):
                raise _fault(rule, f"child_arg_nodes gives {key} of {name} two different values")
            arguments_by_child[name][key] = argument
    return arguments_by_child


def _branches(rule: ToolRule) -> dict[str, Any]:
    mapping = rule.options.get("child_output_mapping")
    if (
        not isinstance(mapping, Mapping)
        or not mapping
        or not all(_is_name(child) for child in mapping.values())
    ):
        raise _fault(
            rule, "child_output_mapping must map at least one output to the name of a tool"
        )
    default = rule.options.get("default_child")
    if default is not None and not _is_name(default):
        raise _fault(rule, "default_child must be the name of a tool")
    requires_match = rule.options.get("require_output_mapping") or False
    if not isinstance(requires_match, bool):
        raise _fault(rule, "require_output_mapping must be true or false")
    cases = {_text_of(case, None): child for case, child in mapping.items()}
    return {"mapping": cases, "default": default, "requires_match": requires_match}


def _names(rule: ToolRule, option: str) -> frozenset[str]:
    names = rule.options.get(option)
    if (
        not isinstance(names, (list, tuple))
        or not names
        or not all(_is_name(name) for name in names)
    ):
        raise _fault(rule, f"{option} must name at least one tool")
    return frozenset(names)


def _arguments(rule: ToolRule, arguments: Any) -> dict[str, Any]:
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise _fault(rule, "args must be an object of arguments by name")
    return dict(arguments)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name)


def _fault(rule: ToolRule, problem: str) -> Invalid:
    return Invalid(
        f"The {rule.type} rule for {rule.tool_name} cannot be: {problem}. Change the rule."
    )
