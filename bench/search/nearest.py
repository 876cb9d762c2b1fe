"""Compare a first pass over one bit for each dimension with an exact comparison.

The figures are its recall and the times of both.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.search.texts import Writer
from ricordo.llm.embedding.embedded import EmbeddedModel, is_installed
from ricordo.search import fusion, vectors

BEST = 10
Rows = npt.NDArray[np.float32]
QUESTIONS = 200


@dataclass(frozen=True)
class Nearest:
    """The recall of the ten nearest, and the milliseconds of a search.

    There is one time for Ricordo's search in one conversation, and one for a comparison with every
    vector.
    """

    recall: float
    took: float
    exact_took: float


def measure(count: int) -> Nearest | None:
    """Search this number of embedded texts; return None if no embedding model is installed."""
    if not is_installed():
        return None
    writer = Writer(5)
    texts = writer.texts(count)
    rows = asyncio.run(_embedded(texts))
    asked = asyncio.run(_embedded(writer.questions(texts, QUESTIONS)))
    kept = vectors.vectors_from(rows.astype(np.float16))
    compared, may, nowhere = (
        rows.astype(np.float32),
        np.ones(count, dtype=np.bool_),
        np.zeros(count, dtype=np.bool_),
    )
    found, ours, exact = [], [], []
    for query in asked:
        began = time.perf_counter()
        near = vectors.similarities(kept, query, may, nowhere).values
        middle = time.perf_counter()
        every = compared @ fusion.focus(query, kept.common)
        nearest = np.partition(every, count - BEST)[count - BEST :]
        ours.append((middle - began) * 1000)
        exact.append((time.perf_counter() - middle) * 1000)
        best = np.sort(near)[::-1][:BEST]
        # Storing vectors in fewer bits changes a similarity by less than this. Equal texts may
        # replace each other.
        found.append(float(np.mean(best >= nearest.min() - 1e-3)))
    return Nearest(statistics.fmean(found), statistics.median(ours), statistics.median(exact))


async def _embedded(texts: list[str]) -> Rows:
    """Return the texts' vectors by the embedded model, of length 1, one a row."""
    model = EmbeddedModel()
    parts = [
        np.array(await model.embed(texts[at : at + 512]), dtype=np.float32)
        for at in range(0, len(texts), 512)
    ]
    return np.concatenate(parts)
