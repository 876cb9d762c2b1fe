"""Importing past messages: in order, outside the window, repeatable, and while turns run."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ricordo.agents.deletion import delete_agent as remove_agent
from ricordo.agents.history import PORTION, PastMessage, import_messages
from ricordo.domain.clock import to_micros
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.storage import conversations, messages
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams import make
from tests.seams.stage import Stage, soon
from tests.seams.stores import DyingStore, count_statements


def past_messages(*texts: str, **fields: Any) -> list[PastMessage]:
    return [PastMessage("user", (text,), **fields) for text in texts]


def numbered_messages(size: int) -> list[PastMessage]:
    return [PastMessage("user", (f"tea {place}",), otid=f"otid-{place}") for place in range(size)]


async def import_into(
    stage: Stage, agent_id: str, new: list[PastMessage], thread: str | None = None
) -> list[str]:
    return await import_messages(stage.store, Scope(), agent_id, new, thread)


async def stored_ids(store: SqliteStore, agent_id: str) -> list[str]:
    wanted, equal = (
        Page(limit=100_000, order="asc"),
        {"conversation_id": conversations.default_id(agent_id)},
    )
    return [
        m.id
        for m in await store.read(
            lambda tx: messages.page(tx, Scope(), wanted, role="user", **equal)
        )
    ]


async def test_imported_messages_are_stored_in_order_and_outside_the_window(
    stage: Stage, agent: str
) -> None:
    window = (await stage.thread(agent)).window
    new = [
        PastMessage("user", ("I like", "tea."), name="Ada"),
        PastMessage("assistant", ("I see.",)),
        PastMessage("user", ("And jasmine.",), created_at="2024-05-06T07:08:09Z"),
    ]
    ids = await import_into(stage, agent, new)
    stored = await stage.store.read(lambda tx: messages.by_ids(tx, ids))
    assert [(m.role, m.text, m.name) for m in stored] == [
        ("user", "I like\ntea.", "Ada"),
        ("assistant", "I see.", None),
        ("user", "And jasmine.", None),
    ]
    moment = to_micros(datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC))
    assert [m.created_at for m in stored] == [moment - 2, moment - 1, moment]
    thread = await stage.thread(agent)
    assert (thread.window, thread.message_count, thread.last_message_at) == (window, 4, moment)
    assert stage.model.requests == []
    assert await stage.runs(agent) == []


async def test_a_date_without_a_zone_is_read_in_the_agents_time_zone(stage: Stage) -> None:
    agent = await stage.agent(timezone="Asia/Tokyo")
    (id,) = await import_into(stage, agent, past_messages("a", created_at="2024-05-06T09:00"))
    (message,) = await stage.store.read(lambda tx: messages.by_ids(tx, [id]))
    assert message.created_at == to_micros(datetime(2024, 5, 6, tzinfo=UTC))


async def test_importing_old_messages_keeps_the_date_of_the_last_message(
    stage: Stage, agent: str
) -> None:
    stage.lines.append("Hello.")
    await stage.say(agent, "Good morning.")
    before = (await stage.thread(agent)).last_message_at
    await import_into(stage, agent, past_messages("a", created_at="2020-01-01"))
    thread = await stage.thread(agent)
    assert (thread.last_message_at, thread.message_count) == (before, 4)


async def test_repeating_an_import_stores_nothing_twice(stage: Stage, agent: str) -> None:
    new = numbered_messages(3)
    ids = await import_into(stage, agent, new[:2])
    again = await import_into(stage, agent, [new[2], *new[:2], *past_messages("without an otid")])
    assert again[1:3] == ids
    assert len(set(again)) == 4
    assert (await stage.thread(agent)).message_count == 5


@pytest.mark.parametrize(
    "other",
    [{"texts": ("tea 2.",)}, {"texts": ("tea", "2")}, {"role": "assistant"}, {"name": "Ada"}],
)
async def test_an_otid_of_another_message_refuses_the_whole_import(
    stage: Stage, agent: str, other: dict[str, Any]
) -> None:
    new = numbered_messages(2 * PORTION)
    await import_into(stage, agent, new[-1:])
    # In another conversation the same text is another message.
    await import_into(stage, agent, new[1:2], await second_conversation(stage, agent))
    new[-1] = replace(new[-1], created_at="2020-01-01")  # the time is not compared
    before = await stored_ids(stage.store, agent)
    with pytest.raises(Conflict, match=f"otid-{2 * PORTION - 1} belongs to another message"):
        await import_into(stage, agent, [*new[:-1], replace(new[-1], **other)])
    assert await stored_ids(stage.store, agent) == before
    assert (await import_into(stage, agent, new))[-1] == before[0]


async def second_conversation(stage: Stage, agent: str) -> str:
    second = make.conversation((await stage.state(agent)).agent, id="conv-2")
    await stage.store.write(lambda tx: conversations.insert_one(tx, second))
    return second.id


@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_repeating_an_import_after_a_kill_stores_the_rest(
    stage: Stage, agent: str, writes: int
) -> None:
    new = numbered_messages(2 * PORTION + 7)
    with pytest.raises(asyncio.CancelledError):
        await import_messages(DyingStore(stage.store, writes), Scope(), agent, new)  # type: ignore[arg-type]
    stored = await stored_ids(stage.store, agent)
    assert len(stored) == writes * PORTION
    ids = await import_into(stage, agent, new)
    assert ids[: writes * PORTION] == stored
    assert await stored_ids(stage.store, agent) == ids
    assert (await stage.thread(agent)).message_count == 1 + len(new)


async def test_a_turn_and_an_import_at_the_same_time_are_both_complete(
    stage: Stage, agent: str
) -> None:
    turn, gate = await stage.asked(agent, "Good morning.", line="Hello.")
    importing = asyncio.create_task(import_into(stage, agent, numbered_messages(3 * PORTION)))
    gate.open()
    await soon(turn.wait())
    ids = await soon(importing)
    thread = await stage.thread(agent)
    assert (len(thread.window), thread.message_count) == (3, 3 + len(ids))
    assert not set(thread.window) & set(ids)


async def test_importing_a_portion_costs_a_fixed_number_of_statements(
    stage: Stage, agent: str
) -> None:
    with count_statements(stage.store) as counted:
        await import_into(stage, agent, numbered_messages(PORTION))
    written = [sql for sql in counted.statements if "INTO jobs" not in sql]
    assert (len(written), counted.transactions) == (9, 2)


@pytest.mark.parametrize(
    "wrong",
    [{"created_at": "yesterday"}, {"created_at": "0001-01-01T00:00:00+14:00"}, {"otid": "otid-0"}],
)
async def test_one_invalid_message_refuses_the_whole_import(
    stage: Stage, agent: str, wrong: dict[str, str]
) -> None:
    with pytest.raises(Invalid):
        await import_into(
            stage, agent, [*numbered_messages(PORTION + 1), *past_messages("a", **wrong)]
        )
    assert await stored_ids(stage.store, agent) == []


async def test_an_import_into_another_agents_conversation_is_refused(stage: Stage) -> None:
    agent, other = await stage.agent(), await stage.agent()
    thread = conversations.default_id(other)
    for who, where in ((agent, thread), (agent, "conv-unknown"), ("agent-unknown", None)):
        with pytest.raises(NotFound):
            await import_into(stage, who, past_messages("a"), where)
    second = make.conversation((await stage.state(agent)).agent, id="conv-2")
    await stage.store.write(lambda tx: conversations.insert_one(tx, second))
    (id,) = await import_into(stage, agent, past_messages("a"), "conv-2")
    (message,) = await stage.store.read(lambda tx: messages.by_ids(tx, [id]))
    assert message.conversation_id == "conv-2"
    assert (await stage.thread(agent)).message_count == 1


async def test_deleting_an_agent_stops_its_import(stage: Stage, agent: str) -> None:
    importing = asyncio.create_task(import_into(stage, agent, numbered_messages(20 * PORTION)))
    while len(await stored_ids(stage.store, agent)) < PORTION:  # noqa: ASYNC110 - reading is the waiting
        await asyncio.sleep(0)
    await remove_agent(stage.runtime, Scope(), agent)
    with pytest.raises(NotFound):
        await soon(importing)
    assert await stored_ids(stage.store, agent) == []
