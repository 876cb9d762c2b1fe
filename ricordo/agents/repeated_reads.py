"""Repeated reads: calls of a read-only tool with the same arguments in one turn.

Small models search for information that they just got, find nothing, and search again. A repeated
call gets a notice, and at last the turn continues without tools. A call that changes something
resets all counts.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import orjson

from ricordo.domain.message import ToolCallPart, ToolReturnPart
from ricordo.llm.loose_json import read_json

NOTICE = (
    "You made this very call before in this turn, so it was not run again: its result is above. "
    "Use that result, or answer "
    "the user now."
)
# The number of equal calls that ends the use of tools in their turn.
_LAST = 3


@dataclass(slots=True)
class RepeatedReads:
    """The number of calls of each read in a turn.

    `is_over` once the turn continues without tools.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    is_over: bool = False

    def notices(
        self, calls: Sequence[ToolCallPart], read_only: Collection[str]
    ) -> dict[str, ToolReturnPart]:
        """Count the calls, and return notices by call id for repeated ones.

        Calls with a notice are not run.
        """
        notices: dict[str, ToolReturnPart] = {}
        for call in calls:
            if call.name not in read_only:
                self.counts.clear()
                continue
            key = (call.name, _canonical(call.arguments))
            self.counts[key] += 1
            if self.counts[key] > 1:
                notices[call.call_id] = ToolReturnPart(call.call_id, call.name, "success", NOTICE)
            self.is_over |= self.counts[key] >= _LAST
        return notices


def _canonical(arguments: str) -> str:
    """Return the arguments in one form, independent of the order of their names."""
    parsed = read_json(arguments)
    if not isinstance(parsed, dict):
        return arguments
    fields = {key: content for key, content in parsed.items() if content is not None}
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()
