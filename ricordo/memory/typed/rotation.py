"""When a block is so full that its content moves to the archive, and which of a text stays. Pure; a strategy counts for itself."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ricordo.errors import Invalid
from ricordo.memory.typed.defaults import default_threshold, require_threshold

_DOTS = "..."
_WORTH_CUTTING = 20  # characters of room; the start of a line in fewer says nothing
_SCORES = {"[TASK]": 100, "[USER]": 90, "[CONTEXT]": 80}


@dataclass(frozen=True)
class ContextMetrics:
    """How many characters two blocks have and may have; a usage is from 0 (empty) to 1 (full, or fuller)."""

    persona_chars: int
    human_chars: int
    persona_max: int
    human_max: int

    @property
    def persona_usage(self) -> float:
        """How full the persona is."""
        return _share(self.persona_chars, self.persona_max)

    @property
    def human_usage(self) -> float:
        """How full the human block is."""
        return _share(self.human_chars, self.human_max)

    @property
    def total_usage(self) -> float:
        """How full both are together."""
        return _share(self.persona_chars + self.human_chars, self.persona_max + self.human_max)


class RotationStrategy(Protocol):
    """When to rotate the human block, and how to shorten a text."""

    @property
    def threshold(self) -> float:
        """How full the human block may be, from 0 to 1."""

    def should_rotate(self, metrics: ContextMetrics) -> bool:
        """Whether the human block is fuller than that; asked once for each change of it."""

    def compress(self, content: str, target_chars: int) -> str:
        """What stays of the text, never more than `target_chars` characters. Raises Invalid for fewer than none."""


class AggressiveRotation:
    """Keeps core memory lean: rotates above 70 percent, and of a text keeps the end."""

    def __init__(self, threshold: float = 0.7) -> None:
        self.threshold = require_threshold(threshold)

    def should_rotate(self, metrics: ContextMetrics) -> bool:
        """Whether the human block is fuller than the threshold."""
        return metrics.human_usage > self.threshold

    def compress(self, content: str, target_chars: int) -> str:
        """The end of the text, behind three dots where it was longer."""
        if len(content) <= _require_target(target_chars):
            return content
        if target_chars <= len(_DOTS):  # no room for dots that say anything
            return content[len(content) - target_chars :]
        return _DOTS + content[len(content) - target_chars + len(_DOTS) :]


class PreservativeRotation:
    """Keeps in core memory what it can: rotates above 90 percent, and of a text keeps the lines with a tag."""

    def __init__(self, threshold: float = 0.9) -> None:
        self.threshold = require_threshold(threshold)

    def should_rotate(self, metrics: ContextMetrics) -> bool:
        """Whether the human block is fuller than the threshold."""
        return metrics.human_usage > self.threshold

    def compress(self, content: str, target_chars: int) -> str:
        """The lines with a tag, then the others, as many as there is room for."""
        if len(content) <= _require_target(target_chars):
            return content
        lines = content.split("\n")
        ordered = sorted(range(len(lines)), key=lambda at: not lines[at].startswith("["))
        return "\n".join(text for _, text in _fill(lines, ordered, target_chars))


class AdaptiveRotation:
    """Rotates above 80 percent, or what ARCHIVAL_ROTATION_THRESHOLD says, and learns from how full the block is kept.

    After every ten changes it looks at their average usage. Where the block was rotated and stood half empty all the same,
    it is rotated too often: the threshold rises by 0.05, up to 0.95. Where it was nearly full all the time (above 0.9), it is
    rotated too rarely: the threshold falls by 0.05, down to 0.6.
    """

    STEP, LOWEST, HIGHEST = 0.05, 0.6, 0.95
    HALF_EMPTY, NEARLY_FULL = 0.5, 0.9
    WINDOW = 10

    def __init__(self, base_threshold: float | None = None) -> None:
        self.base_threshold = default_threshold() if base_threshold is None else require_threshold(base_threshold)
        self.threshold = self.base_threshold
        self._usages: deque[float] = deque(maxlen=self.WINDOW)
        self._has_rotated = False

    def should_rotate(self, metrics: ContextMetrics) -> bool:
        """Whether the human block is fuller than the threshold as it stands now."""
        is_full = metrics.human_usage > self.threshold
        self._usages.append(metrics.human_usage)
        self._has_rotated = self._has_rotated or is_full
        if len(self._usages) == self.WINDOW:
            self._adjust(sum(self._usages) / self.WINDOW)
        return is_full

    def compress(self, content: str, target_chars: int) -> str:
        """The most important lines, as many as there is room for, in the order of the text.

        The task comes before who the user is, then the context, then other tags, then all else; of two equal lines the later.
        """
        if len(content) <= _require_target(target_chars):
            return content
        lines = content.split("\n")
        ordered = sorted(range(len(lines)), key=lambda at: (-_score(lines[at]), -at))
        return "\n".join(text for _, text in sorted(_fill(lines, ordered, target_chars)))

    def _adjust(self, average: float) -> None:
        if self._has_rotated and average < self.HALF_EMPTY:
            # A base outside the bounds was somebody's wish: the threshold comes no further out than that.
            self.threshold = min(round(self.threshold + self.STEP, 2), max(self.HIGHEST, self.base_threshold))
        elif average > self.NEARLY_FULL:
            self.threshold = max(round(self.threshold - self.STEP, 2), min(self.LOWEST, self.base_threshold))
        self._usages.clear()
        self._has_rotated = False


def _share(chars: int, limit: int) -> float:
    if limit <= 0:
        return 1.0 if chars > 0 else 0.0
    return min(1.0, max(0, chars) / limit)


def _require_target(target_chars: int) -> int:
    if target_chars < 0:
        raise Invalid(f"A text cannot be shortened to {target_chars} characters. Give a number of characters from 0.")
    return target_chars


def _score(line: str) -> int:
    tag = line[: line.find("]") + 1]
    return _SCORES.get(tag, 50 if line.startswith("[") else 10)


def _fill(lines: list[str], ordered: Iterable[int], target_chars: int) -> list[tuple[int, str]]:
    """The lines at these places with their places, until the room is used up; the first that does not fit is cut."""
    kept: list[tuple[int, str]] = []
    room = target_chars
    for at in ordered:
        if len(lines[at]) > room:
            if room >= _WORTH_CUTTING or (not kept and room > len(_DOTS)):
                kept.append((at, lines[at][: room - len(_DOTS)] + _DOTS))
            break
        kept.append((at, lines[at]))
        room -= len(lines[at]) + 1
        if room < 0:
            break
    return kept
