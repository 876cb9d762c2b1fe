"""Node.js for the tests, with the packages of `clients/typescript`."""

import fcntl
import hashlib
import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from tests.support.debian import program

TYPESCRIPT = Path(__file__).parents[2] / "clients/typescript"
_TESTS = "The tests of JavaScript clients"
_LIMIT = 120.0  # seconds after which a test that waits for Node.js fails


def node() -> str:
    """Return the path of node, which is installed if it is missing."""
    return program("node", "nodejs", package="nodejs", tests=_TESTS)


def packages() -> Path:
    """Return the folder `clients/typescript` with its packages installed from its lock file."""
    node()
    lock = (TYPESCRIPT / "package-lock.json").read_bytes()
    installed = TYPESCRIPT / "node_modules/.installed"
    digest = hashlib.sha256(lock).hexdigest()
    # Several processes of one run may install at once.
    with (TYPESCRIPT / ".npmrc").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not installed.is_file() or installed.read_text() != digest:
            npm = program("npm", package="npm", tests=_TESTS)
            done = subprocess.run(
                [npm, "ci"], cwd=TYPESCRIPT, check=False, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"npm ci failed: {done.stderr[-2000:]}")
            installed.write_text(digest)
    return TYPESCRIPT


class NodeDriver:
    """A script of Node.js that answers each line of JSON with one."""

    def __init__(self, script: Path) -> None:
        packages()
        self._process = subprocess.Popen(
            [node(), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answers: queue.Queue[str] = queue.Queue()
        output = self._process.stdout
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._answers.put(line)

    def send(self, **command: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        return json.loads(self._answers.get(timeout=_LIMIT))

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(_LIMIT)
        self._reader.join(_LIMIT)
