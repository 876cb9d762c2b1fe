"""What is wrong in a text that somebody wrote, and in which line: all of it at once, so that it can be put right at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from ricordo.errors import Invalid

_MOST = 20


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """One sentence about one line, counted from 1."""

    line: int
    sentence: str

    def __str__(self) -> str:
        return f"Line {self.line}: {self.sentence}"


def refuse(problems: Iterable[Problem], where: str = "") -> NoReturn:
    """Raise Invalid with a line for each problem, in their order; `where` names the text, if it is one of several."""
    ordered = sorted(set(problems))
    told = [f"{where}: {problem}" if where else str(problem) for problem in ordered[:_MOST]]
    more = [f"And {len(ordered) - _MOST} more."] if len(ordered) > _MOST else []
    raise Invalid("\n".join([*told, *more]))
