"""Counts of the turns that ended in this process: results, times and cost."""

from collections import Counter

from ricordo.domain.request_counts import Histogram
from ricordo.domain.run import Run


class TurnCounts:
    """Counts of turns, steps and tokens, and the times of turns."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[str] = Counter()
        self.steps = 0
        self.times = Histogram()

    def note(self, run: Run) -> None:
        """Count a turn."""
        usage = run.usage
        self.ended[run.purpose or "chat", run.stop_reason or run.status] += 1
        self.tokens.update(prompt=usage.prompt_tokens, completion=usage.completion_tokens)
        self.tokens["cached"] += usage.cached_tokens or 0
        self.steps += run.step_count
        self.times.note((run.duration_ns or 0) / 1e9)
