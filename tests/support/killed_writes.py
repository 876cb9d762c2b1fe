"""The writes that a campaign of kills interrupts, and the process that is killed in them.

Each row of WRITES changes the database as a request does. The process counts its statements or the
suspensions of its tasks, and kills itself with SIGKILL at the given one.
"""

import asyncio
import json
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import event, text

from ricordo.agents.conversations import create_conversation, fork_conversation
from ricordo.agents.deletion import delete_conversation
from ricordo.agents.history import PastMessage, import_messages
from ricordo.agents.lifecycle import cancel_runs, delete_agent, reset_messages
from ricordo.agents.request import Approval, TurnRequest
from ricordo.agents.run_end import close_all, close_expired
from ricordo.agents.turn import collect, run_turn
from ricordo.domain.agent import CompactionSettings
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ToolRule
from ricordo.errors import NotFound
from ricordo.llm.scripted import Line
from ricordo.storage import conversations
from ricordo.storage.engine.postgres import open_postgres
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import SqlStore
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.seams.stage import Hooks, Stage, call, text_of
from tests.seams.stores import START, ManualClock
from tests.support.faults_world import Life

# Seconds between the clocks of two processes. A later process must have later times, since messages
# are listed by time. Each check moves the clock of its process by the length of a lease.
_BETWEEN = 10_000
_LEASE = 31
_GONE = "gone"
CONNECTIONS = 2
BELLS = "bells"


@dataclass
class Scene:
    """One process: its stage, the agent that is written to, and the mark of this write."""

    stage: Stage
    folder: Path
    agent: str = ""
    mark: str = ""
    another: str = ""

    async def rows(self, sql: str, **values: Any) -> list[Any]:
        """Return the rows of one statement."""
        return await self.stage.store.read(
            lambda tx: list(tx.connection.execute(text(sql), values))
        )

    async def say(self, *lines: Line, agent: str = "", **request: Any) -> str:
        """Send the mark, which the model answers with these lines; return the answer."""
        self.stage.lines.extend(lines)
        answer = await self.stage.say(
            agent or self.agent, f"Message {self.mark}.", otids=[self.mark], **request
        )
        return text_of(answer)

    async def new_agent(self, **spec: Any) -> str:
        rules = (ToolRule("guarded", "requires_approval"),)
        usual = {"tool_names": ("ring", "guarded"), "tool_rules": rules}
        return await self.stage.agent(("human", "Ada."), **usual | spec)

    async def messages(self) -> int:
        """Return the number of messages with the mark."""
        (row,) = await self.rows("SELECT count(*) FROM messages WHERE otid = :mark", mark=self.mark)
        return int(row[0])


Act = Callable[[Scene], Awaitable[object]]
Counts = Callable[[Scene], Awaitable[Sequence[int]]]


@dataclass(frozen=True)
class Write:
    """One kind of write.

    Attributes:
        act: The action that is killed.
        counts: Counts the stored rows of each kind: 1 after an acknowledgement, and at most 1
            before it.
        prepare: An action before `act`, which is not killed.
        check: Further checks of the stored data.
    """

    act: Act
    counts: Counts
    prepare: Act | None = None
    check: Act | None = None


async def _plain(scene: Scene) -> None:
    await scene.say("Done.")


async def _said(scene: Scene) -> list[int]:
    return [await scene.messages()]


async def _streamed(scene: Scene) -> None:
    await scene.say("Done.", streams_tokens=True)


async def _in_background(scene: Scene) -> None:
    await scene.say("Done.", is_background=True)


async def _remember(scene: Scene) -> None:
    await scene.say(call("memory_insert", label="human", new_string=scene.mark), "Noted.")


async def _remembered(scene: Scene) -> list[int]:
    value = await scene.stage.block(scene.agent, "human")
    return [await scene.messages(), value.count(scene.mark)]


async def _archive(scene: Scene) -> None:
    await scene.say(call("archival_memory_insert", content=f"Of {scene.mark}."), "Noted.")


async def _archived(scene: Scene) -> list[int]:
    (row,) = await scene.rows(
        "SELECT count(*) FROM passages WHERE text = :text", text=f"Of {scene.mark}."
    )
    return [await scene.messages(), int(row[0])]


async def _ring(scene: Scene) -> None:
    await scene.say(call("ring", mark=scene.mark), "Rang.")


async def _at_once(scene: Scene) -> None:
    noted = call("memory_insert", label="human", new_string=scene.mark)
    await scene.say((call("ring", mark=scene.mark), noted), "Both.")


async def _both(scene: Scene) -> list[int]:
    return [*await _remembered(scene), _rung(scene)]


def _rung(scene: Scene) -> int:
    bells = scene.folder / BELLS
    return bells.read_text().splitlines().count(scene.mark) if bells.exists() else 0


async def _has_rung(scene: Scene) -> list[int]:
    return [await scene.messages(), _rung(scene)]


async def _ask(scene: Scene) -> None:
    await scene.say(call("guarded", mark=scene.mark))


async def _approve(scene: Scene) -> None:
    scene.stage.lines.append("Done.")
    request = TurnRequest(Scope(), scene.agent, approval=Approval(approves=True))
    await collect(await run_turn(scene.stage.runtime, request))


async def _make(scene: Scene) -> None:
    await scene.new_agent(name=scene.mark, tags=(scene.mark,))


async def _made(scene: Scene) -> list[int]:
    rows = await scene.rows("SELECT id FROM agents WHERE name = :name", name=scene.mark)
    for row in rows:
        assert await scene.stage.block(row[0], "human") == "Ada."
        await scene.stage.require_sound(row[0])
    return [len(rows)]


async def _another(scene: Scene) -> None:
    """Make an agent only for this write; it is found by its name."""
    scene.another = await scene.new_agent(name=scene.mark)
    await scene.say("Hello.", agent=scene.another)


async def _find_another(scene: Scene) -> str:
    rows = await scene.rows("SELECT id FROM agents WHERE name = :name", name=scene.mark)
    if not rows:
        return _GONE
    try:
        await scene.stage.state(rows[0][0])
    except NotFound:
        return _GONE
    return str(rows[0][0])


async def _delete(scene: Scene) -> None:
    await delete_agent(scene.stage.runtime, Scope(), scene.another)


async def _deleted(scene: Scene) -> list[int]:
    return [int(await _find_another(scene) == _GONE)]


async def _is_whole_or_gone(scene: Scene) -> None:
    another = await _find_another(scene)
    if another != _GONE:
        await scene.stage.require_sound(another)


async def _reset(scene: Scene) -> None:
    await reset_messages(scene.stage.runtime, Scope(), scene.another)


async def _was_reset(scene: Scene) -> list[int]:
    history = await scene.stage.history(await _find_another(scene))
    return [int(not any(message.otid == scene.mark for message in history))]


async def _shrink(scene: Scene) -> None:
    scene.stage.lines.append("They said hello.")
    request = TurnRequest(Scope(), scene.another, compaction=CompactionSettings(mode="all"))
    await collect(await run_turn(scene.stage.runtime, request))


async def _shrunk(scene: Scene) -> list[int]:
    window = (await scene.stage.thread(await _find_another(scene))).window
    history = await scene.stage.history(await _find_another(scene))
    said = {message.id for message in history if message.otid == scene.mark}
    assert len(said) == 1, "a message that left the window is in the history"
    return [int(not said & set(window))]


async def _is_answered(scene: Scene) -> None:
    another = await _find_another(scene)
    scene.stage.lines.clear()
    scene.stage.lines.append("Still here.")
    assert text_of(await scene.stage.say(another, "Are you there?")) == "Still here."


async def _open(scene: Scene) -> None:
    await create_conversation(
        scene.stage.runtime, Scope(), scene.agent, {}, id=_conversation(scene)
    )


async def _opened(scene: Scene) -> list[int]:
    id = _conversation(scene)
    (row,) = await scene.rows("SELECT count(*) FROM conversations WHERE id = :id", id=id)
    if row[0]:
        scene.stage.lines.append("Here too.")
        answer = await scene.stage.say(scene.agent, "Are you there?", conversation_id=id)
        assert text_of(answer) == "Here too."
    return [int(row[0])]


async def _fork(scene: Scene) -> None:
    of = conversations.default_id(scene.agent)
    await fork_conversation(scene.stage.runtime, Scope(), of, id=_conversation(scene))


async def _close(scene: Scene) -> None:
    await delete_conversation(scene.stage.runtime, Scope(), _conversation(scene))


async def _closed(scene: Scene) -> list[int]:
    rows = await scene.rows(
        "SELECT id FROM conversations WHERE id = :id AND deleted_at IS NULL",
        id=_conversation(scene),
    )
    return [int(not rows)]


def _conversation(scene: Scene) -> str:
    return f"conv-{scene.mark}"


async def _import(scene: Scene) -> None:
    past = [
        PastMessage("user", ("Long ago.",), otid=f"{scene.mark}-1"),
        PastMessage("assistant", ("Indeed.",), otid=f"{scene.mark}-2"),
    ]
    await import_messages(scene.stage.store, Scope(), scene.another, past)


async def _imported(scene: Scene) -> list[int]:
    (row,) = await scene.rows(
        "SELECT count(*) FROM messages WHERE otid IN (:first, :second)",
        first=f"{scene.mark}-1",
        second=f"{scene.mark}-2",
    )
    assert row[0] % 2 == 0, "an import is complete or absent"
    return [row[0] // 2]


WRITES: Mapping[str, Write] = {
    "a turn": Write(_plain, _said),
    "a streamed turn": Write(_streamed, _said),
    "a turn in the background": Write(_in_background, _said),
    "a memory edit": Write(_remember, _remembered),
    "a passage": Write(_archive, _archived),
    "a tool that acts outside": Write(_ring, _has_rung),
    "two calls at once": Write(_at_once, _both),
    "a call that waits": Write(_ask, _said),
    "an approval": Write(_approve, _has_rung, prepare=_ask),
    "a new agent": Write(_make, _made),
    "a deleted agent": Write(_delete, _deleted, prepare=_another, check=_is_whole_or_gone),
    "a reset": Write(_reset, _was_reset, prepare=_another, check=_is_answered),
    "a compaction": Write(_shrink, _shrunk, prepare=_another, check=_is_answered),
    "a new conversation": Write(_open, _opened),
    "a forked conversation": Write(_fork, _opened),
    "a deleted conversation": Write(_close, _closed, prepare=_open),
    "an import": Write(_import, _imported, prepare=_another, check=_is_answered),
}


def _tools(folder: Path) -> tuple[ServerTool, ...]:
    def ring(_context: ToolContext, mark: str) -> str:
        """Ring a bell outside.

        Args:
            mark: How the ring is written down.
        """
        bells = os.open(folder / BELLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(bells, f"{mark}\n".encode())
        os.close(bells)
        return f"Rang {mark}."

    def guarded(context: ToolContext, mark: str) -> str:
        """Ring a bell outside, after an approval.

        Args:
            mark: How the ring is written down.
        """
        return ring(context, mark)

    return tuple(ServerTool(tool, "custom", acts_outside=True) for tool in (ring, guarded))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Statements:
    """Counts statements and commits, and kills the process at one of them."""

    def __init__(self, store: SqlStore) -> None:
        self.left: int | None = None
        store.statements.observers.append(self._note)
        event.listen(store.engine, "before_cursor_execute", self._note)
        event.listen(store.engine, "commit", self._note)

    def _note(self, *_: object) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                _die()


@dataclass
class Process:
    """One server's runtime in a forked process, which obeys orders until it is killed.

    Orders and answers are lines of JSON.
    """

    scene: Scene
    life: Life
    statements: _Statements
    clock: ManualClock
    answers: TextIO

    def answer(self, **answer: Any) -> None:
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    async def write(self, order: Mapping[str, Any]) -> None:
        """Do one write, or begin it: the process may be killed before its end."""
        scene = self.scene
        scene.agent = order["agent"] or await scene.new_agent()
        scene.mark = order["mark"]
        write = WRITES[order["write"]]
        if write.prepare:
            await write.prepare(scene)
        self.answer(agent=scene.agent)
        if order["counted"] == "statement":
            self.statements.left = order["at"]
        else:
            self.life.arm(order["at"], _die)
        await asyncio.get_running_loop().create_task(write.act(scene))  # type: ignore[arg-type]
        self.statements.left = None
        self.life.disarm()
        self.answer(is_acknowledged=True)
        await asyncio.gather(*map(collect, list(scene.stage.runtime.live.values())))
        self.answer(is_over=True)

    async def check(self, order: Mapping[str, Any]) -> None:
        """Check the data that a killed process left, and that its agent answers."""
        self.clock.advance(_LEASE)
        await self.scene.stage.store.write(close_expired)
        wrong = []
        self.scene.agent = order["agent"]
        for name, mark, is_acknowledged in order["writes"]:
            self.scene.mark = mark
            wrong += await self._faults(name, mark, is_acknowledged)
        # Cancelling ends a call that waits for a client that is gone.
        await cancel_runs(self.scene.stage.runtime, Scope(), order["agent"])
        try:
            await self.scene.stage.require_sound(order["agent"])
        except Exception as error:
            wrong.append(f"the agent: {_told(error)}")
        self.answer(wrong=wrong)

    async def _faults(self, name: str, mark: str, is_acknowledged: bool) -> list[str]:
        write = WRITES[name]
        self.scene.stage.lines.clear()
        try:
            counts = await write.counts(self.scene)
            if write.check:
                await write.check(self.scene)
        except Exception as error:
            return [f"{name} {mark}: {_told(error)}"]
        is_right = all(count == 1 or (count == 0 and not is_acknowledged) for count in counts)
        return [] if is_right else [f"{name} {mark} ({is_acknowledged=}): {list(counts)}"]

    async def talk(self, _order: Mapping[str, Any]) -> None:
        """Take a turn with another agent while the other process is killed."""
        agent = await self.scene.new_agent()
        self.scene.stage.lines.append("Here.")
        answer = text_of(await self.scene.stage.say(agent, "Hello."))
        self.answer(wrong=[] if answer == "Here." else [f"another agent said {answer!r}"])


def _told(error: Exception) -> str:
    """Return the error with its source line, since a plain assertion has no text."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({line.name}: {line.line})"


def _open_store(folder: Path, database: str | None, clock: ManualClock) -> SqlStore:
    if database is None:
        return open_sqlite(folder / "ricordo.db", clock=clock)
    return open_postgres(database, connections=CONNECTIONS, clock=clock, backups=folder)


async def serve(
    folder: Path, database: str | None, number: int, orders: TextIO, answers: TextIO
) -> None:
    """Open the database as a server does at its start, and obey until the orders end."""
    clock = ManualClock(START + number * _BETWEEN * 1_000_000)
    store = _open_store(folder, database, clock)
    if database is None:
        await store.write(close_all)
    stage = await Stage(store, folder, Hooks(_tools(folder))).open()
    life = Life()
    asyncio.get_running_loop().set_task_factory(partial(_mortal, life))
    process = Process(Scene(stage, folder), life, _Statements(store), clock, answers)
    process.answer(is_ready=True)
    for line in orders:
        order = json.loads(line)
        await getattr(process, order["do"])(order)


async def write_each(folder: Path, database: str | None) -> None:
    """Do each write once, with a separate agent, and check the stored rows."""
    store = _open_store(folder, database, ManualClock())
    stage = await Stage(store, folder, Hooks(_tools(folder))).open()
    for number, (name, write) in enumerate(WRITES.items()):
        scene = Scene(stage, folder, mark=f"{database is None}-{number}")
        scene.agent = await scene.new_agent()
        if write.prepare:
            await write.prepare(scene)
        await write.act(scene)
        counts = await write.counts(scene)
        assert set(counts) == {1}, f"{name} is there {counts} times"
        if write.check:
            await write.check(scene)
    await stage.close()
    await store.close()


def _mortal(life: Life, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> Any:
    return life.task(loop, coroutine, **named)
