"""Tests in forks of the process that collected them: `pytest --workers 3`.

Collection takes longer than any module, so one process does it for all. Each worker takes one scope
after another (see `order`), and sends the reports of its tests. The collecting process shows the
reports.
"""

import os
import pickle
import selectors
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import pytest

from tests.support.order import scope_of

CAN_FORK = hasattr(os, "fork")
MOST_SCOPES = 10_000  # a pipe can buffer the numbers of this many scopes
_NUMBER = struct.Struct(">I")
# plugins of pytest that only the main process needs
_SHOWING = ("terminalreporter", "terminalprogress")

Location: TypeAlias = tuple[str, int | None, str]
at_end: list[Callable[[], None]] = []
"""Calls at the end of a worker, which does not run the functions registered by `atexit`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, help="processes that run tests, by fork")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if not will_fork(session):
        return None
    return run_in_workers(session, session.config.option.workers)


def will_fork(session: pytest.Session) -> bool:
    """Return whether the collected tests will run in forks of this process."""
    options = session.config.option
    is_alone = options.workers < 2 or options.collectonly or options.usepdb
    return CAN_FORK and not is_alone and not session.testsfailed


def run_in_workers(session: pytest.Session, count: int) -> bool:
    """Run the session's tests in this many forks of this process."""
    scopes = [
        list(items) for _, items in groupby(session.items, lambda item: scope_of(item.nodeid))
    ]
    assert len(scopes) <= MOST_SCOPES
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    if terminal:
        terminal.showfspath = False  # Tests of several files end in mixed order.
    queue, filling = os.pipe()
    os.write(filling, b"".join(map(_NUMBER.pack, range(len(scopes)))))
    os.close(filling)
    workers: list[_Worker] = []
    try:
        for number in range(count):
            workers.append(_fork(session, scopes, queue, number))
        _show_reports(session, workers)
    finally:
        os.close(queue)
        for worker in workers:
            worker.end()
    done = sum(worker.done for worker in workers)
    if done < len(session.items):
        session.shouldfail = f"{len(session.items) - done} tests were not run"
        raise session.Failed(session.shouldfail)
    return True


class _Worker:
    """A worker, as the process that collected sees it."""

    def __init__(self, pid: int, line: int) -> None:
        self.line = os.fdopen(line, "rb", buffering=0)
        self.running: tuple[str, Location] | None = None
        self.done = 0
        self._pid: int | None = pid

    def wait(self) -> int:
        """Return the exit code of a worker whose pipe is closed."""
        assert self._pid is not None
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = None
        return code

    def end(self) -> None:
        """Interrupt the worker if it still runs; it closes what its tests share."""
        self.line.close()
        if self._pid is not None:
            os.kill(self._pid, signal.SIGINT)
            self.wait()

    def receive(self) -> tuple[str, Any] | None:
        """Return the next message; None once the worker has ended."""
        size = self._read(_NUMBER.size)
        if len(size) < _NUMBER.size:
            return None
        message: tuple[str, Any] = pickle.loads(self._read(_NUMBER.unpack(size)[0]))  # noqa: S301 - our own fork's
        return message

    def _read(self, size: int) -> bytes:
        text = b""
        while len(text) < size and (piece := self.line.read(size - len(text))):
            text += piece
        return text


def _show_reports(session: pytest.Session, workers: Sequence[_Worker]) -> None:
    """Show the workers' reports until the last worker has ended.

    Raises:
        Failed: If too many tests failed, or a worker ended by itself.
        Interrupted: If the session has to stop.
    """
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.line, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                message = worker.receive()
                if message is None:
                    selector.unregister(worker.line)
                    _require_good_end(session, worker)
                else:
                    _show(session.config, worker, *message)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)


def _require_good_end(session: pytest.Session, worker: _Worker) -> None:
    """Fail the running test if the worker did not end normally."""
    code = worker.wait()
    if worker.running:
        nodeid, location = worker.running
        words = f"The worker ended with code {code} during this test."
        report = pytest.TestReport(nodeid, location, {}, "failed", words, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
    elif code:
        session.shouldfail = f"a worker ended with code {code}"


def _show(config: pytest.Config, worker: _Worker, kind: str, content: Any) -> None:
    hook = config.hook
    if kind == "start":
        worker.running = content
    elif kind == "warning":
        text, when, nodeid = content
        warning = pytest.PytestWarning(text)
        message = warnings.WarningMessage(warning, pytest.PytestWarning, nodeid, 0)
        hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": None}
        )
    else:
        nodeid, location = worker.running or ("", ("", None, ""))
        hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        for data in content:
            report = hook.pytest_report_from_serializable(config=config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
        worker.running = None
        worker.done += 1


def _fork(
    session: pytest.Session, scopes: Sequence[list[pytest.Item]], queue: int, number: int
) -> _Worker:
    folder = session.config._tmp_path_factory.getbasetemp() / f"worker-{number}"  # type: ignore[attr-defined]
    folder.mkdir(mode=0o700)
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        # Python warns of forks in a process with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        os.close(receiving)
        _work(session, scopes, queue, _Sender(session.config, sending), folder)
    os.close(sending)
    return _Worker(pid, receiving)


def _work(
    session: pytest.Session,
    scopes: Sequence[list[pytest.Item]],
    queue: int,
    sender: "_Sender",
    folder: Path,
) -> NoReturn:
    """Run scopes until none is left, and end this process."""
    code = 1
    try:
        with ExitStack() as ends:
            for end in at_end:
                ends.callback(end)
            ends.callback(session._setupstate.teardown_exact, None)
            ends.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)
            _prepare(session.config, sender, folder)
            _run_scopes(session, scopes, queue)
        code = 0
    except KeyboardInterrupt:
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _prepare(config: pytest.Config, sender: "_Sender", folder: Path) -> None:
    """Let this worker show nothing, and use separate files for output."""
    plugins = config.pluginmanager
    for name in _SHOWING:
        if plugins.has_plugin(name):
            plugins.unregister(name=name)
    plugins.register(sender)
    capture = plugins.getplugin("capturemanager")
    assert capture
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=False)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]


def _run_scopes(session: pytest.Session, scopes: Sequence[list[pytest.Item]], queue: int) -> None:
    between = _Between.from_parent(session, name="between scopes")
    while items := _take(scopes, queue):
        for item, after in zip(items, [*items[1:], between], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


class _Between(pytest.Item):
    """A test that never runs; pytest sees it after the last test of a scope.

    Since pytest sees a next test, it keeps the fixtures of the session. The next scope is taken
    only when the last test has ended.
    """

    def runtest(self) -> None:
        raise NotImplementedError


def _take(scopes: Sequence[list[pytest.Item]], queue: int) -> list[pytest.Item]:
    """Return the tests of the next scope that no worker has taken; empty at the end."""
    number = os.read(queue, _NUMBER.size)
    return scopes[_NUMBER.unpack(number)[0]] if number else []


class _Sender:
    """Sends the results of tests from a worker to the process that collected."""

    def __init__(self, config: pytest.Config, line: int) -> None:
        self._config = config
        self._line = os.fdopen(line, "wb")
        self._reports: list[dict[str, Any] | None] = []

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._send("start", (nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._reports.append(hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        self._send("reports", self._reports)
        self._reports = []

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        self._send("warning", (text, when, nodeid))

    def _send(self, kind: str, content: object) -> None:
        message = pickle.dumps((kind, content))
        self._line.write(_NUMBER.pack(len(message)) + message)
        self._line.flush()
