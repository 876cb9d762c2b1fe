"""The state of a running server: counts, the last saved check, the tracer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ricordo.domain.run import Run
from ricordo.features.operations.admin.turn_counts import TurnCounts
from ricordo.features.operations.otel import is_on, load_spans
from ricordo.runtime import Runtime

_FLUSH_MS = 5_000


@dataclass(slots=True)
class Operations:
    """The operation's part of a runtime.

    Attributes:
        turn_counts: Counts of the turns that ended in this process.
        saved_until: The time of the monotonic clock until which the last successful save counts.
        trace_turn: Makes the spans of a turn; None if tracing is off.
    """

    turn_counts: TurnCounts = field(default_factory=TurnCounts)
    saved_until: float = 0.0
    trace_turn: Callable[[Runtime, Run], Awaitable[None]] | None = None


@asynccontextmanager
async def open_operations(_runtime: Runtime) -> AsyncIterator[Operations]:
    """Open the operation's part; at the end, send the waiting spans."""
    if not is_on():
        yield Operations()
        return
    spans = load_spans()
    try:
        yield Operations(trace_turn=spans.trace_turn)
    finally:
        await asyncio.to_thread(spans.provider().force_flush, _FLUSH_MS)


def operations_of(runtime: Runtime) -> Operations:
    operations: Operations = runtime.features["operations"]
    return operations


async def note_turn(runtime: Runtime, run: Run) -> None:
    """Count an ended turn, and trace it if tracing is on."""
    operations = operations_of(runtime)
    operations.turn_counts.note(run)
    if operations.trace_turn:
        await operations.trace_turn(runtime, run)
