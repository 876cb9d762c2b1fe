"""Reads that come again: a model that calls a read-only tool with the same arguments gets a notice, and at last no tools.

Small models search for what they were just told, find nothing, and search again. A call that changes something makes all reads new.
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
# The call of this number ends the use of tools in its turn.
_LAST = 3


@dataclass(slots=True)
class RepeatedReads:
    """How often each read was called in a turn; `is_over` once the turn goes on without tools."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    is_over: bool = False

    def notices(
        self, calls: Sequence[ToolCallPart], read_only: Collection[str]
    ) -> dict[str, ToolReturnPart]:
        """Return the results of those calls that are not run, by call id; counts all of them."""
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
    """The arguments in one form, whatever the order of their names."""
    value = read_json(arguments)
    if not isinstance(value, dict):
        return arguments
    values = {key: part for key, part in value.items() if part is not None}
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()
