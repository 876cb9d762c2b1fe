"""How fast models have answered, so that slow ones get the time they need. Kept in memory, by handle."""

from ricordo.domain.usage import Usage

# A token that is written takes about as long as so many that are read.
_WRITTEN = 8
# A call with less work than this tells little.
_LEAST_WORK = 100
_NEWEST = 0.3  # the share of the newest call in the average


class ModelSpeeds:
    """Seconds for a unit of work, by model: reading one token, or an eighth of writing one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, handle: str, usage: Usage, seconds: float) -> None:
        """Learn from one call, by its usage and the time that it took."""
        work = _work(usage.prompt_tokens - (usage.cached_tokens or 0), usage.completion_tokens)
        if work < _LEAST_WORK or seconds <= 0:
            return
        new, before = seconds / work, self._seconds.get(handle)
        self._seconds[handle] = new if before is None else before + _NEWEST * (new - before)

    def seconds_for(self, handle: str, prompt_tokens: int, output_tokens: int) -> float | None:
        """Return how long a call will take, as far as earlier ones tell; None where there were none."""
        known = self._seconds.get(handle)
        return None if known is None else known * _work(prompt_tokens, output_tokens)


def _work(read: int, written: int) -> int:
    return max(0, read) + _WRITTEN * max(0, written)
