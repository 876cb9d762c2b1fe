"""Wait in a test for something that another thread or process does."""

import time
from collections.abc import Callable
from typing import Any

LIMIT = 180.0  # seconds after which a test that waits for the server fails


def wait_for(find: Callable[[], Any], fault: str = "the condition did not become true") -> Any:
    """Call the function until it returns a true value, and return that value."""
    end = time.monotonic() + LIMIT
    while not (found := find()):
        assert time.monotonic() < end, fault
        time.sleep(0.02)
    return found
