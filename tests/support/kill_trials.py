"""Kills at each statement and each await of each write, in forked processes.

Each trial is one process that is killed by SIGKILL in a write. The next process opens the database,
checks everything that was acknowledged to this agent, lets it answer, and is then killed too. On
PostgreSQL the next process is already open as a second server, and talks with another agent
meanwhile. All processes are forks of one process that has imported everything. So `run_trials` must
be called in a process without threads, such as a fork of the tests' helper.
"""

import asyncio
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ricordo import offload
from ricordo.features import FEATURES
from ricordo.plugins import load_plugins
from tests.support.killed_writes import WRITES, serve, write_each
from tests.support.sharing import shared_work

_TRIALS_OF_AN_AGENT = 25
_MOST_WRONG = 8
_KINDS = tuple((name, counted) for name in WRITES for counted in ("statement", "await"))
Json = dict[str, Any]


class Child:
    """A forked process that obeys orders."""

    def __init__(self, folder: Path, database: str | None, number: int) -> None:
        orders, self._orders_end = os.pipe()
        self._answers_end, answers = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            self._obey(folder, database, number, orders, answers)
        os.close(orders)
        os.close(answers)
        self._orders: TextIO = os.fdopen(self._orders_end, "w")
        self._answers: TextIO = os.fdopen(self._answers_end)

    def _obey(
        self, folder: Path, database: str | None, number: int, orders: int, answers: int
    ) -> None:
        """Live as the child; never return."""
        code = 1
        try:
            os.close(self._orders_end)
            os.close(self._answers_end)
            asyncio.run(serve(folder, database, number, os.fdopen(orders), os.fdopen(answers, "w")))
            code = 0
        except BaseException as error:  # the parent reports the error
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def order(self, **order: Any) -> None:
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()

    def answer(self) -> Json | None:
        """Return the next answer; None if the process has ended."""
        line = self._answers.readline()
        answer: Json | None = json.loads(line) if line else None
        return answer

    def end(self) -> int:
        """Let the process end; return its exit code, which is negative after a signal."""
        self._orders.close()
        self._answers.close()
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status)


@dataclass
class Trials:
    """A series of trials on one database, and the errors.

    `begins_at` is the number of the write in `_KINDS` that is killed next.
    """

    folder: Path
    database: str | None
    luck: random.Random
    begins_at: int
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    writes: int = 0
    agent: str | None = None
    told: list[tuple[str, str, bool]] = field(default_factory=list)
    children: int = 0

    def child(self) -> Child:
        """Fork the next process, and wait until it is open."""
        self.children += 1
        child = Child(self.folder, self.database, self.children)
        if child.answer() is None:
            raise AssertionError("a process ended before it was open; see its standard error")
        return child

    def run(self, count: int, step: int) -> None:
        """Kill this number of processes, one after the other."""
        child = self.child()
        following: Child | None = None
        points = self._points(step)
        name, counted, at = next(points)
        while self.kills.total() < count and len(self.wrong) < _MOST_WRONG:
            if self.database:
                following = following or self.child()
                following.order(do="talk")
            is_over = self._write(child, name, counted, at)
            if following:
                self._hear_wrong(following, "beside it")
            if not is_over:
                self._require_killed(child, f"{name} at {counted} {at}")
                self.kills[name] += 1
                child = following or self.child()
                following = None
            self._check(child, f"{name}, {counted} {at}")
            name, counted, at = points.send(is_over)
        for left in (child, following):
            if left:
                left.end()

    def _points(self, step: int) -> Iterator[Any]:
        """Yield writes with a point each; the caller sends whether the write ended before it."""
        while True:
            name, counted = _KINDS[self.begins_at % len(_KINDS)]
            at = self.luck.randint(1, step)
            while not (yield name, counted, at):
                at += step
            self.begins_at += 1

    def _write(self, child: Child, name: str, counted: str, at: int) -> bool:
        """Order the write; return whether it ended before its point."""
        self.writes += 1
        if len(self.told) >= _TRIALS_OF_AN_AGENT:
            self.agent, self.told = None, []
        mark = f"{self.luck.getrandbits(64):016x}-{self.writes:08x}"
        child.order(do="write", write=name, mark=mark, agent=self.agent, counted=counted, at=at)
        is_acknowledged = is_over = False
        while (answer := child.answer()) is not None:
            self.agent = answer.get("agent", self.agent)
            is_acknowledged |= "is_acknowledged" in answer
            if is_over := "is_over" in answer:
                break
        self.told.append((name, mark, is_acknowledged))
        return is_over

    def _require_killed(self, child: Child, where: str) -> None:
        if (code := child.end()) != -signal.SIGKILL:
            self.wrong.append(f"{where}: the process ended with {code}")

    def _check(self, child: Child, where: str) -> None:
        """Check the last write, and all writes of an agent that gets no more of them."""
        is_last = len(self.told) == _TRIALS_OF_AN_AGENT
        writes = self.told if is_last else self.told[-1:]
        child.order(do="check", agent=self.agent, writes=writes)
        self._hear_wrong(child, where)

    def _hear_wrong(self, child: Child, where: str) -> None:
        answer = child.answer()
        if answer is None:
            self.wrong.append(f"{where}: the process that looked has ended")
        else:
            self.wrong += [f"{where}: {one}" for one in answer["wrong"]]


def run_trials(asked: Json) -> Json:
    """Run a series of kills; return its counts and errors as JSON.

    Args:
        asked: The `folder`, the address of the `database` (None for SQLite), the `count` of kills,
            the `step` between two points, the `seed`, and `begins_at`: the first write's number.
    """
    began = time.monotonic()
    folder = Path(asked["folder"])
    luck = random.Random(asked["seed"])  # noqa: S311
    trials = Trials(folder, asked["database"], luck, asked["begins_at"])
    with shared_work():
        _warm_up(folder / "warm", trials.database)
        trials.run(asked["count"], asked["step"])
    return {
        "kills": dict(trials.kills),
        "processes": trials.children,
        "writes": trials.writes,
        "begins_at": trials.begins_at,
        "wrong": trials.wrong,
        "seconds": round(time.monotonic() - began, 1),
    }


def _warm_up(folder: Path, database: str | None) -> None:
    """Do each write once, so that the forks share compiled statements and imports."""
    # The plugins' tables are part of the database.
    load_plugins(FEATURES)
    folder.mkdir()
    asyncio.run(write_each(folder, None))
    if database:
        asyncio.run(write_each(folder, database))
    offload._THREADS.shutdown()  # a fork has no threads, so it would wait for them forever
    offload._THREADS = ThreadPoolExecutor(2, "offload")
    assert threading.active_count() == 1, (
        f"fork only without other threads: {threading.enumerate()}"
    )
    gc.collect()
    gc.freeze()  # so that forks do not copy unchanged memory


def main() -> None:
    """Run the trials that the standard input asks for, and print the result."""
    print(json.dumps(run_trials(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
