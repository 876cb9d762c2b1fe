"""Pages: any cursor, order and size, against a list cut by hand, with many items made at the same moment."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.storage import blocks, messages
from ricordo.storage.blocks import BlockFilter
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.seams.stores import START

SIZE = 14
places = st.none() | st.integers(0, SIZE - 1)


def cut(items: list[Message], wanted: Page) -> list[Message]:
    """The page, by the words of its definition: between the cursors, next to the one that is given."""
    ordered = items if wanted.order == "asc" else items[::-1]
    place = {item.id: index for index, item in enumerate(ordered)}
    first = place[wanted.after] + 1 if wanted.after else 0
    end = place[wanted.before] if wanted.before else len(ordered)
    between = ordered[first : max(end, first)]
    return between[-wanted.limit :] if wanted.before and not wanted.after else between[: wanted.limit]


@pytest.mark.parametrize("times", [(0,) * SIZE, (0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4), (4, 1, 1, 3, 0, 2, 2) * 2])
async def test_every_page_is_the_one_that_a_list_would_give(
    store: SqliteStore, scope: Scope, times: tuple[int, ...]
) -> None:
    agent = (await make.stored_agent(store, make.agent(created_at=START - 1))).agent
    new = [make.message(agent, str(number), created_at=START + at) for number, at in enumerate(times)]
    stored = await make.stored_messages(store, *new)
    items = sorted(stored, key=lambda message: (message.created_at, message.seq))

    def check(tx: Transaction) -> None:
        @given(st.integers(1, SIZE + 2), places, places, st.sampled_from(["asc", "desc"]))
        def every_page(limit: int, before: int | None, after: int | None, order: Literal["asc", "desc"]) -> None:
            first, last = (None if place is None else items[place].id for place in (before, after))
            wanted = Page(limit, before=first, after=last, order=order)
            assert messages.page(tx, scope, wanted, role="user") == cut(items, wanted)

        every_page()

    await store.read(check)


async def test_a_cursor_that_is_gone_gives_an_empty_page(store: SqliteStore, scope: Scope) -> None:
    await make.stored_blocks(store, make.block())
    for wanted in (Page(after="block-gone"), Page(before="block-gone")):
        assert await store.read(lambda tx, wanted=wanted: blocks.page(tx, scope, wanted, BlockFilter())) == []
