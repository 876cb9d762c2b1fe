"""`ricordo` as people run it, in an empty folder and without settings of this machine.

`shell` runs commands in this process, and forks servers from a process that has imported
everything. `new_shell` starts new processes, for tests of the start.
"""

import asyncio
import gc
import logging
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ricordo.cli import app
from ricordo.domain.scope import Scope
from ricordo.memory import user_memory
from ricordo.settings import Settings
from ricordo.storage.engine.database import open_store
from ricordo.storage.engine.store import Transaction
from tests.support.canaries import canary
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

COMMAND = (sys.executable, "-m", "ricordo.cli")
LIMIT = 180


def environment(data: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a process with this data folder."""
    # Proxies, keys and settings of the person who runs the tests must not reach the processes.
    foreign = re.compile(r"RICORDO_|.*(_API_KEY|_BASE_URL|_API_BASE|_PROXY)$", re.IGNORECASE)
    kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    ours = {
        "RICORDO_DATA_DIR": str(data),
        "RICORDO_FIND_LOCAL_MODELS": "false",
        "RICORDO_PICTURE_TEXT": "off",
        "RICORDO_PORT": "9",
    }
    return kept | ours | variables


@dataclass(frozen=True)
class Shell:
    """Runs `ricordo` in a separate folder."""

    folder: Path
    command: Sequence[str] = COMMAND
    helper: Helper | None = None
    """The helper that forks `ricordo serve` for tests of its refusals.

    With a helper, all other commands run in this process.
    """

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def run(
        self, *arguments: str, said: str = "", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        if self.helper:
            run = self.helper.run if arguments[:1] == ("serve",) else run_here
            return run(arguments, self.folder, environment(self.data, **variables), said)
        return subprocess.run(
            [*self.command, *arguments],
            input=said,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment(self.data, **variables),
            timeout=LIMIT,
            check=False,
        )

    @contextmanager
    def serving(self, *arguments: str, **variables: str) -> Iterator["Serving"]:
        """Start a server and wait for its address; kill it at the end if it still runs."""
        process = subprocess.Popen(
            [*self.command, "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=environment(self.data, **variables),
        )
        try:
            said = process.stdout.readline()
            found = re.search(r"http://\S+", said)
            assert found, f"{said}{process.stderr.read() if process.stderr else ''}"
            yield Serving(process, said + process.stdout.readline(), found.group())
        finally:
            process.kill()
            process.communicate(timeout=LIMIT)


def run_here(
    arguments: Sequence[str], folder: Path, variables: Mapping[str, str], said: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command of `ricordo` in a thread, isolated like a process."""
    outcomes: list[subprocess.CompletedProcess[str]] = []

    def work() -> None:
        ended = CliRunner().invoke(app, list(arguments), input=said, prog_name="ricordo")
        errors = ended.stderr
        if ended.exc_info and ended.exception and not isinstance(ended.exception, SystemExit):
            errors += "".join(traceback.format_exception(*ended.exc_info))
        outcomes.append(
            subprocess.CompletedProcess(
                ["ricordo", *arguments], ended.exit_code, ended.stdout, errors
            )
        )

    with _set_aside(folder, variables):
        # The command runs in another thread, since this thread may have a running event loop.
        thread = threading.Thread(target=work, name="command")
        thread.start()
        thread.join()
    return outcomes[0]


@contextmanager
def _set_aside(folder: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """Set the folder and the variables of this process; undo a command's changes at the end."""
    place, kept, is_collecting = Path.cwd(), dict(os.environ), gc.isenabled()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
        os.chdir(place)
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        if is_collecting:
            gc.enable()


@dataclass(frozen=True)
class Serving:
    """A running `ricordo serve`, its first output, and its address."""

    process: "subprocess.Popen[str]"
    said: str
    address: str


@pytest.fixture(scope="session")
def quick_command(request: pytest.FixtureRequest) -> Sequence[str]:
    """The fastest way to run `ricordo`."""
    if not CAN_FORK:
        return COMMAND
    helper: Helper = request.getfixturevalue("helper")
    return helper.command


@pytest.fixture
def shell(tmp_path: Path, quick_command: Sequence[str], request: pytest.FixtureRequest) -> Shell:
    return Shell(tmp_path, quick_command, request.getfixturevalue("helper") if CAN_FORK else None)


@pytest.fixture
def new_shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that does not exist yet, on a machine without other settings."""
    folder = tmp_path / "data"
    monkeypatch.chdir(tmp_path)
    wanted = environment(folder)
    for name in os.environ.keys() - wanted.keys():
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    return folder


def remember(shell: Shell, *names: str) -> None:
    """Make a database that stores a canary word of each of these users."""

    async def work() -> None:
        shell.data.mkdir(exist_ok=True)
        store = open_store(Settings(data_dir=shell.data))
        for name in names:

            def remember(tx: Transaction, name: str = name) -> None:
                owned = user_memory.open_memory(tx, Scope(), name, makes=True)
                user_memory.put(tx, owned, "human", canary(name), owned.owner)

            await store.write(remember)
        await store.close()

    asyncio.run(work())
