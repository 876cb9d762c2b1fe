"""Rotation strategies of the human block, and the defaults of typed memory.

A strategy object counts the changes of one block, so each block needs a separate object.
"""

import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from ricordo.errors import Invalid
from ricordo.memory.rotation import STRATEGIES, compress

T = TypeVar("T")
MAX_CHARS = "CORE_MEMORY_MAX_CHARS"
THRESHOLD = "ARCHIVAL_ROTATION_THRESHOLD"
LEAST_CHARS = 150


@dataclass(frozen=True)
class ContextMetrics:
    """The characters of two blocks and their limits.

    A usage is from 0 (empty) to 1 (full, or fuller).
    """

    persona_chars: int
    human_chars: int
    persona_max: int
    human_max: int

    @property
    def persona_usage(self) -> float:
        return _share(self.persona_chars, self.persona_max)

    @property
    def human_usage(self) -> float:
        return _share(self.human_chars, self.human_max)

    @property
    def total_usage(self) -> float:
        return _share(self.persona_chars + self.human_chars, self.persona_max + self.human_max)


class RotationStrategy:
    """A rule that says when to rotate the human block, and how to shorten a text.

    Any object with a `threshold` and these methods can be used.
    """

    name: ClassVar[str]

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is None:
            self.threshold = STRATEGIES[self.name][1]
        else:
            self.threshold = _require_threshold(threshold)

    def should_rotate(self, metrics: ContextMetrics) -> bool:
        """Return True if the human block is fuller than the threshold.

        The manager calls it once for each change of the block.

        Args:
            metrics: How full the blocks are after the change.
        """
        return metrics.human_usage > self.threshold

    def compress(self, content: str, target_chars: int) -> str:
        """Return the text to keep, at most `target_chars` characters.

        Args:
            content: The text to shorten.
            target_chars: The most characters.

        Raises:
            Invalid: The number is negative.
        """
        return compress(self.name, content, target_chars)


class AggressiveRotation(RotationStrategy):
    """Keeps core memory small.

    It rotates above 70 percent, and keeps the end of a text.
    """

    name = "aggressive"


class PreservativeRotation(RotationStrategy):
    """Keeps as much as possible in core memory.

    It rotates above 90 percent, and keeps the lines with a tag first.
    """

    name = "preservative"


class AdaptiveRotation(RotationStrategy):
    """Adapts its threshold to the usage.

    It rotates above 80 percent (or ARCHIVAL_ROTATION_THRESHOLD), and keeps the most important
    lines. After every ten changes, it looks at the average usage after them. If the block was
    rotated and the average is below 0.5, the threshold rises by 0.05, up to 0.95. If the average is
    above 0.9, the threshold falls by 0.05, down to 0.6.
    """

    STEP = 0.05
    LOWEST = 0.6
    HIGHEST = 0.95
    HALF_EMPTY = 0.5
    NEARLY_FULL = 0.9
    WINDOW = 10
    name = "adaptive"

    def __init__(self, base_threshold: float | None = None) -> None:
        super().__init__(default_threshold() if base_threshold is None else base_threshold)
        self.base_threshold = self.threshold
        self._usages: deque[float] = deque(maxlen=self.WINDOW)
        self._has_rotated = False

    def should_rotate(self, metrics: ContextMetrics) -> bool:
        """Return as the base class does, and adjust the threshold after some calls.

        Args:
            metrics: How full the blocks are after the change.
        """
        is_full = super().should_rotate(metrics)
        self._usages.append(metrics.human_usage)
        self._has_rotated = self._has_rotated or is_full
        if len(self._usages) == self.WINDOW:
            self._adjust(sum(self._usages) / self.WINDOW)
        return is_full

    def _adjust(self, average: float) -> None:
        if self._has_rotated and average < self.HALF_EMPTY:
            # The bounds are widened to include the chosen base.
            self.threshold = min(
                round(self.threshold + self.STEP, 2), max(self.HIGHEST, self.base_threshold)
            )
        elif average > self.NEARLY_FULL:
            self.threshold = max(
                round(self.threshold - self.STEP, 2), min(self.LOWEST, self.base_threshold)
            )
        self._usages.clear()
        self._has_rotated = False


def default_max_chars() -> int:
    """Return the default limit of a block: CORE_MEMORY_MAX_CHARS, else 1500.

    Raises Invalid.
    """
    return require_max_chars(_from_environment(MAX_CHARS, 1500, int))


def require_max_chars(max_chars: int) -> int:
    """Return the limit if a name, a task and a state fit into it.

    Args:
        max_chars: The most characters of a block.

    Raises:
        Invalid: It is too small.
    """
    if max_chars < LEAST_CHARS:
        raise Invalid(
            f"A block of {max_chars} characters is too short for typed memory. Allow at least "
            f"{LEAST_CHARS}."
        )
    return max_chars


def default_threshold() -> float:
    """Return the adaptive strategy's default threshold. Raises Invalid.

    It is ARCHIVAL_ROTATION_THRESHOLD, else 0.8.
    """
    return _require_threshold(_from_environment(THRESHOLD, 0.8, float))


def _require_threshold(threshold: float) -> float:
    if not (math.isfinite(threshold) and 0 < threshold <= 1):
        raise Invalid(
            f"A threshold of {threshold} cannot be used. Give a number above 0, at most 1: "
            "0.8 is 80 percent."
        )
    return threshold


def _from_environment(name: str, default: T, parse: Callable[[str], T]) -> T:
    setting = os.environ.get(name)
    try:
        return parse(setting) if setting else default
    except ValueError:
        raise Invalid(f"{name} is {setting!r}. Set it to a number, such as {default}.") from None


def _share(chars: int, limit: int) -> float:
    if limit <= 0:
        return 1.0 if chars > 0 else 0.0
    return min(1.0, max(0, chars) / limit)
