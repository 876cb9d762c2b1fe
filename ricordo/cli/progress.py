"""Progress of a long command: one changing line on a terminal, a line every few seconds in a pipe."""

import sys
import time
from collections.abc import Callable

import typer

_EVERY = 5.0  # seconds between lines in a pipe
_EVERY_LIVE = 0.1


class ProgressLine:
    """Shows how much of the work is done."""

    def __init__(self, *, is_live: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_live = sys.stdout.isatty() if is_live is None else is_live
        self._clock = clock
        self._shown_at = float("-inf")
        self._is_open = False

    def show(self, what: str, done: int, total: int) -> None:
        """Show the progress if it is complete, or some time after the last line."""
        is_end, now = done >= total, self._clock()
        if not is_end and now - self._shown_at < (_EVERY_LIVE if self._is_live else _EVERY):
            return
        self._shown_at = now
        line = f"{what}: {done:,} of {total:,}"
        if self._is_live:
            sys.stdout.write(f"\r\x1b[K{line}" + "\n" * is_end)
            sys.stdout.flush()
            self._is_open = not is_end
        else:
            typer.echo(line)

    def end(self) -> None:
        if self._is_open:
            typer.echo()
            self._is_open = False
