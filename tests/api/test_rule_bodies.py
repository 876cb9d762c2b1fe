from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args

import letta_client.types
import pytest

from ricordo.api.models.tools import read_rule, rule_response
from ricordo.domain.tool import RuleType, ToolRule
from ricordo.errors import Invalid

WIRE: list[dict[str, Any]] = [
    {"type": "run_first", "tool_name": "plan", "args": {"depth": 1, "note": None}},
    {"type": "exit_loop", "tool_name": "plan"},
    {"type": "continue_loop", "tool_name": "plan"},
    {
        "type": "conditional",
        "tool_name": "plan",
        "child_output_mapping": {"yes": "write"},
        "default_child": "check",
        "require_output_mapping": False,
    },
    {
        "type": "constrain_child_tools",
        "tool_name": "plan",
        "children": ["write", "check"],
        "child_arg_nodes": [{"name": "write", "args": {"path": "a"}}],
    },
    {"type": "max_count_per_step", "tool_name": "plan", "max_count_limit": 3},
    {"type": "parent_last_tool", "tool_name": "plan", "children": ["write"]},
    {"type": "required_before_exit", "tool_name": "plan"},
    {"type": "requires_approval", "tool_name": "plan", "prompt_template": "Ask before {{ tool_name }}."},
]


def test_every_type_of_rule_has_its_form() -> None:
    assert {rule["type"] for rule in WIRE} == set(get_args(RuleType))


@pytest.mark.parametrize("wire", WIRE, ids=lambda rule: rule["type"])
def test_a_rule_comes_back_as_it_was_sent(wire: dict[str, Any]) -> None:
    shown = rule_response(read_rule(wire))

    assert shown == {"prompt_template": None, **wire}
    assert read_rule(shown) == read_rule(wire)


@pytest.mark.parametrize("wire", WIRE, ids=lambda rule: rule["type"])
def test_the_official_client_reads_every_rule(wire: dict[str, Any]) -> None:
    """Found by its type among the client's own classes; what it sends back is the same rule."""
    names = [m.name for m in iter_modules(letta_client.types.__path__) if m.name.endswith("_tool_rule")]
    modules = [import_module(f"letta_client.types.{name}") for name in names]
    forms = [getattr(module, module.__all__[0]) for module in modules]
    (form,) = (f for f in forms if wire["type"] in str(f.model_fields["type"].annotation))

    read = form.model_validate(rule_response(read_rule(wire)))

    assert len(forms) == 9
    assert read_rule(read.model_dump()) == read_rule(wire)


def test_what_a_client_leaves_out_is_told_from_the_options() -> None:
    assert read_rule({"tool_name": "a", "max_count_limit": 1}).type == "max_count_per_step"
    assert read_rule({"tool_name": "a", "type": None, "child_output_mapping": {"x": "b"}}).type == "conditional"
    nodes = {"tool_name": "a", "children": ["b"], "child_arg_nodes": [{"name": "b"}]}
    assert read_rule(nodes).type == "constrain_child_tools"


def test_unknown_fields_are_let_through_and_forgotten() -> None:
    assert read_rule({"type": "exit_loop", "tool_name": "a", "id": "tool_rule-1"}) == ToolRule("a", "exit_loop")


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ({"tool_name": "a", "type": "sometimes"}, "rule for a is not right: .*'run_first'"),
        ({"tool_name": "a", "children": ["b"]}, "type"),
        ({"type": "exit_loop"}, "tool_name: Field required"),
        ({"type": "exit_loop", "tool_name": ""}, "tool_name"),
        ({"type": "constrain_child_tools", "tool_name": "a", "children": []}, "children"),
        ({"type": "constrain_child_tools", "tool_name": "a", "children": "b"}, "children"),
        ({"type": "parent_last_tool", "tool_name": "a"}, "children: Field required"),
        ({"type": "conditional", "tool_name": "a", "child_output_mapping": {}}, "child_output_mapping"),
        ({"type": "max_count_per_step", "tool_name": "a", "max_count_limit": -1}, "max_count_limit"),
        ({"type": "run_first", "tool_name": "a", "args": [1]}, "args"),
        (
            {
                "type": "constrain_child_tools",
                "tool_name": "a",
                "children": ["b"],
                "child_arg_nodes": [{"name": "c"}],
            },
            "not among its children",
        ),
        ("exit_loop", "not right"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_name(wire: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read_rule(wire)
