"""Messages in storage: round trips, order, pages, visibility to search, and cost of statements."""

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.message import (
    EventPart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, NotFound
from ricordo.search.index import insert_messages
from ricordo.storage import blocks, conversations, messages, runs
from ricordo.storage.blocks import BlockFilter
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.messages import searchable_text
from tests.seams import make
from tests.seams.stores import START, count_statements

AGENT = make.agent()


async def test_a_message_reads_back_as_it_was_written(store: SqliteStore, scope: Scope) -> None:
    agent = (await make.stored_agent(store)).agent
    run = make.run(agent)
    await store.write(lambda tx: runs.open_run(tx, run))
    message = make.message(
        agent,
        role="assistant",
        parts=(
            ReasoningPart("Hm.", "proof", "secret", native=False, provider="anthropic"),
            TextPart("Tee & Plätzchen 🍵 \x00 <b>\n"),
            ImagePart("image/png", data="aGk="),
            ToolCallPart("call-1", "roll_dice", '{"sides": 6'),
            ToolReturnPart(
                "call-1",
                "roll_dice",
                "error",
                "[1]",
                is_json=True,
                stdout=("a",),
                stderr=("b", "c"),
            ),
        ),
        user_id=scope.user_id,
        run_id=run.id,
        step_id="step-1",
        otid="1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e500",
        name="Nina",
        sender_id="agent-2",
        group_id="group-1",
        model="scripted/model",
        created_at=START + 7,
    )
    (stored,) = await make.stored_messages(store, message)
    assert stored.seq > 0
    assert replace(stored, seq=0) == message
    assert await store.read(lambda tx: messages.get(tx, scope, message.id)) == stored


async def test_messages_are_returned_in_the_order_of_the_ids_without_missing_ones(
    store: SqliteStore,
) -> None:
    agent = (await make.stored_agent(store)).agent
    one, two, three = await make.stored_messages(
        store, *(make.message(agent, text) for text in "abc")
    )
    wanted = [three.id, "message-gone", one.id, three.id]
    assert await store.read(lambda tx: messages.by_ids(tx, wanted)) == [three, one, three]
    assert await store.read(lambda tx: messages.by_ids(tx, [])) == []
    assert one.seq < two.seq < three.seq


async def test_another_organizations_message_is_not_found(store: SqliteStore) -> None:
    agent = (await make.stored_agent(store)).agent
    (stored,) = await make.stored_messages(store, make.message(agent))
    with pytest.raises(NotFound, match=f"Message with ID {stored.id} not found"):
        await store.read(lambda tx: messages.get(tx, Scope(organization_id="org-2"), stored.id))
    assert (
        await store.read(lambda tx: messages.page(tx, Scope(organization_id="org-2"), Page())) == []
    )


async def test_an_otid_is_unique_in_its_conversation_and_can_be_looked_up(
    store: SqliteStore,
) -> None:
    agent = (await make.stored_agent(store)).agent
    thread = conversations.default_id(agent.id)
    other = make.conversation(agent, id="conv-other")
    await store.write(lambda tx: conversations.insert_one(tx, other))
    first, elsewhere, plain = await make.stored_messages(
        store,
        make.message(agent, otid="o-1"),
        make.message(agent, otid="o-1", conversation_id="conv-other"),
        make.message(agent),
    )
    with pytest.raises(Collision):
        await make.stored_messages(store, make.message(agent), make.message(agent, otid="o-1"))
    stored = await store.read(
        lambda tx: messages.page(tx, Scope(), Page(order="asc"), agent_id=agent.id)
    )
    assert stored[1:] == [first, elsewhere, plain]
    assert await store.read(lambda tx: messages.by_otids(tx, thread, ["o-1", "o-2"])) == [first]
    assert await store.read(lambda tx: messages.by_otids(tx, "conv-other", ["o-1"])) == [elsewhere]


async def test_the_messages_of_a_run_can_be_read_from_a_sequence_number_on(
    store: SqliteStore,
) -> None:
    agent = (await make.stored_agent(store)).agent
    stored = await make.stored_messages(
        store, *(make.message(agent, text, run_id="run-1") for text in "abc")
    )
    await make.stored_messages(store, make.message(agent, run_id="run-2"))
    assert await store.read(lambda tx: messages.of_run(tx, "run-1")) == stored
    assert (
        await store.read(lambda tx: messages.of_run(tx, "run-1", after=stored[1].seq)) == stored[2:]
    )


async def test_inserting_or_reading_many_messages_costs_one_statement_each(
    store: SqliteStore,
) -> None:
    agent = (await make.stored_agent(store)).agent
    many = [make.message(agent, f"number {number}") for number in range(1200)]
    with count_statements(store) as counted:
        await store.write(lambda tx: insert_messages(tx, many))
        await store.read(lambda tx: messages.by_ids(tx, [message.id for message in many]))
        await store.write(lambda tx: insert_messages(tx, []))
    assert len(counted.statements) == 3


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (make.message(AGENT, "I like tea."), "I like tea."),
        (make.message(AGENT, "You are kind.", "system"), ""),
        (make.message(AGENT, parts=(EventPart('{"type":"heartbeat"}'),)), ""),
        (make.message(AGENT, '{"type":"login"}'), '{"type":"login"}'),
        (make.message(AGENT, '{"type": "heartbeat"', "assistant"), '{"type": "heartbeat"'),
        (make.call(AGENT, "send_message", '{"message": "Good morning"}'), "Good morning"),
        (make.call(AGENT, "send_message", '{"message": "Good mor'), ""),
        (make.call(AGENT, "send_message", '["Good morning"]'), ""),
        (make.call(AGENT, "roll_dice", '{"message": "six"}'), ""),
        (make.result(AGENT, "roll_dice", "six"), "six"),
        (make.result(AGENT, "conversation_search", "what was found"), ""),
        (make.result(AGENT, "archival_memory_search", "what was found"), ""),
        (
            make.message(
                AGENT, role="assistant", parts=(ReasoningPart("Hm."), TextPart("A"), TextPart("B"))
            ),
            "A\nB",
        ),
    ],
)
def test_only_text_that_was_said_or_read_is_searchable(message: Message, text: str) -> None:
    assert searchable_text(message) == text


SIZE = 14
places = st.none() | st.integers(0, SIZE - 1)


def cut(items: list[Message], wanted: Page) -> list[Message]:
    """Return the page by definition: the messages between both cursors, from the given end."""
    ordered = items if wanted.order == "asc" else items[::-1]
    place = {item.id: index for index, item in enumerate(ordered)}
    first = place[wanted.after] + 1 if wanted.after else 0
    end = place[wanted.before] if wanted.before else len(ordered)
    between = ordered[first : max(end, first)]
    return (
        between[-wanted.limit :] if wanted.before and not wanted.after else between[: wanted.limit]
    )


@pytest.mark.parametrize(
    "times", [(0,) * SIZE, (0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4), (4, 1, 1, 3, 0, 2, 2) * 2]
)
async def test_every_page_equals_the_same_part_of_the_sorted_list(
    store: SqliteStore, scope: Scope, times: tuple[int, ...]
) -> None:
    agent = (await make.stored_agent(store, make.agent(created_at=START - 1))).agent
    new = [
        make.message(agent, str(number), created_at=START + at) for number, at in enumerate(times)
    ]
    stored = await make.stored_messages(store, *new)
    items = sorted(stored, key=lambda message: (message.created_at, message.seq))

    def check(tx: Transaction) -> None:
        @given(st.integers(1, SIZE + 2), places, places, st.sampled_from(["asc", "desc"]))
        def every_page(
            limit: int, before: int | None, after: int | None, order: Literal["asc", "desc"]
        ) -> None:
            first, last = (None if place is None else items[place].id for place in (before, after))
            wanted = Page(limit, before=first, after=last, order=order)
            assert messages.page(tx, scope, wanted, role="user") == cut(items, wanted)

        every_page()

    await store.read(check)


async def test_a_page_with_a_size_limit_has_as_many_items_next_to_the_cursor_as_fit(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store, make.agent(created_at=START - 1))).agent
    texts = ["x" * size for size in (10, 3000, 10, 10, 900, 900, 10, 400, 10, 10, 2000, 1, 1, 500)]
    items = await make.stored_messages(
        store, *(make.message(agent, text, created_at=START + at) for at, text in enumerate(texts))
    )

    def check(tx: Transaction) -> None:
        tx.quotas = replace(tx.quotas, list_characters=2000)

        @given(st.integers(1, SIZE + 2), places, places, st.sampled_from(["asc", "desc"]))
        def every_page(
            limit: int, before: int | None, after: int | None, order: Literal["asc", "desc"]
        ) -> None:
            first, last = (None if place is None else items[place].id for place in (before, after))
            wanted = Page(limit, before=first, after=last, order=order, is_bounded=True)
            whole, page = cut(items, wanted), messages.page(tx, scope, wanted, role="user")
            rest = len(whole) - len(page)
            assert page == (whole[rest:] if wanted.is_backwards else whole[: len(page)])
            assert bool(page) == bool(whole)
            numbers = [message.seq for message in whole]
            assert messages.page_of_numbers(tx, numbers, wanted) == page
            assert len(page) == 1 or sum(len(message.text) for message in page) <= 2000
            if rest:
                following = whole[rest - 1] if wanted.is_backwards else whole[len(page)]
                assert sum(len(message.text) + 100 for message in (*page, following)) > 2000

        every_page()

    await store.read(check)


async def test_an_unknown_cursor_gives_an_empty_page(store: SqliteStore, scope: Scope) -> None:
    await make.stored_blocks(store, make.block())
    for wanted in (Page(after="block-gone"), Page(before="block-gone")):
        assert (
            await store.read(
                lambda tx, wanted=wanted: blocks.page(tx, scope, wanted, BlockFilter())
            )
            == []
        )
