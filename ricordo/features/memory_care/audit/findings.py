"""The findings of an audit of memory."""

from dataclasses import dataclass
from typing import Literal

from ricordo.domain.redaction import redact

Kind = Literal[
    "junk",
    "duplicate",
    "near-duplicate",
    "unsupported",
    "contradiction",
    "stale",
    "secret",
    "untrusted",
]
KINDS: tuple[Kind, ...] = (
    "junk",
    "duplicate",
    "near-duplicate",
    "unsupported",
    "contradiction",
    "stale",
    "secret",
    "untrusted",
)
Source = Literal["block", "passage", "fact"]
_MOST_SHOWN = 80  # characters of a text that a finding shows


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a line of a block, in a passage, or in a fact.

    `place` is the block's label, or the id of the passage or fact. Lines count from 1; line 0 means
    the whole text. `reason` explains the problem.
    """

    kind: Kind
    owner: str
    place: str
    line: int
    text: str
    reason: str
    source: Source = "block"


def short(text: str) -> str:
    """Return the start of a text as one line, without secrets.

    Args:
        text: A line of memory, of any length.
    """
    line = " ".join(redact(text).text.split())
    if len(line) <= _MOST_SHOWN:
        return line
    return line[: _MOST_SHOWN - 1] + "…"
