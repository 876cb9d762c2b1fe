"""The default token limit of an answer, and estimates of a call's time from earlier calls. Pure.

Nearly every call gets a token limit, since a small model may never end by itself. By the estimates,
slow models get more time for a summary.
"""

from ricordo.domain.model import ModelInfo
from ricordo.domain.usage import Usage
from ricordo.llm.openai_dialect import is_openai, thinks_at_openai

MOST_OUTPUT = 16_384
MOST_OF_SMALL = 1_024
_LEAST = 256
_WINDOW_PARTS = 4  # an answer may fill the context window divided by this
# Writing one token takes about as long as reading this number of tokens.
_READ_PER_WRITTEN = 8
# Calls with less work are too short to be measured.
_LEAST_WORK = 100
_NEWEST_SHARE = 0.3  # the share of the newest call in the moving average


def usual_output_tokens(
    info: ModelInfo, window: int, *, is_small: bool = False, chosen: int | None = None
) -> int | None:
    """Return the bound of an answer in tokens.

    It never exceeds the model's own limit of output. For OpenAI's reasoning models it is None,
    unless the server has a limit. Their reasoning, whose length is unknown, counts as output, and
    OpenAI ends answers itself.

    Args:
        info: The model.
        window: The context window in tokens, a quarter of which an answer may fill.
        is_small: Whether the model is small, so that its answers are bounded to 1,024 tokens.
        chosen: The server's setting `max_output_tokens`, which replaces the usual bound; None
            without one.
    """
    if chosen is None and is_openai(info.endpoint or "") and thinks_at_openai(info.name):
        return None
    upper_limit = MOST_OF_SMALL if is_small else MOST_OUTPUT
    budget = chosen or min(upper_limit, max(_LEAST, window // _WINDOW_PARTS))
    if info.max_output_tokens:
        return min(budget, info.max_output_tokens)
    return budget


class ModelSpeeds:
    """The seconds that each model takes for a unit of work.

    A unit is reading one token, or an eighth of writing one token.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, handle: str, usage: Usage, seconds: float) -> None:
        """Learn from one call, by its usage and its duration.

        Args:
            handle: The model's handle.
            usage: The tokens of the call. Cached tokens count as no work.
            seconds: The duration of the call.
        """
        work = _work(usage.prompt_tokens - (usage.cached_tokens or 0), usage.completion_tokens)
        if work < _LEAST_WORK or seconds <= 0:
            return
        newest = seconds / work
        average = self._seconds.get(handle, newest)
        self._seconds[handle] = average + _NEWEST_SHARE * (newest - average)

    def seconds_for(self, handle: str, prompt_tokens: int, output_tokens: int) -> float | None:
        """Estimate the seconds of a call from earlier calls; None without any.

        Args:
            handle: The model's handle.
            prompt_tokens: The tokens to read, without cached ones.
            output_tokens: The most tokens to write.
        """
        seconds = self._seconds.get(handle)
        if seconds is None:
            return None
        return seconds * _work(prompt_tokens, output_tokens)


def _work(read: int, written: int) -> int:
    return max(0, read) + _READ_PER_WRITTEN * max(0, written)
