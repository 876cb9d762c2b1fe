"""Sizes of models as their names tell them. Pure: nobody is asked."""

import re

# The most parameters, in billions, that a small model has.
MOST_SMALL = 4.0
# "1.5b", "3B", "1_6b", "x7b", "e4b" (Gemma's effective size); "360m". No letter or digit follows: "4bit" is no size.
_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?[ae]?(\d+(?:[._]\d+)?)\s?([bm])(?![a-z0-9])")
# Families whose names say no size; the first that fits counts.
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
    """Return how many billion parameters a model of this name has; None where the name does not say.

    Of a mixture of experts ("30b-a3b", "8x7b") all of them count.
    """
    name = name.lower()
    sizes = [_parameters(*found) for found in _SIZE.findall(name)]
    if sizes:
        return max(sizes)
    return next((size for pattern, size in _FAMILIES if pattern.search(name)), None)


def is_small(name: str) -> bool:
    """Return whether the name tells of at most 4 billion parameters."""
    size = billions(name)
    return size is not None and size <= MOST_SMALL


def _parameters(experts: str, count: str, unit: str) -> float:
    size = float(count.replace("_", ".")) * int(experts or 1)
    return size / 1000 if unit == "m" else size
