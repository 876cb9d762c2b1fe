"""The default bound of an answer's tokens. Pure.

A bound is always sent, since a small model may never end by itself.
"""

from ricordo.domain.model import ModelInfo
from ricordo.llm.openai_dialect import is_openai, thinks_at_openai

MOST_OUTPUT = 16_384
MOST_OF_SMALL = 1_024
_LEAST = 256
_WINDOW_PARTS = 4  # an answer may fill the context window divided by this


def usual_output_tokens(
    info: ModelInfo, window: int, *, is_small: bool = False, chosen: int | None = None
) -> int | None:
    """Return the bound of an answer in tokens.

    The bound is `chosen` if that is set; otherwise it follows from `window`, the context window in
    tokens. It never exceeds the model's own limit of output. None for OpenAI's reasoning models
    without a chosen bound: reasoning of unknown length counts as output there, and OpenAI ends
    answers itself.
    """
    if chosen is None and is_openai(info.endpoint or "") and thinks_at_openai(info.name):
        return None
    upper_limit = MOST_OF_SMALL if is_small else MOST_OUTPUT
    budget = chosen or min(upper_limit, max(_LEAST, window // _WINDOW_PARTS))
    if info.max_output_tokens:
        return min(budget, info.max_output_tokens)
    return budget
