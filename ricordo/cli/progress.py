"""How far a long command is: one line that changes on a terminal, a line now and then in a pipe."""

import sys
import time
from collections.abc import Callable

import typer

_EVERY = 5.0  # seconds between lines in a pipe
_EVERY_LIVE = 0.1


class Progress:
    """Shows how many of how many are done, of one thing after another."""

    def __init__(self, *, is_live: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_live = sys.stdout.isatty() if is_live is None else is_live
        self._clock = clock
        self._shown_at = float("-inf")
        self._is_open = False

    def show(self, what: str, done: int, total: int) -> None:
        """So many of so many: shown where it is the end, or some time after what was shown before."""
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
        """End the line that was changing, so that what follows has its own."""
        if self._is_open:
            typer.echo()
            self._is_open = False
