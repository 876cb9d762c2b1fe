"""Find sentences that express a fact in other words, by vectors of the embedded model.

The vectors need no network and no index. So texts that are searched by words are also searched by
meaning, up to `MOST_COMPARED` sentences. Such matches are only suggestions, among which the owner
chooses.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from ricordo.errors import Unavailable
from ricordo.llm.embedding import embedded
from ricordo.settings import Settings

# The threshold was measured by `python -m bench.paraphrases` (decision 0085).
LEAST_ALIKE = 0.2
# The most sentences that are compared for one list; each takes a tenth of a millisecond.
MOST_COMPARED = 20_000
_SHORTEST = 8  # characters


def is_available(settings: Settings) -> bool:
    """Return whether the embedded model may be used, and is installed.

    Args:
        settings: The settings; with `embedding` "none", no model may be used.
    """
    return settings.embedding != "none" and embedded.is_installed()


@cache
def _model() -> Any:
    return embedded.load_now()


class Meaning:
    """The meaning of the sentences of a fact."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._left = MOST_COMPARED
        try:
            self._model = _model()
        except Unavailable:
            self._left = 0
            return
        self._parts = [_vector(self._model, part) for part in parts]

    def is_near(self, sentence: str) -> bool:
        """Return whether a sentence says nearly the same thing.

        Args:
            sentence: One sentence. A sentence of less than 8 characters is not compared, nor is any
                after the first `MOST_COMPARED`: the result is then False.
        """
        if not self._left or len(sentence) < _SHORTEST:
            return False
        self._left -= 1
        vector = _vector(self._model, sentence)
        return any(float(part @ vector) >= LEAST_ALIKE for part in self._parts)


def _vector(model: Any, text: str) -> Any:
    """Return a text's vector of length 1."""
    tokenizer, table = model
    encoding = tokenizer.encode(text[: embedded.MOST_CHARACTERS], add_special_tokens=False)
    return embedded.pooled(table, encoding.ids)
