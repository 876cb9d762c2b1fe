"""Conversations: who may see them, how they are listed, and histories that forks share."""

from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest
from sqlalchemy import select

from ricordo.domain.agent import Agent, Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.message import EventPart, ImagePart, Message, Part, TextPart
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.storage import conversation_versions, conversations, deletion, messages
from ricordo.storage.conversations import ConversationFilter, OrderBy
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.core_tables import messages as message_rows
from ricordo.storage.schema.core_tables import organizations
from tests.seams import make
from tests.seams.stores import START

ALL = Page(limit=1000, order="asc")
Order = Literal["asc", "desc"]
ORDERS: tuple[Order, ...] = ("asc", "desc")


async def stored_thread(store: Store, agent: Agent, **fields: Any) -> Conversation:
    """Store a conversation with a system message."""
    id = fields.pop("id", new_id("conv"))
    system = make.message(agent, "You remember.", "system", conversation_id=id)
    window = (system.id, *fields.pop("window", ()))
    thread = make.conversation(
        agent, id=id, **{"is_default": False, "window": window, "message_count": 1} | fields
    )
    await store.write(lambda tx: conversations.insert_one(tx, thread))
    await make.stored_messages(store, system)
    return thread


async def said_in(
    store: Store, agent: Agent, thread: Conversation, *texts: str, **fields: Any
) -> list[Message]:
    """Store a message for each text; all have the same time unless `times` says otherwise."""
    new = [make.message(agent, text, conversation_id=thread.id, **fields) for text in texts]
    return await make.stored_messages(store, *new)


async def fork(
    store: Store, agent: Agent, source: Conversation, up_to: Message, **fields: Any
) -> Conversation:
    return await stored_thread(store, agent, forked_from=source.id, forked_seq=up_to.seq, **fields)


async def listed(store: Store, scope: Scope, wanted: Page = ALL, **which: Any) -> list[str]:
    found = await store.read(
        lambda tx: conversations.page(tx, scope, wanted, ConversationFilter(**which))
    )
    return [thread.id for thread in found]


async def history(
    store: Store, scope: Scope, thread: Conversation, wanted: Page = ALL
) -> list[str]:
    found = await store.read(lambda tx: conversations.page_of_history(tx, scope, thread, wanted))
    return [message.text for message in found if message.role != "system"]


async def foreign(store: Store) -> Scope:
    row = {"id": new_id("org"), "name": "Another", "created_at": START}
    await store.write(lambda tx: tx.run(organizations.insert(), row))
    return Scope(row["id"])


async def test_a_conversation_is_hidden_from_other_organizations_and_users_and_after_deletion(
    store: Store, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    thread = await stored_thread(store, agent, user_id="user-ada")
    stranger = await foreign(store)

    def require(tx: Transaction, scope: Scope = scope, id: str = thread.id) -> Conversation:
        return conversations.require(tx, scope, id)

    assert await store.read(require) == thread
    assert await store.read(lambda tx: require(tx, replace(scope, subject_id="user-ada"))) == thread
    for who, id in (
        (stranger, thread.id),
        (replace(scope, subject_id="user-bob"), thread.id),
        (scope, "conv-nothing"),
    ):
        with pytest.raises(NotFound, match=f"Conversation with ID {id} not found"):
            await store.read(lambda tx, who=who, id=id: require(tx, who, id))  # type: ignore[misc]
    assert await listed(store, stranger) == []
    assert await listed(store, replace(scope, subject_id="user-bob")) == []
    assert await listed(store, replace(scope, subject_id="user-ada")) == [thread.id]
    await store.write(lambda tx: deletion.hide_agent(tx, scope, agent.id))
    with pytest.raises(NotFound):
        await store.read(require)
    assert await listed(store, scope) == []


@pytest.mark.parametrize("order_by", ["created_at", "last_message_at", "last_run_completion"])
async def test_pages_of_conversations_have_each_one_once_in_every_order(
    store: Store, scope: Scope, order_by: OrderBy
) -> None:
    agent = (await make.stored_agent(store)).agent
    times = [(1, None, None), (2, 9, 5), (3, 3, None), (3, 9, 7), (4, None, 5)]
    made = [
        (
            await stored_thread(
                store, agent, created_at=made, last_message_at=said, last_run_ended_at=ran
            )
        ).id
        for made, said, ran in times
    ]
    places = {
        "created_at": [0, 1, 2, 3, 4],
        "last_message_at": [0, 2, 4, 1, 3],
        "last_run_completion": [0, 2, 1, 4, 3],
    }[order_by]
    ascending = [made[place] for place in places]

    for order, limit in product(ORDERS, (1, 2, 5)):
        expected = ascending if order == "asc" else ascending[::-1]
        pages: list[str] = []
        while page := await listed(
            store, scope, Page(limit, None, pages[-1] if pages else None, order), order_by=order_by
        ):
            pages += page
        assert pages == expected
        behind = await listed(store, scope, Page(2, expected[3], None, order), order_by=order_by)
        assert behind == expected[1:3]


async def test_the_history_of_a_fork_has_the_messages_before_it_and_its_own(
    store: Store, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    root = await stored_thread(store, agent)
    one, two = await said_in(store, agent, root, "1", "2")
    first = await fork(store, agent, root, two)
    await said_in(store, agent, root, "only in the root")
    (three,) = await said_in(store, agent, first, "3")
    second = await fork(store, agent, first, three)
    await said_in(store, agent, first, "only in the first")
    await said_in(store, agent, second, "4")
    early = await fork(store, agent, second, one)
    await said_in(store, agent, early, "5")

    assert await history(store, scope, root) == ["1", "2", "only in the root"]
    assert await history(store, scope, first) == ["1", "2", "3", "only in the first"]
    assert await history(store, scope, second) == ["1", "2", "3", "4"]
    assert await history(store, scope, early) == ["1", "5"]
    # Each conversation has only its own system message.
    whole = await store.read(lambda tx: conversations.page_of_history(tx, scope, second, ALL))
    assert [message.id for message in whole if message.role == "system"] == [second.window[0]]

    def shared(tx: Transaction) -> list[int]:
        pairs = (
            (root, one.seq),
            (root, two.seq),
            (first, three.seq),
            (second, three.seq),
            (second, one.seq),
        )
        return [conversations.count_shared(tx, thread, up_to) for thread, up_to in pairs]

    assert await store.read(shared) == [1, 2, 3, 3, 1]
    assert await store.read(lambda tx: conversations.shared_by(tx, root)) == ()
    assert await store.read(lambda tx: conversations.shared_by(tx, early)) == (
        (second.id, one.seq),
        (first.id, one.seq),
        (root.id, one.seq),
    )
    forks = await store.read(lambda tx: conversations.forks_of(tx, first))
    assert forks == {second.id: three.seq}


async def test_pages_of_a_forks_history_have_every_message_once_in_both_orders(
    store: Store, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    root = await stored_thread(store, agent)
    # Some messages have equal times, and some were stored later though they are older, like
    # imported ones.
    *_, last = await said_in(store, agent, root, *"abcdef", created_at=START + 5)
    early = await said_in(store, agent, root, *"gh", created_at=START + 1)
    first = await fork(store, agent, root, max(last, *early, key=lambda message: message.seq))
    (*_, last) = await said_in(store, agent, first, *"ijk", created_at=START + 5)
    second = await fork(store, agent, first, last)
    await said_in(store, agent, second, *"lm", created_at=START + 3)
    expected = list("ghlmabcdefijk")

    def walk(tx: Transaction, order: Order, limit: int, *, is_backwards: bool) -> list[str]:
        """Read page after page, from one end to the other.

        Backwards it starts before the last message, which is then on no page.
        """
        whole = conversations.page_of_history(tx, scope, second, Page(1000, order=order))
        read = whole[-1:] if is_backwards else []
        while True:
            mark = None if not read else read[0].id if is_backwards else read[-1].id
            before, after = (mark, None) if is_backwards else (None, mark)
            page = conversations.page_of_history(
                tx, scope, second, Page(limit, before, after, order), is_said
            )
            if not page:
                return [message.text for message in read if is_said(message)]
            assert len(page) <= limit
            read = [*page, *read] if is_backwards else [*read, *page]

    for order, limit, is_backwards in product(ORDERS, (1, 4, 50), (False, True)):
        found = await store.read(
            lambda tx, o=order, n=limit, b=is_backwards: walk(tx, o, n, is_backwards=b)
        )  # type: ignore[misc]
        assert found == (expected if order == "asc" else expected[::-1]), (
            order,
            limit,
            is_backwards,
        )


def is_said(message: Message) -> bool:
    return message.role == "user"


async def test_a_conversation_without_a_title_is_named_by_the_first_text_that_its_user_wrote(
    store: Store,
) -> None:
    agent = (await make.stored_agent(store)).agent
    thread = await stored_thread(store, agent, user_id="user-1", last_message_at=START)
    picture = ImagePart("image/png", data="AAAA")
    starts: list[tuple[Part, ...]] = [
        (EventPart('{"type": "login"}', event="alert"),),
        (picture,),
        (TextPart('Is "kind":"event" JSON?'),),
        (TextPart("Later."),),
    ]
    new = [make.message(agent, parts=parts, conversation_id=thread.id) for parts in starts]
    await make.stored_messages(store, *new)
    names = await store.read(
        lambda tx: conversation_versions.own_conversations(tx, Scope(), "user-1")
    )
    assert [entry.name for entry in names] == ['Is "kind":"event" JSON?']
    said = await store.read(lambda tx: tx.all(select(message_rows.c.id).where(messages.IS_SAID)))
    assert {row.id for row in said} == {message.id for message in new if message.is_said}
