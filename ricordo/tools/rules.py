"""Tool rules: which tools may be called now, which end a turn, which must come before its end. Pure: no I/O, no state.

The order of evaluation: while nothing was called yet and there are `run_first` rules, their tools alone are allowed. Otherwise
the answer is the intersection of what all other rules let through; a tool that no rule speaks of is allowed unless a rule
narrows the choice. Some cases need a decision, and this is ours:

- Rules about order look at the turn's last call, whether it succeeded or not. A call that the rules refused is no call:
  callers leave it out of the history.
- A terminal tool ends the turn, even if it has children, but only when its call succeeded (else nobody heard the answer) and
  nothing is left that is required before. While something is, the turn goes on, and the terminal tool's children apply.
- `required_before_exit` wants a call that succeeded. A required tool that failed as often as it may be called is let go.
- `parent_last_tool` holds also where the parent is not attached: its children cannot be called then. All other rules about a
  tool that is not attached are without effect, but for two that demand what is not there: all tools of `run_first`, and any
  of `required_before_exit`.
- With no tool left the model may still speak; only where a call is wanted is that a dead end. A turn that can no longer end,
  or no longer reach what is required, is a dead end too. What can be proved beforehand is refused when the book is made.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Any

from ricordo.domain.tool import RuleType, ToolRule
from ricordo.errors import Invalid
from ricordo.tools.rule_kinds import ParsedRule, line_of, parse_rule

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_FOLLOWING: tuple[RuleType, ...] = ("constrain_child_tools", "parent_last_tool", "conditional")
_ORDERED: tuple[RuleType, ...] = ("run_first", "max_count_per_step", *_FOLLOWING)


class DeadEnd(Invalid):
    """The tool rules leave no way on: a tool has to be called and none may, or the turn could not end any more."""


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """One finished call of this turn. `content` is the text it returned, before packaging."""

    name: str
    content: str
    is_success: bool


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tools that may be called now, in their order, and values to fill in by tool.

    With `must_call` the rules want a call now, so that the model may not answer in words alone.
    """

    names: tuple[str, ...]
    prefilled: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    must_call: bool = False


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """What the rules say after a step: the turn is over, or, for this reason (words for the model), another step is wanted."""

    stops: bool = False
    reason: str | None = None


_SILENT = RuleOutcome()


class Rulebook:
    """The rules of an agent over the tools attached to it. `history` is always the calls of this turn that ran, in order."""

    def __init__(self, rules: Sequence[ToolRule], tools: Sequence[str]) -> None:
        """Raises Invalid for a rule that cannot be, and for rules under which a turn could never end."""
        self._rules = tuple(rules)
        self._tools = tuple(dict.fromkeys(tools))
        self._attached = frozenset(self._tools)
        self.is_empty = not self._rules
        self._all = Allowed(self._tools)
        self._parsed = tuple(parse_rule(rule) for rule in self._rules)
        self._first = self._of("run_first")
        self._only_after = self._of("parent_last_tool")
        self._after: dict[str, list[ParsedRule]] = {}
        self._parents: dict[str, set[str]] = {}
        self._limits: dict[str, int] = {}
        for rule in self._of(*_FOLLOWING):
            self._after.setdefault(rule.tool, []).append(rule)
        for rule in self._only_after:
            for child in rule.children:
                self._parents.setdefault(child, set()).add(rule.tool)
        for rule in self._of("max_count_per_step"):
            self._limits[rule.tool] = min(rule.limit, self._limits.get(rule.tool, rule.limit))
        self.terminal = frozenset(rule.tool for rule in self._of("exit_loop"))
        self._continuing = frozenset(rule.tool for rule in self._of("continue_loop"))
        self.gated = frozenset(rule.tool for rule in self._of("requires_approval"))
        self._required = tuple(
            dict.fromkeys(rule.tool for rule in self._of("required_before_exit"))
        )
        self.is_ordered = bool(self._of(*_ORDERED))
        proves = bool(self._first or self._after or self._required)
        # What a tool will return is not known before, so each output is held possible.
        paths = {name: self._let_through(name, None) for name in self._tools} if proves else {}
        self._following = {name: following for name, (following, _) in paths.items()}
        self._endings = {
            name for name, (_, must_call) in paths.items() if not must_call or name in self.terminal
        }
        if proves:
            self._prove()

    def allowed(self, history: Sequence[FinishedCall]) -> Allowed:
        """What may be called now; raises DeadEnd where a call is wanted and none is left, or the turn can no longer end."""
        if self.is_empty:
            return self._all
        last = history[-1] if history else None
        spent = self._spent(history)
        filled: Iterable[tuple[str, Mapping[str, Any]]] = ()
        if last:
            names, must_call = self._let_through(last.name, last.content)
            filled = [
                pair for rule in self._after.get(last.name, ()) for pair in rule.arguments.items()
            ]
        elif self._first:
            names = self._attached & {rule.tool for rule in self._first}
            must_call = True
            filled = [(rule.tool, rule.arguments) for rule in self._first]
        else:
            names = self._unguarded(None)
            must_call = False
        names = names - spent
        missing = self.before_exit(history)
        if (last and must_call) or missing:
            self._require_way_out(names, spent, missing, last)
        ordered = tuple(name for name in self._tools if name in names)
        return Allowed(
            ordered, _merged((name, values) for name, values in filled if name in names), must_call
        )

    def outcome(
        self, history: Sequence[FinishedCall], latest: Sequence[FinishedCall]
    ) -> RuleOutcome:
        """What follows from a step whose calls were `latest`, none where the model only spoke, after those in `history`."""
        if self.is_empty:
            return _SILENT
        calls = [*history, *latest]
        missing = self.before_exit(calls)
        ended = [call for call in latest if call.name in self.terminal]
        if any(call.is_success for call in ended) and not missing:
            return RuleOutcome(stops=True)
        if missing:
            return RuleOutcome(reason=f"Before this turn ends, call: {', '.join(missing)}.")
        if ended:
            return RuleOutcome(reason=f"{ended[-1].name} failed, so this turn is not over.")
        last = calls[-1] if calls else None
        if self._let_through(last.name, last.content)[1] if last else self._first:
            return RuleOutcome(reason=f"The tool rules want a tool call {_place(last)}.")
        if going_on := [call.name for call in latest if call.name in self._continuing]:
            return RuleOutcome(reason=f"The tool rules want you to go on after {going_on[-1]}.")
        return _SILENT

    def before_exit(self, history: Sequence[FinishedCall]) -> tuple[str, ...]:
        """The required tools that were not yet called with success, unless they may be called no more."""
        if not self._required:
            return ()
        done = {call.name for call in history if call.is_success} | self._spent(history)
        return tuple(name for name in self._required if name not in done)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """What the rules tell the model, in their order; rules without effect on the attached tools tell nothing."""
        firsts = [
            name
            for name in dict.fromkeys(rule.tool for rule in self._first)
            if name in self._attached
        ]
        shown = (
            line_of(rule, firsts)
            for rule, parsed in zip(self._rules, self._parsed, strict=True)
            if parsed.tool in self._attached
            or (parsed.type == "parent_last_tool" and parsed.children & self._attached)
        )
        return tuple(dict.fromkeys(shown))

    def _of(self, *types: RuleType) -> tuple[ParsedRule, ...]:
        return tuple(rule for rule in self._parsed if rule.type in types)

    def _spent(self, history: Sequence[FinishedCall]) -> frozenset[str]:
        if not self._limits:
            return frozenset()
        counts = Counter(call.name for call in history)
        return frozenset(name for name, limit in self._limits.items() if counts[name] >= limit)

    def _let_through(self, last: str, output: str | None) -> tuple[frozenset[str], bool]:
        """The tools that the rules about order leave after this output, and whether one of those rules wants a call now."""
        choices = [rule.successors(output) for rule in self._after.get(last, ())]
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
        spent: frozenset[str],
        missing: tuple[str, ...],
        last: FinishedCall | None,
    ) -> None:
        reachable = self._reach(names, spent)
        if not names:
            what = f"No tool may be called {_place(last)}, though one has to be"
        elif lost := [name for name in missing if name not in reachable]:
            what = (
                f"{', '.join(lost)} must be called before the turn ends, but {_place(last)} that "
                "is no longer possible"
            )
        elif reachable.isdisjoint(self._endings):
            what = f"This turn can no longer end {_place(last)}"
        else:
            return
        raise DeadEnd(f"{what}. {self._blamed(last.name if last else None, spent, missing)}")

    def _blamed(self, last: str | None, spent: Iterable[str], missing: Iterable[str]) -> str:
        followed = self._after.get(last, []) if last else []
        guards = [
            rule
            for rule in self._only_after
            if rule.tool != last and rule.children & self._attached
        ]
        limits = [rule for rule in self._of("max_count_per_step") if rule.tool in set(spent)]
        blamed = [
            *map(str, [*followed, *guards, *limits]),
            *(f"required_before_exit of {name}" for name in missing),
        ]
        if not blamed:
            return "Attach the tools that its rules name, or change the rules."
        return (
            f"Change one of these tool rules, or attach the tools they name: {'; '.join(blamed)}."
        )

    def _reach(self, names: Iterable[str], spent: Collection[str]) -> set[str]:
        """Every tool that may be called sooner or later, one of `names` coming next; `spent` tools are called no more."""
        seen: set[str] = set()
        waiting = set(names).difference(spent)
        while waiting:
            name = waiting.pop()
            seen.add(name)
            waiting |= self._following[name].difference(seen, spent)
        return seen

    def _trap(self, reachable: set[str]) -> str | None:
        """A tool among these after which no turn can end; None where there is none."""
        escaping = reachable & self._endings
        while more := {
            name for name in reachable - escaping if not escaping.isdisjoint(self._following[name])
        }:
            escaping |= more
        return min(reachable - escaping, default=None)

    def _prove(self) -> None:
        """Raise Invalid where no turn could end, whatever the model does."""
        never = self._spent(())
        firsts = {rule.tool for rule in self._first}
        start = (self._attached & firsts if firsts else self._unguarded(None)) - never
        if firsts and not start:
            raise Invalid(
                f"The tool rules want a turn to begin with {' or '.join(sorted(firsts))}, which "
                "cannot be called: "
                "attach such a tool and allow at least one call of it, or remove its run_first "
                "rule."
            )
        _merged((rule.tool, rule.arguments) for rule in self._first)
        for name in self._attached:
            _merged(pair for rule in self._after.get(name, ()) for pair in rule.arguments.items())
        if absent := [name for name in self._required if name not in self._attached]:
            raise Invalid(
                f"The tool rules require {', '.join(absent)} before a turn ends, but that is not "
                "attached. "
                "Attach it, or remove its required_before_exit rule."
            )
        reachable = self._reach(start, never)
        if lost := next((name for name in self._required if name not in reachable), None):
            raise Invalid(
                f"{lost} must be called before a turn ends, but the tool rules never allow it. "
                f"{self._blamed(None, never, [lost])}"
            )
        if trap := self._trap(reachable):
            raise Invalid(
                f"Once {trap} was called, no turn could ever end. {self._blamed(trap, never, ())}"
            )
        later = {name: self._reach(self._following[name], never) for name in self._required}
        for one, other in combinations(self._required, 2):
            if other not in later[one] and one not in later[other]:
                raise Invalid(
                    f"{one} and {other} must both be called before a turn ends, but after one of "
                    "them the other never "
                    f"can be. {self._blamed(one, never, (one, other))}"
                )


def _merged(filled: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Values by tool and argument; raises Invalid where two rules fill one argument in two ways."""
    merged: dict[str, dict[str, Any]] = {}
    for name, values in filled:
        for key, value in values.items():
            if key in merged.setdefault(name, {}) and merged[name][key] != value:
                raise Invalid(
                    f"Two tool rules fill the argument {key} of {name} in two ways. "
                    "Change one of them."
                )
            merged[name][key] = value
    return {name: values for name, values in merged.items() if values}


def _place(last: FinishedCall | None) -> str:
    if last:
        return f"after {last.name}"
    return "at the beginning of a turn"
