"""The path of a message stays short, and `docs/internals/message-path.md` lists it correctly.

The test sends one real message with one tool call through the app: a blocking request over HTTP,
with a model that calls `memory_insert`. It records every function of ours that runs, and the
functions that each one calls. It bounds the number of all these functions, whatever their size and
folder. The worker is off, since jobs are no part of a message.

The page lists the main functions. A function is listed if it

- has four statements or more;
- is in `api/` (without guard, routing, the call, and the wire and request models), in `agents/`,
  `prompt/`, `tools/` or `llm/`, or in the module of storage that runs units of work;
- calls (or awaits, or iterates over) another such function. The others are leaves: a reader of the
  path knows them by name, and opens them for details.

The path ends at the parts that may be replaced: the adapter of a model (here the scripted model)
and the built-in tools. The path also leaves out memory's commit, queries and domain values.

After a change of the path, `python -m tests.test_message_path` writes the list in the page again.
"""

import ast
import asyncio
import inspect
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import AsyncMock, patch

from pydantic import SecretStr

from ricordo.background.worker import Worker
from ricordo.domain.clock import SECOND
from tests.seams.http import bearer
from tests.seams.server import MODEL, serving
from tests.seams.stage import call

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ricordo"
PAGE = ROOT / "docs" / "internals" / "message-path.md"
BEGIN, END = "<!-- the traced path -->\n", "<!-- end -->\n"

KEY = "a-key-of-an-operator-for-this-test"
LEAST_STATEMENTS = 4
# The allowed number of functions that run, and of their files. The aim is 260 functions in 55
# files.
MOST_FUNCTIONS, MOST_FILES = 325, 78
FOLDERS = ("api/", "agents/", "prompt/", "tools/", "llm/")
UNITS_OF_WORK = "storage/engine/store.py"
NOT_ON_IT = (
    "api/guard.py",
    "api/routing.py",
    "api/call.py",
    "api/models/",
    "llm/scripted.py",
    "tools/builtin/",
)
MAKING_TASKS = {asyncio.create_task.__code__, asyncio.ensure_future.__code__}
Place = tuple[str, str]
"""A file in the package, and the qualified name of a function in it."""


@dataclass
class Trace:
    """The functions that ran, in the order of their first calls, and which of them called which."""

    is_on: bool = False
    ran: dict[Place, None] = field(default_factory=dict)
    calls: set[tuple[Place, Place]] = field(default_factory=set)

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Record a call; `sys.setprofile` calls this."""
        if not self.is_on or event != "call":
            return
        caller = frame.f_back
        if (place := _place(frame.f_code)) is not None:
            self.ran.setdefault(place)
        elif frame.f_code in MAKING_TASKS and inspect.iscoroutine(
            begun := next(iter(frame.f_locals.values()), None)
        ):
            place = _place(begun.cr_code)  # awaited in a separate task
            while caller and "asyncio" in caller.f_code.co_filename:
                caller = caller.f_back
        if place and caller and (by := _place(caller.f_code)) is not None and by != place:
            self.calls.add((by, place))


@cache
def _file(path: str) -> str | None:
    return str(Path(path).relative_to(PACKAGE)) if path.startswith(f"{PACKAGE}/") else None


def _place(code: CodeType) -> Place | None:
    """Return the place of this code, or None if it is not in the package.

    Comprehensions and lambdas belong to the function around them.
    """
    if (file := _file(code.co_filename)) is None:
        return None
    name = code.co_qualname
    while name.endswith(">"):
        name = name.rpartition(".")[0].removesuffix(".<locals>")
    return file, name


@contextmanager
def _profiled(trace: Trace) -> Iterator[None]:
    before = sys.getprofile()
    threading.setprofile(trace.note)
    try:
        yield
    finally:
        threading.setprofile(before)


@contextmanager
def _without_timed_work() -> Iterator[None]:
    """Leave out work that depends on the machine's speed.

    A slow write is reported. The database's mark is written once a second. The job that indexes new
    texts is added again some time after the last such job.
    """
    with (
        patch("ricordo.storage.engine.store.SLOW_WRITE", math.inf),
        patch("ricordo.storage.engine.sqlite._MARKED_AFTER", 3600.0),
        patch("ricordo.search.write_buffer.QUICK_DELAY", 29 * SECOND),
    ):
        yield


def traced(data_dir: Path) -> Trace:
    """Return the trace of one message, the second one of its agent."""
    trace = Trace()
    no_jobs = patch.object(Worker, "start", AsyncMock())
    # Without a key each fact is also proposed to the local user (decision 0065).
    running = serving(data_dir, api_key=SecretStr(KEY))
    headers = bearer(KEY)
    with (
        no_jobs,
        _without_timed_work(),
        _profiled(trace),
        running as server,
        server.http(headers=headers) as http,
    ):
        blocks = [{"label": "human", "value": "Her name is Ada."}]
        agent = http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": blocks}).json()[
            "id"
        ]
        for number in range(2):
            server.says(
                call("memory_insert", label="human", new_string=f"Likes tea {number}."), "Noted."
            )
            while server.runtime.live:
                time.sleep(0.01)
            trace.is_on = number > 0
            sent = {"messages": [{"role": "user", "content": "I like tea."}]}
            answer = http.post(f"/v1/agents/{agent}/messages", json=sent).json()
            trace.is_on = False
            kinds = [one["message_type"] for one in answer["messages"]]
            assert kinds == ["tool_call_message", "tool_return_message", "assistant_message"]
    return trace


@cache
def _functions(file: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}

    def visit(node: ast.AST, within: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = f"{within}{getattr(child, 'name', '')}"
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found[name] = child
                visit(child, f"{name}.<locals>.")
            else:
                visit(child, f"{name}." if isinstance(child, ast.ClassDef) else within)

    visit(ast.parse((PACKAGE / file).read_text()), "")
    return found


def _statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the statements of a function, without its own `def` and docstring."""
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
    return statements - (ast.get_docstring(function) is not None)


def _counts(place: Place) -> bool:
    file, name = place
    is_there = file == UNITS_OF_WORK or (
        file.startswith(FOLDERS) and not file.startswith(NOT_ON_IT)
    )
    function = _functions(file).get(name) if is_there else None
    return function is not None and _statements(function) >= LEAST_STATEMENTS


def all_of(trace: Trace) -> list[Place]:
    """Return all functions that ran, without the bodies of classes and modules."""
    return [(file, name) for file, name in trace.ran if name in _functions(file)]


def path_of(trace: Trace) -> list[Place]:
    """Return the functions that the page lists."""
    handing_on = {caller for caller, called in trace.calls if _counts(called)}
    return [place for place in trace.ran if _counts(place) and place in handing_on]


def listed(path: list[Place]) -> list[str]:
    """Return the path as lines of the page."""
    lines = []
    for file, name in path:
        words = " ".join((ast.get_docstring(_functions(file)[name]) or "").split("\n\n")[0].split())
        lines.append(f"- `{file}: {name.replace('.<locals>', '')}`{': ' if words else ''}{words}\n")
    return lines


def test_the_path_is_short_and_listed_on_its_page(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    every = all_of(trace)
    files = {file for file, _ in every}
    assert len(every) <= MOST_FUNCTIONS, every
    assert len(files) <= MOST_FILES, sorted(files)
    path = path_of(trace)
    names = [name.rpartition(".")[2] for _, name in path]
    assert len(set(names)) == len(names), (
        f"two functions on the path have the same name: {sorted(names)}"
    )
    page = PAGE.read_text()
    written = page[page.index(BEGIN) + len(BEGIN) : page.index(END)].splitlines(keepends=True)
    assert sorted(written) == sorted(listed(path)), "run `python -m tests.test_message_path`"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        message_trace = traced(Path(folder))
    text = PAGE.read_text()
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(head + "".join(listed(path_of(message_trace))) + tail)
    ran = all_of(message_trace)
    print(len(ran), "functions in", len({file for file, _ in ran}), "files")
