"""Streams that are stored while they are produced, and can be read from any event number on.

All readers get the same bytes, also in other processes and after restarts of the server.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete

from ricordo.agents import recording
from ricordo.agents.recording import begin_recorded
from ricordo.agents.request import (
    NewMessage,
    TurnDelivery,
    TurnRequest,
)
from ricordo.api import stored_streams
from ricordo.api.models.messages import MessageFormat
from ricordo.api.stored_streams import Resumption, follow
from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.domain.model import Chunk, ModelReply, TextChunk
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import ModelError, Unavailable
from ricordo.llm.scripted import call
from ricordo.runtime import Runtime
from ricordo.storage import runs
from ricordo.storage.engine.store import SqlStore, Transaction
from ricordo.storage.schema import core_tables as tables
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.server import PIECES, PieceModel, events_of, sums_of
from tests.seams.stage import Gate, Hooks, Stage, soon, turn_request
from tests.seams.stores import ManualClock

DATABASES = BOTH
SILENT = Resumption(has_pings=False, poll=0.02)
WHOLE = ["assistant_message", "stop_reason", "usage_statistics", "[DONE]"]
NOTE = {"label": "human", "new_string": "She likes tea."}


async def brew(context: ToolContext) -> str:
    """Brew tea."""
    for told in ("water boils", "x" * 1000):
        context.report(told)
        await asyncio.sleep(0)
    return "tea"


@pytest.fixture
async def stage(store: SqlStore, tmp_path: Path) -> AsyncIterator[Stage]:
    """A runtime with a model whose answers the test sets."""
    opened = await Stage(store, tmp_path, Hooks([ServerTool(brew, "custom")])).open()
    opened.pieces = PieceModel()  # type: ignore[attr-defined]
    opened.runtime.models.add(opened.pieces)  # type: ignore[attr-defined]
    yield opened
    await opened.close()
    await asyncio.gather(*(one.finish() for one in list(opened.runtime.recordings.values())))


@pytest.fixture
async def elsewhere(store: SqlStore, tmp_path: Path) -> AsyncIterator[Runtime]:
    """Another process's runtime on the same database.

    It knows nothing of the turns and recordings of the first.
    """
    other = Stage(store, tmp_path, Hooks())
    yield other.runtime
    await other.close()


async def begin(stage: Stage, agent_id: str, otid: str | None = None, **request: Any) -> Run:
    said = (NewMessage("user", (TextPart("Hello."),), otid),)
    config = MessageFormat().to_json()
    asked = turn_request(
        Scope(), agent_id, *said, is_background=True, request_config=config, **request
    )
    return await soon(begin_recorded(stage.runtime, asked))


async def read(runtime: Runtime, run: Run, wanted: Resumption = SILENT) -> list[bytes]:
    async def collect() -> list[bytes]:
        return [chunk async for chunk in follow(runtime, run, wanted)]

    return await soon(collect())


async def wait_until_closed(stage: Stage, run: Run) -> None:
    while (await stage.store.read(lambda tx: runs.get(tx, Scope(), run.id))).ended_at is None:  # noqa: ASYNC110 - a row rings no bell
        await asyncio.sleep(0.01)


def values_of(chunks: Sequence[bytes]) -> list[Any]:
    return [value for _, value in events_of(b"".join(chunks).decode())]


def kinds(chunks: Sequence[bytes]) -> list[str]:
    return [
        value if isinstance(value, str) else value["message_type"] for value in values_of(chunks)
    ]


def numbers(chunks: Sequence[bytes]) -> list[int | None]:
    return [value["seq_id"] for value in values_of(chunks) if isinstance(value, dict)]


async def test_every_reader_gets_the_same_bytes_from_any_event_number(
    stage: Stage, elsewhere: Runtime
) -> None:
    agent = await stage.agent(("human", "Ada."))
    stage.lines += [call("memory_insert", **NOTE), "Noted."]
    gate = Gate()
    stage.lines[1] = gate.line("Noted.")

    run = await begin(stage, agent)
    early = asyncio.create_task(read(stage.runtime, run))
    far = asyncio.create_task(read(elsewhere, run))
    await gate.reached()
    gate.open()
    whole = await early

    assert kinds(whole) == ["tool_call_message", "tool_return_message", *WHOLE]
    assert numbers(whole) == [1, 2, 3, 4, 5]
    assert await far == whole
    for after in range(9):
        for runtime in (stage.runtime, elsewhere):
            assert await read(runtime, run, replace(SILENT, after=after, batch=2)) == (
                whole[after:] or whole[-1:]
            )
    assert not stage.runtime.recordings


async def test_tokens_are_stored_in_batches_and_none_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [TextChunk(letter) for letter in "Here is a long answer. " * 100]
    stage.pieces.answers.append((letters, ModelReply((TextPart("Here is a long answer. " * 100),))))  # type: ignore[attr-defined]
    batches: list[int] = []
    append = runs.append_events

    def counted(tx: Transaction, run_id: str, first: int, data: Sequence[str]) -> None:
        batches.append(len(data))
        append(tx, run_id, first, data)

    monkeypatch.setattr(runs, "append_events", counted)
    run = await begin(stage, await stage.agent(model=PIECES), streams_tokens=True)
    chunks = await read(stage.runtime, run)

    said = "".join(value["content"] for value in values_of(chunks)[:-3])
    assert said == "Here is a long answer. " * 100
    assert numbers(chunks) == list(range(1, len(chunks)))
    assert sum(batches) == len(chunks)
    assert len(batches) < 20


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_failed_write_is_retried_and_an_unconfirmed_one_is_not_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    agent = await stage.agent()
    monkeypatch.setattr(recording, "_RETRIES", (0.02,) * 5)
    store, failures = stage.store, deque([True] * (1 if is_done else 3))
    write = store.write

    async def failing(work: Callable[[Transaction], Any]) -> Any:
        is_failing = "append_events" in getattr(work, "func", work).__code__.co_names and failures
        done = None if is_failing and not is_done else await write(work)
        if is_failing:
            failures.popleft()
            raise Unavailable("The connection was lost.")
        return done

    monkeypatch.setattr(store, "write", failing)
    stage.lines.append("Safe.")
    run = await begin(stage, agent)
    chunks = await read(stage.runtime, run)
    assert (kinds(chunks), numbers(chunks)) == (WHOLE, [1, 2, 3])
    assert not failures


async def test_a_failed_and_a_cancelled_turn_end_the_stream_differently(stage: Stage) -> None:
    agent = await stage.agent()
    stage.lines.append(ModelError("llm_rate_limit", "Slow down."))
    failed = await begin(stage, agent)
    gate = Gate()

    chunks = await read(stage.runtime, failed)
    assert kinds(chunks) == ["stop_reason", "error_message", "[DONE]"]
    assert chunks[1].startswith(b"event: error\ndata: {")
    assert numbers(chunks) == [1, 2]

    stage.lines.append(gate.line("Too late."))
    cancelled = await begin(stage, agent)
    await gate.reached()
    await stage.runtime.live[cancelled.id].cancel()
    chunks = await read(stage.runtime, cancelled)
    assert kinds(chunks) == ["stop_reason", "[DONE]"]
    assert b'"cancelled"' in chunks[0]


async def stored_run(stage: Stage, *events: str, **fields: Any) -> Run:
    """Make a run of a killed server, with this part of its stream stored."""
    agent = (await stage.state(await stage.agent())).agent
    run = make.run(agent, background=True, request_config=MessageFormat().to_json(), **fields)

    def work(tx: Transaction) -> None:
        runs.open_run(tx, run)
        runs.append_events(tx, run.id, 1, events)

    await stage.store.write(work)
    return run


async def test_the_stream_of_a_killed_server_is_ended_once_by_its_readers(
    stage: Stage, elsewhere: Runtime, clock: ManualClock
) -> None:
    begun = (
        'data: {"message_type":"assistant_message","id":"message-1","content":"Hel","seq_id":1}\n\n'
    )
    run = await stored_run(stage, begun, lease_expires_at=0)
    readings = [
        asyncio.create_task(read(runtime, run)) for runtime in (stage.runtime, elsewhere) * 3
    ]
    await wait_until_closed(stage, run)
    await asyncio.sleep(0.05)
    assert not any(reading.done() for reading in readings), (
        "the run's server may still store the end"
    )
    clock.advance(stored_streams.GRACE / 1_000_000)

    read_by_all = await asyncio.gather(*readings)

    whole = read_by_all[0]
    assert kinds(whole) == ["assistant_message", "stop_reason", "error_message", "[DONE]"]
    assert numbers(whole) == [1, 2, 3]
    assert all(one == whole for one in read_by_all)
    events = await stage.store.read(lambda tx: runs.events_after(tx, run.id))
    assert [event.data.encode() for event in events] == whole


@pytest.mark.parametrize("tokens", [False, True])
async def test_messages_saved_but_missing_in_the_stream_are_sent_before_its_end(
    stage: Stage, elsewhere: Runtime, clock: ManualClock, tokens: bool
) -> None:
    agent = await stage.agent(("human", "Ada."), model=PIECES)
    parts = (
        ReasoningPart("Hm.", signature="proof"),
        TextPart("I note that."),
        call("memory_insert", **NOTE),
    )
    first: tuple[list[Chunk], ModelReply] = (
        [TextChunk("I note "), TextChunk("that.")],
        ModelReply(parts),
    )
    stage.pieces.answers += [
        first,
        ([TextChunk("No"), TextChunk("ted.")], ModelReply((TextPart("Noted."),))),
    ]  # type: ignore[attr-defined]
    run = await begin(stage, agent, streams_tokens=tokens)
    whole = await read(stage.runtime, run)
    clock.advance(9)

    for kept in range(len(whole) - 2):  # the end is stored in one piece
        await stage.store.write(lambda tx, n=kept: _store_only(tx, run.id, whole[:n]))
        mended = await read(elsewhere, run)
        assert mended[:kept] == whole[:kept]
        assert sums_of(values_of(mended)) == sums_of(values_of(whole))
        assert numbers(mended) == list(range(1, len(mended)))
        assert kinds(mended)[-3:] == ["stop_reason", "usage_statistics", "[DONE]"]
        if not tokens:
            assert mended == whole


def _store_only(tx: Transaction, run_id: str, chunks: Sequence[bytes]) -> None:
    tx.run(delete(tables.run_events).where(tables.run_events.c.run_id == run_id))
    runs.append_events(tx, run_id, 1, [chunk.decode() for chunk in chunks])


async def test_a_recording_that_was_taken_for_dead_stops_and_keeps_the_stored_end(
    stage: Stage, elsewhere: Runtime, clock: ManualClock
) -> None:
    gate = Gate()
    stage.lines.append(gate.line("Back again."))
    run = await begin(stage, await stage.agent())
    await gate.reached()
    clock.advance(60)  # the server froze for longer than its lease
    far = asyncio.create_task(read(elsewhere, run))
    await wait_until_closed(stage, run)
    clock.advance(9)
    ended = await far
    gate.open()

    assert await read(stage.runtime, run) == ended
    assert kinds(ended) == ["stop_reason", "error_message", "[DONE]"]


async def test_pings_carry_the_last_number_and_are_not_stored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.runtime.settings, "keepalive", 0.03)
    gate = Gate()
    stage.lines += [call("conversation_search", query="tea"), gate.line("Done.")]
    run = await begin(stage, await stage.agent())
    reading = follow(stage.runtime, run, Resumption())

    chunks: list[bytes] = []
    while not chunks or (kinds(chunks)[-1], numbers(chunks)[-1]) != ("ping", 2):
        chunks.append(await soon(anext(reading)))
    gate.open()
    chunks += [chunk async for chunk in reading]

    told = list(zip(kinds(chunks), numbers(chunks), strict=False))
    assert told[0] == ("ping", 0)
    last: int | None = 0
    for kind, number in told:
        assert number == last if kind == "ping" else number == (last or 0) + 1
        last = number
    events = await stage.store.read(lambda tx: runs.events_after(tx, run.id))
    assert b"".join(event.data.encode() for event in events) == b"".join(
        chunk for chunk in chunks if b'"ping"' not in chunk
    )


@pytest.mark.parametrize("has_pings", [False, True])
async def test_a_reader_of_a_silent_stream_waits_between_its_reads(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, has_pings: bool
) -> None:
    gate = Gate()
    stage.lines += [gate.line("Done.")]
    run = await begin(stage, await stage.agent())
    await gate.reached()
    now = 0.0
    waits: list[float] = []

    async def wait(changed: asyncio.Event | None, seconds: float, _poll: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds
        if len(waits) >= 5:
            gate.open()
            assert changed
            await changed.wait()

    monkeypatch.setattr(stored_streams, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(stored_streams, "_wait", wait)

    chunks = await read(stage.runtime, run, Resumption(has_pings=has_pings))

    assert kinds(chunks) == [*["ping"] * (6 if has_pings else 0), *WHOLE]
    assert waits[:5] == [stage.runtime.settings.keepalive] * 5


async def test_tool_progress_is_stored_as_pings_and_sent_on_request(
    stage: Stage,
) -> None:
    agent = await stage.agent(tool_names=("brew",))
    stage.lines += [call("brew"), "Here."]
    run = await begin(stage, agent)

    with_pings = values_of(await read(stage.runtime, run, replace(SILENT, has_pings=True)))[:-1]

    (call_id,) = [
        one["tool_calls"][0]["tool_call_id"]
        for one in with_pings
        if one["message_type"] == "tool_call_message"
    ]
    told = [one for one in with_pings if "progress" in one]
    assert [(one["message_type"], one["tool_call_id"]) for one in told] == [("ping", call_id)] * 2
    assert [one["progress"] for one in told] == ["water boils", "x" * 500]
    silent = await read(stage.runtime, run)
    assert kinds(silent) == ["tool_call_message", "tool_return_message", *WHOLE]
    assert await read(stage.runtime, run, replace(SILENT, after=4)) == silent[2:]


async def test_a_stopping_server_releases_readers_of_other_servers_runs(
    stage: Stage, elsewhere: Runtime
) -> None:
    gate = Gate()
    stage.lines.append(gate.line("Later."))
    run = await begin(stage, await stage.agent())
    await gate.reached()
    far = asyncio.create_task(read(elsewhere, run))
    await asyncio.sleep(0.05)
    elsewhere.is_stopping = True

    assert await soon(far) == []
    gate.open()
    assert kinds(await read(stage.runtime, run))[-1] == "[DONE]"


async def test_a_client_that_disconnects_while_the_turn_begins_leaves_a_stored_stream(
    stage: Stage,
) -> None:
    agent = await stage.agent()
    stage.lines.append("Here I am.")
    said = (NewMessage("user", (TextPart("Hello."),)),)
    asked = TurnRequest(
        Scope(),
        agent,
        said,
        delivery=TurnDelivery(is_background=True, request_config=MessageFormat().to_json()),
    )
    beginning: Awaitable[Run] = asyncio.ensure_future(begin_recorded(stage.runtime, asked))
    await asyncio.sleep(0)
    beginning.cancel()  # type: ignore[attr-defined]
    while not (found := await stage.runs(agent)):  # noqa: ASYNC110 - a row rings no bell
        await asyncio.sleep(0.01)

    chunks = await read(stage.runtime, found[0])
    assert kinds(chunks) == WHOLE
