"""Inputs and results of embeddings: texts, OpenAI's tokens, shorter vectors.

For unknown models, some clients send tokens of the vocabulary `cl100k_base` instead of texts. The
vocabulary's file is from OpenAI (MIT licence).
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
# Special tokens that have no text, such as the end of a text.
_SPECIAL = range(100_256, 100_277)


async def texts_of(
    inputs: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
) -> list[str]:
    """Return the texts of the input, decoded if they are tokens.

    Raises Invalid for tokens that the vocabulary lacks.
    """
    if isinstance(inputs, str):
        return [inputs]
    if not inputs or isinstance(inputs[0], str):
        return list(cast(Sequence[str], inputs))
    lists = [inputs] if isinstance(inputs[0], int) else inputs
    tokens = cast(Sequence[Sequence[int]], lists)
    # Reading the vocabulary takes 60 ms, once.
    return await offload(lambda: [_decoded(text_tokens) for text_tokens in tokens], SMALL + 1)


def shortened(vectors: Sequence[Sequence[float]], dimensions: int) -> list[list[float]]:
    """Cut the vectors to their first numbers, and scale them to length 1.

    Raises Invalid if they have fewer.
    """
    if vectors and len(vectors[0]) < dimensions:
        raise Invalid(
            f"dimensions is {dimensions}, but vectors of this model have {len(vectors[0])}. Ask "
            "for no more than that."
        )
    return [_unit(vector[:dimensions]) for vector in vectors]


def _unit(vector: Sequence[float]) -> list[float]:
    length = math.hypot(*vector)
    return [float(number) / (length or 1) for number in vector]


def _decoded(tokens: Sequence[int]) -> str:
    vocabulary = _vocabulary()
    text_tokens = [token for token in tokens if token not in _SPECIAL]
    if unknown := next((token for token in text_tokens if not 0 <= token < len(vocabulary)), None):
        raise Invalid(
            f"There is no token {unknown} in the vocabulary cl100k_base. Send the text itself."
        )
    return b"".join(vocabulary[token] for token in text_tokens).decode("utf-8", "replace")


@cache
def _vocabulary() -> list[bytes]:
    """Return the pieces of text; the index of each is its token."""
    lines = gzip.decompress(files(__package__).joinpath(_VOCABULARY).read_bytes()).splitlines()
    return [b64decode(line.partition(b" ")[0]) for line in lines]
