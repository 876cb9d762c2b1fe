"""The measured speed of models, by handle and in memory.

Slow models get longer time limits.
"""

from ricordo.domain.usage import Usage

# Writing one token takes about as long as reading this number of tokens.
_READ_PER_WRITTEN = 8
# Calls with less work are too short to measure.
_LEAST_WORK = 100
_NEWEST_SHARE = 0.3  # of the newest call in the moving average


class ModelSpeeds:
    """Seconds for a unit of work by model: reading one token, or an eighth of writing one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, handle: str, usage: Usage, seconds: float) -> None:
        """Learn from one call, by its usage and its duration."""
        work = _work(usage.prompt_tokens - (usage.cached_tokens or 0), usage.completion_tokens)
        if work < _LEAST_WORK or seconds <= 0:
            return
        newest = seconds / work
        average = self._seconds.get(handle, newest)
        self._seconds[handle] = average + _NEWEST_SHARE * (newest - average)

    def seconds_for(self, handle: str, prompt_tokens: int, output_tokens: int) -> float | None:
        """Estimate the seconds of a call from earlier calls; None without any."""
        seconds = self._seconds.get(handle)
        if seconds is None:
            return None
        return seconds * _work(prompt_tokens, output_tokens)


def _work(read: int, written: int) -> int:
    return max(0, read) + _READ_PER_WRITTEN * max(0, written)
