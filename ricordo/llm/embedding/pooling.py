"""How the vectors of a text's tokens become the vector of the text. Pure numpy; the one place to change it.

A change here changes what every stored vector means: give the model a new handle with it, so that vectors are built again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def pooled(table: "NDArray[np.float16]", tokens: Sequence[int]) -> "NDArray[np.float32]":
    """The vector of a text, of length 1 and shape (dimensions,); zeros for a text without tokens.

    `table` holds a row for each token, shape (vocabulary, dimensions). One text at a time is quicker than many together:
    their rows then stay in the processor's cache.
    """
    import numpy as np

    # The sum points where the mean does, and only the direction is kept.
    total: NDArray[np.float32] = table[list(tokens)].sum(axis=0, dtype=np.float32)
    length = float(np.linalg.norm(total))
    return total / length if length else total
