"""What is to be embedded: texts, or tokens of OpenAI's vocabulary, as some clients send; and vectors of fewer dimensions.

The vocabulary `cl100k_base`, which clients use for each model that they do not know, is OpenAI's own file of it (MIT licence).
"""

import gzip
import math
from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import cast

from ricordo.errors import Invalid
from ricordo.offload import SMALL, offload

_VOCABULARY = "data/cl100k_base.tiktoken.gz"
# Marks such as the end of a text, which stand for no words.
_SPECIAL = range(100_256, 100_277)


async def texts_of(
    sent: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
) -> list[str]:
    """Return the texts that were sent, as such or as tokens. Raises Invalid for tokens that the vocabulary lacks."""
    if isinstance(sent, str):
        return [sent]
    if not sent or isinstance(sent[0], str):
        return list(cast(Sequence[str], sent))
    lists = [sent] if isinstance(sent[0], int) else sent
    tokens = cast(Sequence[Sequence[int]], lists)
    # Reading the vocabulary takes 60 ms, once.
    return await offload(lambda: [_decoded(one) for one in tokens], SMALL + 1)


def shortened(vectors: Sequence[Sequence[float]], dimensions: int) -> list[list[float]]:
    """Return the vectors with their first numbers alone, of length 1 again. Raises Invalid where they have fewer."""
    if vectors and len(vectors[0]) < dimensions:
        raise Invalid(
            f"dimensions is {dimensions}, and vectors of this model have {len(vectors[0])}. Ask for fewer."
        )
    return [_unit(vector[:dimensions]) for vector in vectors]


def _unit(vector: Sequence[float]) -> list[float]:
    length = math.hypot(*vector)
    return [float(number) / (length or 1) for number in vector]


def _decoded(tokens: Sequence[int]) -> str:
    words = _vocabulary()
    known = [token for token in tokens if token not in _SPECIAL]
    if unknown := next((token for token in known if not 0 <= token < len(words)), None):
        raise Invalid(
            f"There is no token {unknown} in the vocabulary cl100k_base. Send the text itself."
        )
    return b"".join(words[token] for token in known).decode("utf-8", "replace")


@cache
def _vocabulary() -> list[bytes]:
    """The pieces of words, each at the place that is its token."""
    lines = gzip.decompress(files(__package__).joinpath(_VOCABULARY).read_bytes()).splitlines()
    return [b64decode(line.partition(b" ")[0]) for line in lines]
