from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.tool import RuleType, ToolRule
from ricordo.errors import Invalid
from ricordo.tools.rules import DeadEnd, FinishedCall, Rulebook, RuleOutcome

TOOLS = ("plan", "search", "write", "check", "send_message")


def rule(kind: RuleType, tool: str, template: str | None = None, **options: Any) -> ToolRule:
    return ToolRule(tool, kind, template, options)


def children(tool: str, *names: str, **options: Any) -> ToolRule:
    return rule("constrain_child_tools", tool, children=list(names), **options)


def parent(tool: str, *names: str) -> ToolRule:
    return rule("parent_last_tool", tool, children=list(names))


def called(*names: str, content: str = "Done.", is_success: bool = True) -> list[FinishedCall]:
    return [FinishedCall(name, content, is_success) for name in names]


def names(book: Rulebook, *history: str, content: str = "Done.") -> tuple[str, ...]:
    return book.allowed(called(*history, content=content)).names


# --- what may be called ---


def test_a_turn_begins_with_the_run_first_tools_and_then_allows_all() -> None:
    book = Rulebook(
        [rule("run_first", "search"), rule("run_first", "plan"), rule("run_first", "absent")], TOOLS
    )
    first = book.allowed([])
    assert (first.names, first.must_call) == (("plan", "search"), True)
    assert names(book, "plan") == TOOLS
    assert not book.allowed(called("plan")).must_call


def test_right_after_a_parent_only_its_children_may_be_called() -> None:
    book = Rulebook([children("plan", "search", "write")], TOOLS)
    after = book.allowed(called("plan"))
    assert (after.names, after.must_call) == (("search", "write"), True)
    assert names(book) == names(book, "search") == TOOLS


def test_children_of_a_parent_rule_are_allowed_only_right_after_it() -> None:
    book = Rulebook([parent("plan", "write", "check")], TOOLS)
    assert names(book) == names(book, "search") == ("plan", "search", "send_message")
    assert names(book, "plan") == ("write", "check")
    assert names(book, "plan", "write") == ("plan", "search", "send_message")


def test_several_rules_allow_only_the_intersection() -> None:
    limit = rule("max_count_per_step", "search", max_count_limit=1)
    cases = {"yes": "write", "no": "check"}
    branch = rule("conditional", "plan", child_output_mapping=cases, default_child="search")
    book = Rulebook(
        [children("plan", "search", "write"), parent("plan", "write", "check"), limit, branch],
        TOOLS,
    )
    assert names(book) == ("plan", "search", "send_message")
    assert names(book, "plan", content="yes") == ("write",)
    for dead in (["plan"], ["search", "plan"]):
        with pytest.raises(DeadEnd, match="though one has to be"):
            book.allowed(called(*dead, content="no" if len(dead) == 1 else "else"))


def test_a_limit_counts_all_calls_of_the_turn_even_failed_ones() -> None:
    book = Rulebook([rule("max_count_per_step", "search", max_count_limit=2)], TOOLS)
    assert "search" in names(book, "search", "plan")
    assert "search" not in names(book, "search", "plan", "search")
    assert "search" not in book.allowed(called("search", "search", is_success=False)).names


def test_a_conditional_rule_chooses_the_next_tool_by_the_result() -> None:
    cases = {
        "yes": "write",
        "true": "check",
        "1": "search",
        "1.0": "plan",
        '{"a":true,"b":[1]}': "plan",
    }
    book = Rulebook(
        [rule("conditional", "plan", child_output_mapping=cases, default_child="send_message")],
        TOOLS,
    )
    outputs = {
        "write": ("yes", " yes\n", '"yes"'),
        "check": ("true", "True"),
        "search": ("1", "1.00", "1e0"),
        "plan": ("1.0", '{"b": [1], "a": true}'),
        "send_message": ("yes, please", "01", "", "[" * 300 + "]" * 300, "{broken"),
    }
    for expected, several in outputs.items():
        for output in several:
            assert names(book, "plan", content=output) == (expected,), output


# --- values that rules fill in ---


def test_arguments_are_prefilled_for_the_first_tool_and_for_children() -> None:
    node = {"name": "write", "args": {"path": "a.md"}}
    rules = [
        rule("run_first", "plan", args={"depth": 1}),
        children("plan", "write", "check", child_arg_nodes=[node]),
    ]
    book = Rulebook(rules, TOOLS)
    first, second = book.allowed([]), book.allowed(called("plan"))
    assert first.prefilled == {"plan": {"depth": 1}}
    assert second.prefilled == {"write": {"path": "a.md"}}
    assert book.allowed(called("plan", "write")).prefilled == {}


def test_prefilled_arguments_of_two_rules_are_merged_and_contradictions_refused() -> None:
    def filled(**arguments: Any) -> ToolRule:
        return rule("run_first", "plan", args=arguments)

    assert Rulebook([filled(a=1), filled(b=2)], TOOLS).allowed([]).prefilled == {
        "plan": {"a": 1, "b": 2}
    }
    with pytest.raises(Invalid, match="argument a of plan with different values"):
        Rulebook([filled(a=1), filled(a=2)], TOOLS)
    both = [
        children("plan", "write", child_arg_nodes=[{"name": "write", "args": {"a": n}}])
        for n in (1, 2)
    ]
    with pytest.raises(Invalid, match="argument a of write with different values"):
        Rulebook(both, TOOLS)


# --- how a turn ends ---


def test_a_terminal_tool_ends_the_turn_only_if_it_succeeded() -> None:
    book = Rulebook([rule("exit_loop", "send_message"), children("send_message", "plan")], TOOLS)
    good, bad = called("send_message"), called("send_message", is_success=False)
    assert book.terminal == {"send_message"}
    assert book.outcome([], good) == RuleOutcome(stops=True)
    failed = book.outcome([], bad)
    assert not failed.stops
    assert "send_message failed" in str(failed.reason)


def test_no_turn_ends_before_the_required_tools_succeeded() -> None:
    book = Rulebook(
        [rule("exit_loop", "send_message"), rule("required_before_exit", "write")], TOOLS
    )
    spoke, failed = called("send_message"), called("write", is_success=False)
    waits = book.outcome(failed, spoke)
    assert (
        waits == book.outcome([], []) == RuleOutcome(reason="Before this turn ends, call: write.")
    )
    assert book.outcome([], called("write")) == RuleOutcome()
    assert book.outcome([], called("send_message", "write")).stops
    assert book.before_exit(failed) == ("write",)
    assert book.before_exit(called("write")) == ()
    assert book.outcome(called("write"), spoke) == RuleOutcome(stops=True)


def test_a_required_tool_that_used_up_its_limit_is_no_longer_required() -> None:
    rules = [
        rule("required_before_exit", "write"),
        rule("max_count_per_step", "write", max_count_limit=1),
    ]
    book = Rulebook(rules, TOOLS)
    failed = called("write", is_success=False)
    assert book.before_exit(failed) == ()
    assert book.outcome(failed, []) == RuleOutcome()


def test_the_turn_continues_after_a_continue_loop_tool_or_a_parent() -> None:
    book = Rulebook(
        [rule("continue_loop", "search"), children("plan", "write"), rule("run_first", "check")],
        TOOLS,
    )
    assert "continue after search" in str(book.outcome([], called("search")).reason)
    assert "after plan" in str(book.outcome([], called("plan")).reason)
    assert book.outcome([], called("write")) == RuleOutcome()
    assert "beginning" in str(book.outcome([], []).reason)


def test_rules_about_approval_do_not_order_calls() -> None:
    calm = [
        rule("requires_approval", "write"),
        rule("exit_loop", "send_message"),
        rule("continue_loop", "plan"),
    ]
    book = Rulebook(calm, TOOLS)
    assert book.gated == {"write"}
    assert not book.is_ordered
    for strict in (
        rule("run_first", "plan"),
        children("plan", "write"),
        parent("plan", "write"),
        rule("conditional", "plan", child_output_mapping={"a": "write"}),
        rule("max_count_per_step", "plan", max_count_limit=1),
    ):
        assert Rulebook([*calm, strict], TOOLS).is_ordered


# --- invalid rules ---


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (ToolRule("plan", "sometimes"), "unknown type"),  # type: ignore[arg-type]
        (ToolRule("", "exit_loop"), "names no tool"),
        (rule("constrain_child_tools", "plan"), "children must name"),
        (children("plan"), "children must name"),
        (rule("parent_last_tool", "plan", children="write"), "children must name"),
        (children("plan", "write", child_arg_nodes=[{"name": "check"}]), "not among its children"),
        (children("plan", "write", child_arg_nodes=["write"]), "not among its children"),
        (
            children("plan", "write", child_arg_nodes=[{"name": "write", "args": [1]}]),
            "args must be",
        ),
        (
            children(
                "plan",
                "write",
                child_arg_nodes=[{"name": "write", "args": {"a": n}} for n in (1, 2)],
            ),
            "gives a of write two different values",
        ),
        (rule("run_first", "plan", args="deep"), "args must be"),
        (rule("conditional", "plan", child_output_mapping={}), "at least one output"),
        (rule("conditional", "plan", child_output_mapping={"a": 1}), "at least one output"),
        (
            rule("conditional", "plan", child_output_mapping={"a": "write"}, default_child=1),
            "default_child",
        ),
        (
            rule(
                "conditional", "plan", child_output_mapping={"a": "b"}, require_output_mapping="no"
            ),
            "true or false",
        ),
        (rule("max_count_per_step", "plan"), "whole number"),
        (rule("max_count_per_step", "plan", max_count_limit=-1), "whole number"),
        (
            rule("max_count_per_step", "plan", max_count_limit=1_000_000_001),
            "whole number from 0 to 1000000000",
        ),
        (rule("max_count_per_step", "plan", max_count_limit=True), "whole number"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(bad: ToolRule, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Rulebook([bad], TOOLS)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([rule("run_first", "absent")], "begin with absent"),
        (
            [rule("run_first", "plan"), rule("max_count_per_step", "plan", max_count_limit=0)],
            "begin with plan",
        ),
        ([rule("required_before_exit", "absent")], "require absent before"),
        (
            [
                rule("required_before_exit", "plan"),
                rule("max_count_per_step", "plan", max_count_limit=0),
            ],
            "never allow",
        ),
        (
            [rule("required_before_exit", "plan"), parent("absent", "plan")],
            "parent_last_tool of absent",
        ),
        ([children("plan", "absent")], "Once plan was called, no turn could ever end"),
        ([children("plan", "search"), children("plan", "write")], "Once plan was called"),
        ([children("plan", "search"), children("search", "plan")], "Once plan was called"),
        (
            [
                rule(
                    "conditional",
                    "plan",
                    child_output_mapping={"a": "absent"},
                    require_output_mapping=True,
                )
            ],
            "Once plan",
        ),
        ([parent("plan", "write"), parent("search", "write")], "Once plan was called"),
        (
            [
                *(rule("required_before_exit", name) for name in ("write", "check")),
                children("write", "write", "search"),
                children("check", "check", "search"),
                children("search", "search"),
                rule("exit_loop", "search"),
            ],
            "write and check must both be called",
        ),
    ],
)
def test_rules_that_let_no_turn_end_are_refused(rules: list[ToolRule], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Rulebook(rules, TOOLS)


def test_rules_about_unattached_tools_are_ignored() -> None:
    absent = [
        *(rule(kind, "absent") for kind in ("exit_loop", "continue_loop", "requires_approval")),
        rule("max_count_per_step", "absent", max_count_limit=1),
        rule("conditional", "absent", child_output_mapping={"a": "nowhere"}),
        *(children("absent", "nowhere"), children("plan", "absent", "write")),
    ]
    book = Rulebook(absent, TOOLS)
    assert names(book) == TOOLS
    assert names(book, "plan") == ("write",)
    assert len(book.lines) == 1


def test_a_turn_that_can_no_longer_end_is_reported_with_its_rules() -> None:
    limit = rule("max_count_per_step", "send_message", max_count_limit=1)
    rules = [children("plan", "search"), children("search", "plan", "send_message"), limit]
    book = Rulebook(rules, ["plan", "search", "send_message"])
    assert names(book, "send_message", content="x") == ("plan", "search")
    with pytest.raises(
        DeadEnd, match=r"no longer end after plan.*max_count_per_step of send_message \(1\)"
    ):
        book.allowed(called("send_message", "plan"))


# --- sentences for the model ---


def test_every_rule_type_has_a_sentence_for_the_model() -> None:
    rules = [
        rule("run_first", "plan"),
        rule("run_first", "search"),
        rule("exit_loop", "send_message"),
        rule("continue_loop", "search"),
        rule("conditional", "check", child_output_mapping={"ok": "send_message", "bad": "write"}),
        children("plan", "search", "write"),
        rule("max_count_per_step", "search", max_count_limit=3),
        parent("write", "check"),
        rule("required_before_exit", "search"),
        rule("requires_approval", "write"),
    ]
    lines = [
        line.removeprefix("<tool_rule>\n").removesuffix("\n</tool_rule>")
        for line in Rulebook(rules, TOOLS).lines
    ]
    assert lines == [
        "Your first tool call has to be one of these: plan, search.",
        "Calling send_message finishes your turn.",
        "A call of search never comes last: go on after it.",
        "What check returns decides which tool comes next: ok → send_message, bad → write.",
        "Right after plan, call one of these and nothing else: search, write.",
        "Calls of search in one turn: 3 at most.",
        "Right after write, and at no other time, call one of these: check.",
        "Do not end your turn before you have called search.",
        "A call of write waits until a person has approved it.",
    ]


def test_a_template_replaces_the_sentence_and_is_not_evaluated() -> None:
    template = (
        "{{tool_name}}: {{ children | join(' / ') }}. {{ 7 * 7 }} {{ unknown }} {% if x %} {{ "
        "children[0] }}"
    )
    lines = Rulebook(
        [rule("constrain_child_tools", "plan", template, children=["search", "write"])], TOOLS
    ).lines
    assert lines == (
        "plan: search / write. {{ 7 * 7 }} {{ unknown }} {% if x %} {{ children[0] }}",
    )
    # Inserted text is not expanded again, and cannot close its section.
    tricky = "{{ tool_name }}</tool_usage_rules>"
    (line,) = Rulebook(
        [rule("requires_approval", "plan", "Mind {{ note }}.", note=tricky)], TOOLS
    ).lines
    assert line == "Mind {{ tool_name }}<\\/tool_usage_rules>."


def test_the_proof_follows_the_tools_once_however_many_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = []
    follow = Rulebook._reach

    def counted(book: Rulebook, *given: Any) -> set[str]:
        followed.append(given)
        return follow(book, *given)

    monkeypatch.setattr(Rulebook, "_reach", counted)
    many = [f"tool-{number}" for number in range(200)]
    Rulebook([rule("required_before_exit", name) for name in many], many)
    assert len(followed) == 1


# --- random rules ---

NAMES = ("a", "b", "c", "d")
OUTPUTS = ("yes", "no", "1")
_name = st.sampled_from(("a", "b", "c", "d", "absent"))
_names = st.lists(_name, min_size=1, max_size=3, unique=True)
_rule = st.one_of(
    st.builds(
        rule,
        st.sampled_from(("run_first", "exit_loop", "continue_loop", "required_before_exit")),
        _name,
    ),
    st.builds(lambda tool, some: children(tool, *some), _name, _names),
    st.builds(lambda tool, some: parent(tool, *some), _name, _names),
    st.builds(
        lambda tool, limit: rule("max_count_per_step", tool, max_count_limit=limit),
        _name,
        st.integers(0, 3),
    ),
    st.builds(
        lambda tool, cases, default, strict: rule(
            "conditional",
            tool,
            child_output_mapping=cases,
            default_child=default,
            require_output_mapping=strict,
        ),
        _name,
        st.dictionaries(st.sampled_from(OUTPUTS), _name, min_size=1, max_size=3),
        st.none() | _name,
        st.booleans(),
    ),
)
_rules = st.lists(_rule, max_size=6)


def _book(rules: Sequence[ToolRule]) -> Rulebook | None:
    try:
        return Rulebook(rules, NAMES)
    except Invalid:
        return None


def _walk(book: Rulebook, random: Random) -> str:
    """Walk through one turn of an obedient model; return how it ended.

    The model answers, and so ends the turn, whenever the rules permit it.
    """
    history: list[FinishedCall] = []
    for _ in range(2_000):
        try:
            allowed = book.allowed(history)
        except DeadEnd:
            return "dead end"
        if not allowed.must_call and not book.before_exit(history):
            assert not book.outcome(history, []).reason
            return "spoke"
        call = FinishedCall(random.choice(allowed.names), random.choice((*OUTPUTS, "else")), True)
        outcome = book.outcome(history, [call])
        history.append(call)
        if outcome.stops:
            assert not book.before_exit(history)
            return "stopped"
    return "endless"


@given(_rules, st.sets(st.sampled_from(NAMES), min_size=2))
def test_required_tools_are_refused_exactly_if_neither_can_follow_the_other(
    rules: list[ToolRule], required: set[str]
) -> None:
    rules = [one for one in rules if one.type != "required_before_exit"]
    required_rules = [rule("required_before_exit", name) for name in sorted(required)]
    book = _book(rules)
    fault = None
    try:
        Rulebook([*rules, *required_rules], NAMES)
    except Invalid as error:
        fault = str(error)
    if book is None or (fault and "must both be called" not in fault):
        return  # refused for another reason
    used_up = {one.tool_name for one in rules if one.options.get("max_count_limit") == 0}
    following = {name: set(book._allowed_after(name, None)[0]) - used_up for name in NAMES}
    later = {name: book_reach(following, name) for name in NAMES}
    apart = [
        (one, other)
        for one in required
        for other in required
        if one != other and other not in later[one] and one not in later[other]
    ]
    assert bool(fault) == bool(apart)


def book_reach(following: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    while more := set.union(following[start], *(following[name] for name in reached)) - reached:
        reached |= more
    return reached


@given(_rules, st.integers(0, 2**32))
def test_every_turn_that_follows_the_rules_ends_or_is_reported(
    rules: list[ToolRule], seed: int
) -> None:
    """A random walker ends a turn with probability one while there is a way out.

    2,000 steps are more than any of these turns needs.
    """
    book = _book(rules)
    if book is not None:
        assert _walk(book, Random(seed)) != "endless"  # noqa: S311 - a replayable walk
