"""The nine kinds of tool rules: what the options of each must hold, which tools it lets through, and what it tells the model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ricordo.domain.tool import RuleType, ToolRule
from ricordo.errors import Invalid
from ricordo.prompt.memory import disarm

_MOST_CALLS = 1_000_000_000
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}
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
    """A rule with its options read.

    `children` are the tools that may follow its tool, and `arguments` what is filled in: for `run_first` by argument, for children
    by child and argument. `mapping`, `default` and `requires_match` belong to `conditional`, `limit` to `max_count_per_step`.
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
        details = str(self.limit) if self.type == "max_count_per_step" else details
        return f"{self.type} of {self.tool}" + (f" ({details})" if details else "")

    def successors(self, output: str | None) -> frozenset[str] | None:
        """The tools that may follow this output (None: whatever it is); None for all there are. An equal text wins over a value."""
        if self.type != "conditional":
            return self.children
        if output is None:
            matching = frozenset(self.mapping.values())
        elif output in self.mapping:
            return frozenset({self.mapping[output]})
        else:
            value = _comparable(output)
            matching = frozenset(
                [child for case, child in self.mapping.items() if _comparable(case) == value][:1]
            )
            if matching:
                return matching
        if self.requires_match:
            return matching
        if self.default is None:
            return None
        return matching | {self.default}


def parse_rule(rule: ToolRule) -> ParsedRule:
    """The rule with its options read; raises Invalid for a type that is unknown and for options that cannot be."""
    if not _is_name(rule.tool_name):
        raise Invalid(f"A tool rule of type {rule.type} names no tool. Give its tool_name.")
    if rule.type not in SENTENCES:
        known = ", ".join(SENTENCES)
        raise Invalid(
            f'The rule for {rule.tool_name} has the unknown type "{rule.type}". Use one of: '
            f"{known}."
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
            if type(limit) is not int or not 0 <= limit <= _MOST_CALLS:
                raise _fault(
                    rule, f"max_count_limit has to be a whole number from 0 to {_MOST_CALLS}"
                )
    return ParsedRule(rule.type, rule.tool_name, **options)


def line_of(rule: ToolRule, first_tools: Sequence[str]) -> str:
    """What the rule tells the model: its own template, else our sentence, with `{{ tool_name }}` and its options filled in.

    Nothing is evaluated: a placeholder is replaced where it names a value, and left as it is where it does not.
    """
    first = first_tools[0] if len(first_tools) == 1 else f"one of these: {', '.join(first_tools)}"
    values = {"tool_name": rule.tool_name, "type": rule.type, "first_tools": first, **rule.options}

    def fill(found: re.Match[str]) -> str:
        separator = found[2] if found[2] is not None else found[3]
        if found[1] in values:
            return _told(values[found[1]], separator)
        return found[0]

    told = disarm(_PLACEHOLDER.sub(fill, rule.prompt_template or SENTENCES[rule.type]))
    if rule.prompt_template:
        return told
    return f"<tool_rule>\n{told}\n</tool_rule>"


def _told(value: Any, separator: str | None) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return (separator or ", ").join(f"{key} → {item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        joint = ", " if separator is None else separator
        return joint.join(item if isinstance(item, str) else _json(item) for item in value)
    return _json(value)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def _comparable(text: str) -> tuple[str, Any]:
    """What a text stands for, with its kind, so that 1 is 1.0 and "1" but never true."""
    bare = text.strip()
    if bare.lower() in _WORDS:
        return "word", _WORDS[bare.lower()]
    try:
        value = orjson.loads(bare)
        if isinstance(value, int | float):
            return "number", value
        if isinstance(value, str):
            return _comparable(value)
        return ("json", orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return "text", bare


def _child_arguments(rule: ToolRule, children: frozenset[str]) -> dict[str, dict[str, Any]]:
    filled: dict[str, dict[str, Any]] = {}
    for node in rule.options.get("child_arg_nodes") or ():
        name = node.get("name") if isinstance(node, Mapping) else None
        if not _is_name(name) or name not in children:
            raise _fault(rule, f"child_arg_nodes names {name}, which is not among its children")
        for key, value in _arguments(rule, node.get("args")).items():
            if key in filled.setdefault(name, {}) and filled[name][key] != value:
                raise _fault(rule, f"child_arg_nodes fills {key} of {name} in two ways")
            filled[name][key] = value
    return filled


def _branches(rule: ToolRule) -> dict[str, Any]:
    mapping = rule.options.get("child_output_mapping")
    if (
        not isinstance(mapping, Mapping)
        or not mapping
        or not all(_is_name(child) for child in mapping.values())
    ):
        raise _fault(
            rule, "child_output_mapping has to map at least one output to the name of a tool"
        )
    default = rule.options.get("default_child")
    if default is not None and not _is_name(default):
        raise _fault(rule, "default_child has to be the name of a tool")
    strict = rule.options.get("require_output_mapping") or False
    if not isinstance(strict, bool):
        raise _fault(rule, "require_output_mapping has to be true or false")
    cases = {_told(case, None): child for case, child in mapping.items()}
    return {"mapping": cases, "default": default, "requires_match": strict}


def _names(rule: ToolRule, option: str) -> frozenset[str]:
    names = rule.options.get(option)
    if (
        not isinstance(names, (list, tuple))
        or not names
        or not all(_is_name(name) for name in names)
    ):
        raise _fault(rule, f"{option} has to name at least one tool")
    return frozenset(names)


def _arguments(rule: ToolRule, arguments: Any) -> dict[str, Any]:
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise _fault(rule, "args has to be an object of arguments by name")
    return dict(arguments)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _fault(rule: ToolRule, what: str) -> Invalid:
    return Invalid(f"The {rule.type} rule for {rule.tool_name} cannot be: {what}. Change the rule.")
