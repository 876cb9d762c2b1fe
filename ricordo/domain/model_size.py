"""Sizes of models, read from their names without asking a provider."""

import re
from functools import lru_cache

# The parameter limit of a small model, in billions.
MOST_SMALL = 4.0
# "1.5b", "3B", "1_6b", "8x7b", "e4b" (Gemma's effective size), "360m". No letter or digit may
# follow: "4bit" is not a size.
_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?[ae]?(\d+(?:[._]\d+)?)\s?([bm])(?![a-z0-9])")
# Families whose names give no size; the first match counts.
_FAMILIES: tuple[tuple[re.Pattern[str], float], ...] = (
    (re.compile(r"(?:^|/)phi-?(?:3|3\.5|4)[:-]mini|(?:^|/)phi-?3(?:\.5)?(?::latest)?$"), 3.8),
    (re.compile(r"(?:^|/)phi-?2(?::latest)?$|(?:^|/)dolphin-phi"), 2.7),
    (re.compile(r"tiny-?(?:llama|dolphin)"), 1.1),
    (re.compile(r"smol-?lm"), 3.0),
    (re.compile(r"(?:nemotron|orca)-mini(?::latest)?$"), 4.0),
    (re.compile(r"(?:^|/)llama-?3\.2(?::latest)?$"), 3.0),
    (re.compile(r"(?:^|/)gemma-?3(?::latest)?$"), 4.0),
)


def billions(name: str) -> float | None:
    """Return the parameters in billions from a model's name; None if it gives none.

    For a mixture of experts ("30b-a3b", "8x7b") this is the total of all experts.
    """
    name = name.lower()
    sizes = [_parameters(*groups) for groups in _SIZE.findall(name)]
    if sizes:
        return max(sizes)
    return next((size for pattern, size in _FAMILIES if pattern.search(name)), None)


@lru_cache(maxsize=1024)
def is_small(name: str) -> bool:
    """Return True if the name indicates at most 4 billion parameters."""
    size = billions(name)
    return size is not None and size <= MOST_SMALL


def _parameters(experts: str, count: str, unit: str) -> float:
    size = float(count.replace("_", ".")) * int(experts or 1)
    return size / 1000 if unit == "m" else size
