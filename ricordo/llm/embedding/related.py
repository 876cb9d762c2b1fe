"""Words near in meaning to those of a question, by the embedded model's own vectors of whole words: hike for walk, job for work.

A search looks for them as well, for less than the words themselves. Only English has enough whole words in the model's vocabulary.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Names are left out by their capitals: what is near to a name is other names.
_WORD = re.compile(r"(?<!\w)[a-z]{3,30}(?!\w)")
_WHOLE = re.compile(r"▁[a-z]{3,}")
MOST_WORDS = 24
NEAREST = 12
LEAST_LIKE = 0.5
# Words that are near by differ in the signs of at most so many of 256 dimensions: 105 is the most of all pairs in the vocabulary.
MOST_APART = 108
_REMEMBERED = 20_000


class RelatedWords:
    """The whole words of a tokeniser's vocabulary, with their vectors: `table` has a row of 256 numbers for each token."""

    def __init__(self, tokenizer: Any, table: "NDArray[np.float16]") -> None:
        import numpy as np

        whole = sorted((id, token) for token, id in tokenizer.get_vocab().items() if _WHOLE.fullmatch(token))
        self._words = [token[1:] for _, token in whole]
        vectors: NDArray[np.float32] = table[[id for id, _ in whole]].astype(np.float32)
        self._vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        self._signs = np.ascontiguousarray(np.packbits(self._vectors > 0, axis=1).view(np.uint64).T)
        self._tokenizer, self._table = tokenizer, table
        self._near: Callable[[str], tuple[str, ...]] = lru_cache(_REMEMBERED)(self._look_up)

    def of(self, text: str) -> dict[str, tuple[str, ...]]:
        """For each small English word of a question the words nearest to it, nearest first; the word itself may be among them."""
        words = list(dict.fromkeys(_WORD.findall(text[:2000])))[:MOST_WORDS]
        return {word: near for word in words if (near := self._near(word))}

    def _look_up(self, word: str) -> tuple[str, ...]:
        import numpy as np

        ids = self._tokenizer.encode(word, add_special_tokens=False).ids
        vector: NDArray[np.float32] = self._table[list(ids)].sum(axis=0, dtype=np.float32)
        length = float(vector @ vector) ** 0.5
        if not length:
            return ()
        asked = vector / np.float32(length)
        # Signs are sixty-four to a word, so that a look at all of them takes a tenth of comparing the numbers.
        # A byte that runs over, as for an opposite, makes one more to be compared, no more.
        signs = np.packbits(asked > 0).view(np.uint64)
        apart = np.zeros(self._signs.shape[1], dtype=np.uint8)
        for row, sign in zip(self._signs, signs, strict=True):
            apart += np.bitwise_count(row ^ sign)
        maybe = np.flatnonzero(apart <= MOST_APART)
        likeness = self._vectors.take(maybe, axis=0) @ asked
        near = np.flatnonzero(likeness >= LEAST_LIKE)
        nearest = maybe[near[np.argsort(-likeness[near])][:NEAREST]]
        return tuple([self._words[place] for place in nearest.tolist()])
