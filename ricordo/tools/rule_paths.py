"""Where a turn can go under its tool rules: which calls may follow which, and whether the turn can still end.

What a tool will return is not known before, so each output is held possible: what is unreachable here never happens.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ricordo.errors import Invalid


class DeadEnd(Invalid):
    """The tool rules leave no way on: a tool has to be called and none may, or the turn could not end any more."""


@dataclass(frozen=True, slots=True)
class Paths:
    """`following[tool]` are the tools that may be called right after it, `endings` those after which a turn may end."""

    following: Mapping[str, frozenset[str]]
    endings: frozenset[str]

    def reach(self, names: Iterable[str], spent: Collection[str] = ()) -> set[str]:
        """Every tool that may be called sooner or later, one of `names` coming next; `spent` tools are called no more."""
        seen: set[str] = set()
        waiting = [name for name in names if name not in spent]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += [after for after in self.following[name] if after not in seen and after not in spent]
        return seen

    def trap(self, names: Iterable[str], spent: Collection[str] = ()) -> str | None:
        """A tool that may be called, and after which no turn can end; None where there is none."""
        seen = self.reach(names, spent)
        escaping = seen & self.endings
        while True:
            more = {name for name in seen - escaping if not escaping.isdisjoint(self.following[name])}
            if not more:
                break
            escaping |= more
        return min(seen - escaping, default=None)
