"""Virtual environments for tools that need packages.

A job builds each environment once. Only a limited number is stored, and those that were unused
longest are deleted.
"""

import asyncio
import hashlib
import os
import shutil
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ricordo.domain.job import Job, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, Unavailable
from ricordo.sandbox.child import STDOUT, start_child
from ricordo.settings import Settings
from ricordo.storage import jobs
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.engine.work_folders import PACKAGES, open_work_folder

KIND = "custom_tools.environment"
_MOST = 20  # environments on one server
_SIZE = 2**30  # the most bytes of one environment
_SECONDS = 600  # time limit of pip
_PATIENCE = 60.0  # seconds for which a call waits
_LOOK = 0.2  # seconds between two checks
_AGAIN = 60.0  # seconds after which a failed build is tried again
_LONGEST_ERROR = 1_000  # characters
# Runs pip. It ends when its standard input is closed, which happens when the server ends.
_PIP = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_OPTIONS = (
    "--quiet --no-input --disable-pip-version-check --progress-bar=off --retries=1 --timeout=15 "
    "--only-binary=:all: "
    # Skip pip's check, which reads the server's packages for two seconds and has no use for tools.
    "--no-warn-conflicts"
)
_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "NETRC",
)
_PREFIXES = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


def texts_of(requirements: Sequence[Mapping[str, Any]] | None) -> tuple[str, ...]:
    """Return the requirements in pip's notation, sorted and without repetitions.

    Args:
        requirements: Each has a `name` and maybe a `version`, such as "1.2" or ">=1.2"; a bare
            number means exactly this version. None means none.
    """
    texts = set()
    for requirement in requirements or ():
        version = requirement.get("version") or ""
        if version and version[0] not in "=<>~!":
            version = f"=={version}"
        texts.add(f"{requirement['name']}{version}".lower())
    return tuple(sorted(texts))


def add_build(tx: Transaction, scope: Scope, requirements: Sequence[str]) -> None:
    """Add a job that builds the environment if it does not exist.

    A build of the same packages that already waits is not added again.

    Args:
        tx: The transaction.
        scope: The caller, whose organization gets the job.
        requirements: The packages, from `texts_of`.
    """
    payload = {"requirements": list(requirements)}
    key = f"environment-{_key(requirements)}"
    jobs.add(tx, Job(KIND, scope.organization_id, payload, key, is_single=True, most_attempts=2))


class Environments:
    """The environments of one server, in which tools find their packages."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # The builds that run in this process, by the environment's folder.
        self._builds: dict[Path, asyncio.Task[None]] = {}
        # The time and the reason of failed builds whose `.failed` file could not be written.
        self._unwritten_failures: dict[Path, tuple[float, str]] = {}

    async def python_for(
        self, store: Store, scope: Scope, requirements: Sequence[str]
    ) -> Path | None:
        """Return the interpreter that has these packages, after waiting for its build.

        Args:
            store: The server's store, which gets the job of the build.
            scope: The caller, whose organization gets the job.
            requirements: The packages, from `texts_of`; with none, no environment is needed.

        Returns:
            The path of the interpreter; None if there are no requirements.

        Raises:
            Unavailable: The build takes longer than a call waits.
            Invalid: The build failed within the last minute; the message has the reason.
        """
        if not requirements:
            return None
        home = _home(self._settings, requirements)
        if await asyncio.to_thread(_is_ready, home):
            return home / "bin" / "python"
        self._require_no_failure(home, _AGAIN)
        end = time.monotonic() + _PATIENCE
        if self._settings.postgres_url:  # a job may run on another machine
            await self._build_here(home, requirements)
        else:
            await store.write(lambda tx: add_build(tx, scope, requirements))
        while time.monotonic() < end:
            if await asyncio.to_thread(_is_ready, home):
                return home / "bin" / "python"
            self._require_no_failure(home, _PATIENCE)
            await asyncio.sleep(_LOOK)
        raise Unavailable(
            f"The packages of this tool are still being installed ({', '.join(requirements)}). "
            "Call it again later."
        )

    async def _build_here(self, home: Path, requirements: Sequence[str]) -> None:
        """Build the environment in this process, once for all callers.

        Returns when the build has ended, or after `_PATIENCE` seconds.
        """

        async def build() -> None:
            try:
                with suppress(Invalid):  # callers read the reason from the noted failure
                    await self.build(requirements)
            finally:
                del self._builds[home]

        task = self._builds.get(home)
        if task is None:
            task = self._builds[home] = asyncio.create_task(build())
        done, _ = await asyncio.wait([task], timeout=_PATIENCE)
        for ended in done:
            ended.result()

    async def build(
        self, requirements: Sequence[str], report: Report = lambda _done, _total: None
    ) -> None:
        """Install the packages into a new environment, and then move it to its path.

        Args:
            requirements: The packages, from `texts_of`.
            report: Gets the progress.

        Raises:
            Invalid: pip fails, or this server cannot store the environment.
            Unavailable: The temporary folder of the work cannot be created.
        """
        home = _home(self._settings, requirements)
        if await asyncio.to_thread(_is_ready, home):
            return
        report(0, 2)
        try:
            await _build_and_move(self._settings, requirements, report)
        except Invalid as error:
            await asyncio.to_thread(self._note_failure, home, str(error))
            raise
        except OSError as error:
            reason = (
                f"The packages of this tool cannot be installed ({', '.join(requirements)}), "
                f"because the server cannot store them: {error}"
            )
            await asyncio.to_thread(self._note_failure, home, reason)
            raise Invalid(reason) from error

    def _note_failure(self, home: Path, reason: str) -> None:
        """Record why a build failed: in the `.failed` file, or in memory if that fails too."""
        self._unwritten_failures.pop(home, None)
        try:
            home.parent.mkdir(parents=True, exist_ok=True)
            _failure(home).write_text(reason, "utf-8")
        except OSError:
            self._unwritten_failures[home] = (time.time(), reason)

    def _require_no_failure(self, home: Path, seconds: float) -> None:
        """Raise Invalid with the error of a build that failed within these seconds."""
        failed_at, reason = self._unwritten_failures.get(home, (0.0, ""))
        if time.time() - failed_at < seconds:
            raise Invalid(reason)
        self._unwritten_failures.pop(home, None)
        failure = _failure(home)
        with suppress(OSError):
            if time.time() - failure.stat().st_mtime < seconds:
                raise Invalid(failure.read_text("utf-8"))
            failure.unlink()


async def _build_and_move(settings: Settings, requirements: Sequence[str], report: Report) -> None:
    """Build an environment in a temporary folder, and move it. Raises Invalid and OSError."""
    work = await asyncio.to_thread(open_work_folder, settings.data_dir, PACKAGES)
    building = work.path / "environment"
    try:
        await asyncio.to_thread(_begin, building)
        report(1, 2)
        await _install(building, requirements)
        await asyncio.to_thread(_finish, building, _home(settings, requirements))
    finally:
        await asyncio.to_thread(work.close)


def _key(requirements: Sequence[str]) -> str:
    return hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:24]


def _home(settings: Settings, requirements: Sequence[str]) -> Path:
    return settings.data_dir.absolute() / "environments" / _key(requirements)


def _failure(home: Path) -> Path:
    return home.with_suffix(".failed")


def _is_ready(home: Path) -> bool:
    with suppress(OSError):  # the volume may have become read-only
        os.utime(home)  # used now
    return home.is_dir()


def _begin(building: Path) -> None:
    """Create an empty environment, and a folder for pip's temporary files."""
    building.mkdir(mode=0o755)
    building.chmod(0o755)
    _pips_folder(building).mkdir()
    venv.create(building, symlinks=True)


def _pips_folder(building: Path) -> Path:
    return building.with_name("pip")


async def _install(building: Path, requirements: Sequence[str]) -> None:
    packages = next((building / "lib").glob("python*/site-packages"))
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _VARIABLES or name.upper().startswith(_PREFIXES)
    }
    process = await start_child(
        (
            sys.executable,
            "-I",
            "-c",
            _PIP,
            "install",
            *_OPTIONS.split(),
            "--target",
            str(packages),
            "--",
            *requirements,
        ),
        stderr=STDOUT,
        env=environment | {"TMPDIR": str(_pips_folder(building))},
    )
    reading = process.stdout
    try:
        async with asyncio.timeout(_SECONDS):
            written = await reading.read() if reading else b""
            code = await process.wait()
            pip_output = written.decode("utf-8", "replace")
    except TimeoutError:
        code = 1
        pip_output = f"ERROR: it took more than {_SECONDS} seconds"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        process.close()
    if code:
        lines = pip_output.splitlines()
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        last_output = pip_output.strip()[-_LONGEST_ERROR:]
        reason = "; ".join(errors) or last_output or f"pip ended with {code}"
        raise Invalid(
            f"The packages of this tool cannot be installed ({', '.join(requirements)}): "
            f"{reason[:_LONGEST_ERROR]}. Name packages that have wheels for this machine in the "
            "package index of the server's pip."
        )


def _finish(building: Path, home: Path) -> None:
    """Move the environment to its path, and remove the environments that were unused longest."""
    size = sum(path.lstat().st_size for path in building.rglob("*"))
    if size > _SIZE:
        raise Invalid(
            f"The packages of this tool take {size // 2**20} MB, and the limit is "
            f"{_SIZE // 2**20} MB."
        )
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        building.rename(home)
    except OSError:
        if not home.is_dir():  # otherwise another server has moved its environment there first
            raise
    _failure(home).unlink(missing_ok=True)
    with suppress(OSError):  # another server may do the same
        _delete_oldest(home.parent)


def _delete_oldest(folder: Path) -> None:
    environments = [path for path in folder.iterdir() if path.is_dir() and not path.suffix]
    environments.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in environments[_MOST:]:
        shutil.rmtree(path, ignore_errors=True)
