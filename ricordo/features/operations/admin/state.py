"""The state of a running server: counts, the last check that rows can be saved, and the tracer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ricordo.domain.request_counts import Histogram
from ricordo.domain.run import Run
from ricordo.features.operations.otel import is_on, load_spans
from ricordo.runtime import Runtime

_FLUSH_MS = 5_000


class TurnCounts:
    """Counts of turns, steps and tokens, and the times of turns."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[str] = Counter()
        self.steps = 0
        self.times = Histogram()

    def note(self, run: Run) -> None:
        """Count a turn.

        Args:
            run: A run that has ended.
        """
        usage = run.usage
        self.ended[run.purpose or "chat", run.stop_reason or run.status] += 1
        self.tokens.update(prompt=usage.prompt_tokens, completion=usage.completion_tokens)
        self.tokens["cached"] += usage.cached_tokens or 0
        self.steps += run.step_count
        self.times.note((run.duration_ns or 0) / 1e9)


@dataclass(slots=True)
class Operations:
    """The operation's part of a runtime.

    Attributes:
        turn_counts: Counts of the turns that ended in this process.
        saved_until: The monotonic time until which the last successful check counts.
        trace_turn: A function that makes the spans of a turn; None if tracing is off.
    """

    turn_counts: TurnCounts = field(default_factory=TurnCounts)
    saved_until: float = 0.0
    trace_turn: Callable[[Runtime, Run], Awaitable[None]] | None = None


@asynccontextmanager
async def open_operations(_runtime: Runtime) -> AsyncIterator[Operations]:
    """Open this feature's part of a runtime; when it closes, send the waiting spans.

    Args:
        _runtime: The runtime; it is not used.

    Yields:
        The part, which records spans if OpenTelemetry is on.
    """
    if not is_on():
        yield Operations()
        return
    spans = load_spans()
    try:
        yield Operations(trace_turn=spans.trace_turn)
    finally:
        await asyncio.to_thread(spans.provider().force_flush, _FLUSH_MS)


def operations_of(runtime: Runtime) -> Operations:
    """Return this feature's part of a runtime.

    Args:
        runtime: The runtime, after its features were opened.
    """
    operations: Operations = runtime.features["operations"]
    return operations


async def note_turn(runtime: Runtime, run: Run) -> None:
    """Count an ended turn, and trace it if tracing is on.

    Args:
        runtime: The running server.
        run: The ended run.
    """
    operations: Operations = runtime.features["operations"]
    operations.turn_counts.note(run)
    if operations.trace_turn:
        await operations.trace_turn(runtime, run)
