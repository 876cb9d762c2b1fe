"""Tool rules: the allowed tools, the calls that end a turn, and required calls. Pure.

The order: if nothing was called yet and there are `run_first` rules, only their tools are allowed.
Otherwise a tool is allowed if all other rules allow it. A tool without rules is allowed if no rule
narrows the choice. Some cases are not obvious; they are decided as follows:

- Rules about order look at the turn's last call, successful or not. A call that the rules refused
  does not count, so callers leave it out of the history.
- A terminal tool ends the turn, even if it has children. Its call must have succeeded (or the
  answer would not be seen), and no required call may be missing. Otherwise the turn continues, and
  the terminal tool's children apply.
- `required_before_exit` needs a successful call. After a tool has failed as often as it may be
  called, it is no longer required.
- `parent_last_tool` applies even if the parent is not attached; then its children cannot be called.
  Other rules about tools that are not attached have no effect, with two exceptions. At least one
  tool of the `run_first` rules must be attached, and all tools of `required_before_exit` must be.
- If no tool is left, the model may still speak. This is a dead end only if a call is required. A
  turn that can no longer end, or no longer make its required calls, is also a dead end. Impossible
  rules are refused when the rulebook is created, if that can be proved.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Any

from ricordo.domain.message import ToolReturnPart
from ricordo.domain.tool import RuleType, ToolRule
from ricordo.errors import Invalid
from ricordo.tools.rule_kinds import ParsedRule, line_of, parse_rule

_NOTHING: Mapping[str, Any] = MappingProxyType({})
# Types of rules that only name their tool.
_PLAIN: tuple[RuleType, ...] = (
    "exit_loop",
    "continue_loop",
    "requires_approval",
    "required_before_exit",
)
_FOLLOWING: tuple[RuleType, ...] = ("constrain_child_tools", "parent_last_tool", "conditional")


class DeadEnd(Invalid):
    """The rules leave no way to continue.

    Either a call is required but no tool may be called, or the turn can no longer end.
    """


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A finished call of this turn; `content` is its text before packaging."""

    name: str
    content: str
    is_success: bool


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tools that may be called now, in order, with arguments to fill in.

    With `must_call` the rules require a call now, so the model may not answer with text alone.
    """

    names: tuple[str, ...]
    prefilled: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    must_call: bool = False


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """The rules' decision after a step.

    The turn ends, or it needs another step for this reason (a text for the model).
    """

    stops: bool = False
    reason: str | None = None


_SILENT = RuleOutcome()


def finished_calls(results: Iterable[ToolReturnPart]) -> list[FinishedCall]:
    """Return the finished calls for the tool rules; refused calls do not count."""
    return [
        FinishedCall(result.name, result.content, result.status == "success")
        for result in results
        if not result.is_refused
    ]


class Rulebook:
    """The rules of an agent over its attached tools.

    In all methods, `history` is the list of this turn's executed calls, in order.
    """

    def __init__(self, rules: Sequence[ToolRule], tools: Sequence[str]) -> None:
        """Parse the rules.

        Raises Invalid for an impossible rule, and for rules under which no turn could end.
        """
        self._rules = tuple(rules)
        self._tools = tuple(dict.fromkeys(tools))
        self._attached = frozenset(self._tools)
        self._bits = {name: 1 << number for number, name in enumerate(self._tools)}
        self.is_empty = not self._rules
        self._all = Allowed(self._tools)
        self._parsed = tuple(parse_rule(rule) for rule in self._rules)
        of_type: dict[RuleType, list[ParsedRule]] = defaultdict(list)
        for rule in self._parsed:
            of_type[rule.type].append(rule)
        self._first = of_type["run_first"]
        self._only_after = of_type["parent_last_tool"]
        self._counted = of_type["max_count_per_step"]
        tools_of = {kind: dict.fromkeys(rule.tool for rule in of_type[kind]) for kind in _PLAIN}
        self.terminal = frozenset(tools_of["exit_loop"])
        self.gated = frozenset(tools_of["requires_approval"])
        self._continuing = frozenset(tools_of["continue_loop"])
        self.required = tuple(tools_of["required_before_exit"])
        self._rules_after: dict[str, list[ParsedRule]] = defaultdict(list)
        self._parents: dict[str, set[str]] = defaultdict(set)
        self._limits: dict[str, int] = {}
        if self._rules:
            self._connect()
        self.is_ordered = bool(self._first or self._counted or self._rules_after)
        self._following: dict[str, frozenset[str]] = {}
        self._endings: set[str] = set()
        if self._first or self._rules_after or self.required:
            self._prove()

    def _connect(self) -> None:
        """Record by tool the rules after its call, the tools before it, and its limit."""
        for rule in self._parsed:
            if rule.type in _FOLLOWING:
                self._rules_after[rule.tool].append(rule)
        for rule in self._only_after:
            for child in rule.children:
                self._parents[child].add(rule.tool)
        for rule in self._counted:
            self._limits[rule.tool] = min(rule.limit, self._limits.get(rule.tool, rule.limit))

    def allowed(self, history: Sequence[FinishedCall]) -> Allowed:
        """Return the tools that may be called now.

        Raises DeadEnd if a call is required but no tool is left, or if the turn can no longer end.
        """
        if self.is_empty:
            return self._all
        last = history[-1] if history else None
        used_up = self._used_up(history)
        fixed_arguments: Iterable[tuple[str, Mapping[str, Any]]] = ()
        if last:
            names, must_call = self._allowed_after(last.name, last.content)
            fixed_arguments = self._arguments_after(last.name)
        elif self._first:
            names = self._attached & {rule.tool for rule in self._first}
            must_call = True
            fixed_arguments = [(rule.tool, rule.arguments) for rule in self._first]
        else:
            names = self._unguarded(None)
            must_call = False
        names = names - used_up
        missing = self.before_exit(history)
        if (last and must_call) or missing:
            self._require_way_out(names, used_up, missing, last)
        ordered = tuple(name for name in self._tools if name in names)
        return Allowed(
            ordered,
            _merge_arguments((name, values) for name, values in fixed_arguments if name in names),
            must_call,
        )

    def outcome(
        self, history: Sequence[FinishedCall], latest: Sequence[FinishedCall]
    ) -> RuleOutcome:
        """Return the decision after a step that made the calls `latest`.

        These calls come after the calls in `history`. There are none if the model only spoke.
        """
        if self.is_empty:
            return _SILENT
        calls = [*history, *latest]
        missing = self.before_exit(calls)
        terminal_calls = [call for call in latest if call.name in self.terminal]
        if any(call.is_success for call in terminal_calls) and not missing:
            return RuleOutcome(stops=True)
        if missing:
            return RuleOutcome(reason=f"Before this turn ends, call: {', '.join(missing)}.")
        if terminal_calls:
            return RuleOutcome(
                reason=f"{terminal_calls[-1].name} failed, so this turn cannot end yet."
            )
        last = calls[-1] if calls else None
        if self._allowed_after(last.name, last.content)[1] if last else self._first:
            return RuleOutcome(reason=f"The tool rules require a tool call {_position_of(last)}.")
        if continuing := [call.name for call in latest if call.name in self._continuing]:
            return RuleOutcome(
                reason=f"The tool rules require you to continue after {continuing[-1]}."
            )
        return _SILENT

    def before_exit(self, history: Sequence[FinishedCall]) -> tuple[str, ...]:
        """Return the required tools that still lack a successful call.

        Tools that may no longer be called are left out.
        """
        if not self.required:
            return ()
        satisfied = {call.name for call in history if call.is_success} | self._used_up(history)
        return tuple(name for name in self.required if name not in satisfied)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Return the rules' texts for the model, in their order.

        Rules without effect on the attached tools have no text.
        """
        firsts = [
            name
            for name in dict.fromkeys(rule.tool for rule in self._first)
            if name in self._attached
        ]
        texts = (
            line_of(rule, firsts)
            for rule, parsed in zip(self._rules, self._parsed, strict=True)
            if parsed.tool in self._attached
            or (parsed.type == "parent_last_tool" and parsed.children & self._attached)
        )
        return tuple(dict.fromkeys(texts))

    def _used_up(self, history: Sequence[FinishedCall]) -> frozenset[str]:
        if not self._limits:
            return frozenset()
        counts = Counter(call.name for call in history)
        return frozenset(name for name, limit in self._limits.items() if counts[name] >= limit)

    def _allowed_after(self, last: str, output: str | None) -> tuple[frozenset[str], bool]:
        """Return the tools that rules about order allow after this output.

        The flag tells whether one of these rules requires a call now.
        """
        choices = [rule.successors(output) for rule in self._rules_after.get(last, ())]
        narrowing = [choice for choice in choices if choice is not None]
        return self._unguarded(last).intersection(*narrowing), bool(narrowing)

    def _unguarded(self, last: str | None) -> frozenset[str]:
        if not self._parents:
            return self._attached
        return frozenset(
            name for name in self._attached if self._parents.get(name, {last}) == {last}
        )

    def _require_way_out(
        self,
        names: frozenset[str],
        used_up: frozenset[str],
        missing: tuple[str, ...],
        last: FinishedCall | None,
    ) -> None:
        reachable = self._reach(names, used_up)
        if not names:
            problem = f"No tool may be called {_position_of(last)}, though one has to be"
        elif unreachable := [name for name in missing if name not in reachable]:
            problem = (
                f"{', '.join(unreachable)} must be called before the turn ends, but "
                f"{_position_of(last)} that "
                "is no longer possible"
            )
        elif reachable.isdisjoint(self._endings):
            problem = f"This turn can no longer end {_position_of(last)}"
        else:
            return
        raise DeadEnd(
            f"{problem}. {self._fault_sentence(last.name if last else None, used_up, missing)}"
        )

    def _fault_sentence(
        self, last: str | None, used_up: Iterable[str], missing: Iterable[str]
    ) -> str:
        if last:
            rules_after = self._rules_after.get(last, [])
        else:
            rules_after = []
        guards = [
            rule
            for rule in self._only_after
            if rule.tool != last and rule.children & self._attached
        ]
        limits = [rule for rule in self._counted if rule.tool in set(used_up)]
        rules = [
            *map(str, [*rules_after, *guards, *limits]),
            *(f"required_before_exit of {name}" for name in missing),
        ]
        if not rules:
            return "Attach the tools that its rules name, or change the rules."
        return f"Change one of these tool rules, or attach the tools they name: {'; '.join(rules)}."

    def _reach(self, names: Iterable[str], used_up: Collection[str]) -> set[str]:
        """Return every tool that may be called later, if one of `names` comes next.

        Tools in `used_up` cannot be called any more.
        """
        reached: set[str] = set()
        waiting = set(names).difference(used_up)
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting |= self._following[name].difference(reached, used_up)
        return reached

    def _trap(self, reachable: set[str]) -> str | None:
        """Return one of these tools whose call would leave no way to end the turn, or None."""
        escaping = reachable & self._endings
        while more := {
            name for name in reachable - escaping if not escaping.isdisjoint(self._following[name])
        }:
            escaping |= more
        return min(reachable - escaping, default=None)

    def _arguments_after(self, name: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the fixed arguments of the tools that may follow this tool."""
        return [pair for rule in self._rules_after.get(name, ()) for pair in rule.arguments.items()]

    def _prove(self) -> None:
        """Raise Invalid if no turn could end, whatever the model does."""
        # A tool's output is not known in advance, so all outputs count as possible.
        paths = {name: self._allowed_after(name, None) for name in self._tools}
        self._following = {name: following for name, (following, _) in paths.items()}
        self._endings = {
            name for name, (_, must_call) in paths.items() if not must_call or name in self.terminal
        }
        unusable = self._used_up(())
        firsts = {rule.tool for rule in self._first}
        start = (self._attached & firsts if firsts else self._unguarded(None)) - unusable
        if firsts and not start:
            raise Invalid(
                f"The tool rules require a turn to begin with {' or '.join(sorted(firsts))}, but "
                "none of these can be called. Attach such a tool and allow at least one call, or "
                "remove its run_first rule."
            )
        _merge_arguments((rule.tool, rule.arguments) for rule in self._first)
        for name in self._attached:
            _merge_arguments(self._arguments_after(name))
        self._require_end(self._reach(start, unusable), unusable)
        self._require_both_ways(unusable)

    def _require_end(self, reachable: set[str], unusable: Set[str]) -> None:
        """Raise Invalid if turns cannot reach their required tools, or their end."""
        if absent := [name for name in self.required if name not in self._attached]:
            raise Invalid(
                f"The tool rules require {', '.join(absent)} before a turn ends, but that is not "
                "attached. "
                "Attach it, or remove its required_before_exit rule."
            )
        if unreachable := next((name for name in self.required if name not in reachable), None):
            raise Invalid(
                f"{unreachable} must be called before a turn ends, but the tool rules never allow "
                "it. "
                f"{self._fault_sentence(None, unusable, [unreachable])}"
            )
        if trap := self._trap(reachable):
            raise Invalid(
                f"Once {trap} was called, no turn could ever end. "
                f"{self._fault_sentence(trap, unusable, ())}"
            )

    def _later(self, unusable: Set[str]) -> dict[str, int]:
        """Return the tools that may be called at any time after each required tool.

        Each set of tools is a sum of their `_bits`, since there may be a thousand required tools.
        """
        usable = sum(self._bits[name] for name in self._attached - unusable)
        sums = {
            following: sum(map(self._bits.__getitem__, following)) & usable
            for following in set(self._following.values())
        }
        next_tools = [sums[self._following[name]] for name in self._tools]
        reachable: dict[int, int] = {}
        # Without rules about order, the same tools follow each tool.
        for start in {sums[self._following[name]] for name in self.required}:
            reached = 0
            waiting = start
            while waiting:
                lowest = waiting & -waiting
                reached |= lowest
                waiting = (waiting | next_tools[lowest.bit_length() - 1]) & ~reached
            reachable[start] = reached
        return {name: reachable[sums[self._following[name]]] for name in self.required}

    def _require_both_ways(self, unusable: Set[str]) -> None:
        """Raise Invalid if two required tools make each other impossible."""
        later = self._later(unusable)
        required = [(name, self._bits[name]) for name in self.required]
        for (first, first_bit), (second, second_bit) in combinations(required, 2):
            if not later[first] & second_bit and not later[second] & first_bit:
                raise Invalid(
                    f"{first} and {second} must both be called before a turn ends, but after one "
                    "of them the other never can be. "
                    f"{self._fault_sentence(first, unusable, (first, second))}"
                )


@dataclass(slots=True)
class CallRules:
    """The rulebook of a turn, with those finished calls of the turn that the rules count."""

    book: Rulebook
    finished: list[FinishedCall] = field(default_factory=list)


def _merge_arguments(
    fixed_arguments: Iterable[tuple[str, Mapping[str, Any]]],
) -> dict[str, dict[str, Any]]:
    """Merge arguments by tool and name.

    Raises Invalid if two rules fill one argument differently.
    """
    merged: dict[str, dict[str, Any]] = {}
    for name, arguments in fixed_arguments:
        for key, argument in arguments.items():
            if key in merged.setdefault(name, {}) and merged[name][key] != argument:
                raise Invalid(
                    f"Two tool rules fill the argument {key} of {name} with different values. "
                    "Change one of them."
                )
            merged[name][key] = argument
    return {name: arguments for name, arguments in merged.items() if arguments}


def _position_of(last: FinishedCall | None) -> str:
    if last:
        return f"after {last.name}"
    return "at the beginning of a turn"
