"""How many tokens an answer may have where nobody says. Pure.

A bound is always sent, since a small model may never end by itself.
"""

from ricordo.domain.model import ModelInfo
from ricordo.llm.openai_dialect import is_openai, thinks_at_openai

MOST_OUTPUT = 16_384
MOST_OF_SMALL = 1_024
_LEAST = 256
_SHARE = 4  # of the context window, a part of this many


def usual_output_tokens(
    info: ModelInfo, window: int, *, is_small: bool = False, chosen: int | None = None
) -> int | None:
    """Return the bound of an answer: the `chosen` one, else by the window in tokens, and by what the model can write.

    None where thoughts of unknown length count as output at OpenAI, whose servers end an answer themselves.
    """
    if chosen is None and is_openai(info.endpoint or "") and thinks_at_openai(info.name):
        return None
    most = chosen or min(MOST_OF_SMALL if is_small else MOST_OUTPUT, max(_LEAST, window // _SHARE))
    return min(most, info.max_output_tokens) if info.max_output_tokens else most
