"""The two sizes of a campaign: a short one in every run, and a long one that `make soak` runs."""

from collections.abc import Callable
from typing import Any

import pytest

# Pytest's fixture `record_property`, which records a campaign's counts and its seed.
RecordProperty = Callable[[str, object], None]

# The number of kills in each long campaign with several agents. The four campaigns (asking, groups,
# sleeping agents and voice) make 500 kills on each database.
KILLS = 125


def short_and_long(short: Any, long: Any) -> list[Any]:
    """Return the values of one parameter, or of several as a tuple, in both sizes."""
    sizes = [size if isinstance(size, tuple) else (size,) for size in (short, long)]
    return [
        pytest.param(*sizes[0], id="short"),
        pytest.param(*sizes[1], id="long", marks=pytest.mark.soak),
    ]
