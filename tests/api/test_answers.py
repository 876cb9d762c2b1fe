"""Responses while they are sent.

Large responses are made in a thread, and never delay others. There is a limit for each of them, and
one for all together.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx2
import orjson
import pytest

from ricordo.api import answers
from ricordo.api.answers import AnswerBudget, json_pieces, weight
from ricordo.domain.quotas import MEGABYTE
from ricordo.errors import TooLong
from ricordo.offload import SMALL
from ricordo.storage.engine.store import Store
from tests.seams.http import ok, refused
from tests.seams.server import MODEL, ServerInThread, serving

LIMIT = 500_000
TEXT = "A word, é. " * 30_000  # 350 kB
SETTINGS = {"max_answer_mb": 3, "max_answers_mb": 4}


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server with small limits for responses and a large limit for memory."""
    with serving(tmp_path_factory.mktemp("data"), **SETTINGS) as server:
        with server.http() as http:
            for number in range(3):
                ok(http.put(f"/users/ada/blocks/{number}", json={"body": TEXT, "limit": LIMIT}))
        yield server


def some_json(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if depth == 0 or kind < 0.4:
        return chance.choice(
            ["", "é" * chance.randrange(90), "x\n" * chance.randrange(200), None, 3, True, 1.5]
        )
    if kind < 0.7:
        return [some_json(chance, depth - 1) for _ in range(chance.randrange(6))]
    return {f'k{number}"': some_json(chance, depth - 1) for number in range(chance.randrange(6))}


def test_json_written_in_pieces_equals_json_written_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "_PIECE", 64)
    chance = random.Random(2)  # noqa: S311
    for _ in range(500):
        content = some_json(chance, 4)
        pieces = list(json_pieces(content))
        assert b"".join(pieces) == orjson.dumps(content)
        assert all(len(piece) <= 64 * 6 for piece in pieces)
        assert weight(content) >= len(orjson.dumps(content)) / 2


def _tickets(budget: AnswerBudget, callers: str) -> list[Any]:
    return [answers.Ticket(budget, caller) for caller in callers]


def test_one_caller_gets_at_most_half_the_response_budget_unless_alone() -> None:
    budget = AnswerBudget(largest_mb=32, most_mb=8)
    alone, again, other, third = _tickets(budget, "aabc")
    assert alone.take(20 * MEGABYTE), "a lone response may exceed the budget"
    assert not again.take(MEGABYTE)
    assert not other.take(MEGABYTE)
    alone.release()
    assert budget.taken == 0
    assert alone.take(3 * MEGABYTE)
    assert not again.take(2 * MEGABYTE), "one caller may take at most half of it"
    assert again.take(MEGABYTE)
    assert other.take(3 * MEGABYTE)
    assert not third.take(2 * MEGABYTE), "all callers together may not exceed it"
    assert third.take(2 * MEGABYTE, must=True), "the response of a write is never refused"
    assert other.take(MEGABYTE), "a ticket may take less than it has"
    for ticket in (alone, again, other, third):
        ticket.release()
    assert budget.taken == 0


async def test_a_waiting_response_gets_room_when_another_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = AnswerBudget(most_mb=8)
    first, *rest = _tickets(budget, "abcdefghijkl")
    assert first.take(8 * MEGABYTE)
    waiting = [asyncio.ensure_future(budget.wait(ticket, MEGABYTE)) for ticket in rest[:8]]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    first.release()
    await asyncio.gather(*waiting)
    assert budget.taken == 8 * MEGABYTE
    monkeypatch.setattr(answers, "WAIT", 0.01)
    with pytest.raises(answers.HTTPException) as refusal:
        await budget.wait(rest[8], MEGABYTE)
    assert (refusal.value.status_code, refusal.value.headers) == (503, {"retry-after": "1"})
    assert budget.taken == 8 * MEGABYTE


@pytest.mark.parametrize("content", ["\n", '"', "\\", "\x01"])
async def test_an_answer_without_room_is_read_once_more_when_there_is_room(content: str) -> None:
    budget = AnswerBudget(largest_mb=32, most_mb=4)
    (other,) = _tickets(budget, "a")
    # There is room for the estimate, and not for the answer.
    assert other.take(4 * MEGABYTE - 500_000)
    store = _CountingStore()
    text = content * 400_000
    asked = asyncio.ensure_future(
        answers.read_answer(budget, {}, cast("Store", store), lambda _tx: [text], None)
    )
    for _ in range(20):
        await asyncio.sleep(0)
    assert store.reads == 1
    other.release()
    answer = await asked
    assert isinstance(answer, answers.LargeAnswer)
    assert answer.size == budget.taken == len(orjson.dumps([text]))
    assert store.reads == 2


class _CountingStore:
    """Stops a test whose reads never end, instead of waiting for ever."""

    reads = 0

    async def read(self, work: Callable[[Any], Any]) -> Any:
        self.reads += 1
        assert self.reads < 10
        await asyncio.sleep(0)
        return work(None)


def test_an_answer_that_is_too_large_is_refused_with_the_number_and_the_setting(
    http: httpx2.Client,
) -> None:
    with pytest.raises(TooLong, match="about 33 MB, and 32 MB are allowed"):
        AnswerBudget().require_one(33 * MEGABYTE - 5)
    own = [{"label": str(number), "value": TEXT, "limit": LIMIT} for number in range(6)]
    made = ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": own}))
    assert len(made["blocks"]) == 6, "the response of a write is never refused"
    path = f"/v1/agents/{made['id']}"
    assert "RICORDO_MAX_ANSWER_MB" in refused(http.get(path), 422)
    assert ok(http.get(f"{path}/core-memory/blocks/3"))["value"] == TEXT
    ok(http.delete(path))


def test_large_responses_are_serialized_off_the_event_loop(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops, dumps, seen = [server.loop], orjson.dumps, list[str]()

    def watched(content: Any, *given: Any, **named: Any) -> bytes:
        data = dumps(content, *given, **named)
        if len(data) > SMALL:
            seen.append(threading.current_thread().name)
        return data

    assert loops[0].is_running()
    for module in (answers, *_modules_with_orjson()):
        monkeypatch.setattr(module, "orjson", _Orjson(watched))
    own = [{"label": "own", "value": TEXT, "limit": LIMIT}]
    agent = ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": own}))
    for path in (
        "/users/ada/blocks",
        "/users/ada/blocks/1/blame",
        "/users/ada/blocks/1/compare",
        "/v1/blocks/?limit=2",
        f"/v1/blocks/{agent['blocks'][0]['id']}",
        f"/v1/agents/{agent['id']}",
        f"/v1/agents/{agent['id']}/core-memory",
        f"/v1/agents/{agent['id']}/core-memory/blocks",
        f"/v1/agents/{agent['id']}/core-memory/blocks/own",
    ):
        seen.clear()
        answer = http.get(path)
        assert ok(answer), path
        assert not [name for name in seen if not name.startswith(("sqlite-reader", "offload"))], (
            path,
            seen,
        )
        if len(answer.content) > SMALL:
            assert int(answer.headers["content-length"]) == len(answer.content)
    assert server.app.answers.taken == 0
    ok(http.delete(f"/v1/agents/{agent['id']}"))


class _Orjson:
    def __init__(self, dumps: Any) -> None:
        self.dumps, self.loads = dumps, orjson.loads


def _modules_with_orjson() -> list[Any]:
    from ricordo.api import users

    return [users]


def test_large_responses_are_refused_without_room_and_small_ones_never_wait(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = server.app.answers
    held = answers.Ticket(budget, "somebody else")
    assert held.take(SETTINGS["max_answers_mb"] * MEGABYTE)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(answers, "WAIT", 0.05)
            for path in ("/users/ada/blocks", "/users/ada/blocks/1"):
                answer = http.get(path)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), path
                assert "too many large answers" in answer.json()["detail"]
            assert budget.taken == held.size
            assert ok(http.get("/v1/health/"))["status"] == "ok"
            assert ok(http.get("/users/ada/blocks/1/history"))
            assert ok(http.put("/users/ada/blocks/0", json={"body": TEXT})), (
                "the response of a write is never refused"
            )
        monkeypatch.setattr(answers, "WAIT", 60)
        late = threading.Timer(0.05, server.loop.call_soon_threadsafe, (held.release,))
        late.start()
        assert len(ok(http.get("/users/ada/blocks"))) == 3, "the waiting request gets its response"
        late.join()
    finally:
        held.release()
    while budget.taken:  # The space of the last response is freed after its last byte.
        server.run(asyncio.sleep(0.005))
    assert budget.taken == 0
