"""How a window is made smaller: which messages leave it, and who sums them up."""

from dataclasses import dataclass, field
from typing import Any, Literal

CompactionMode = Literal["all", "sliding_window", "self_compact_all", "self_compact_sliding_window"]
Trigger = Literal["window", "provider", "request"]
# Of the window's tokens; from here on a prompt is made smaller before it is sent (the retired Letta V1 server's default).
TRIGGER = 0.9


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """An agent's choice; defaults are the retired Letta V1 server's.

    `model` is a handle (None: the agent's own), `model_settings` are as on the wire, `prompt` takes the place of the mode's own,
    `clip_chars` is the longest summary kept, and `sliding_window_percentage` the share of the window that leaves first.
    """

    model: str | None = None
    model_settings: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    prompt_acknowledgement: bool = False
    clip_chars: int | None = 50_000
    mode: CompactionMode = "sliding_window"
    sliding_window_percentage: float = 0.3
