"""Commands of `ricordo` that tests kill.

The commands and kills are real. The processes are forked from a process that has imported
everything.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.ready import Command, Helper

LIMIT = 300.0  # seconds that a command may take on a busy machine


class KilledCommand:
    """A running command; its output is in the file `log` of its folder."""

    def __init__(
        self, helper: Helper, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        with Path(os.devnull).open() as nothing, self._log.open("w") as log:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            self._command = Command(helper.path, list(arguments), folder, environment, streams)

    def finish(self) -> None:
        """Wait until the command ends with success."""
        assert self._command.wait() == 0, self._log.read_text()

    def kill_once(self, is_so: Callable[[], object]) -> bool:
        """Kill it as soon as this condition holds; return whether it was still running."""
        end = time.monotonic() + LIMIT
        while not is_so():
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.002)
        with suppress(ProcessLookupError):
            os.kill(self._command.pid, signal.SIGKILL)
        return self._command.wait() == -signal.SIGKILL


def after(seconds: float) -> Callable[[], bool]:
    """Return a function that is true once this number of seconds have passed."""
    moment = time.monotonic() + seconds
    return lambda: time.monotonic() >= moment
