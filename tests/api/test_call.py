"""Paging with the official client, and the form of responses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import httpx2
import pytest

from ricordo.domain.ids import new_id
from tests.seams.server import MODEL, StrictLetta


class Shelf(NamedTuple):
    """Objects that were created one after the other, and the client's method that lists them."""

    ids: list[str]
    lister: Callable[..., Any]


def agents_shelf(client: StrictLetta) -> Shelf:
    tag = new_id("tag")
    ids = [
        client.agents.create(model=MODEL, tags=[tag], include_base_tools=False).id for _ in range(7)
    ]
    return Shelf(ids, lambda **query: client.agents.list(tags=[tag], **query))


def blocks_shelf(client: StrictLetta) -> Shelf:
    label = new_id("label")
    ids = [client.blocks.create(label=label, value=str(n)).id for n in range(7)]
    return Shelf(ids, lambda **query: client.blocks.list(label=label, **query))


def blocks_of_agent_shelf(client: StrictLetta) -> Shelf:
    made = client.agents.create(
        model=MODEL, memory_blocks=[{"label": f"b{n}", "value": ""} for n in range(7)]
    )
    return Shelf(
        [block.id or "" for block in made.blocks],
        lambda **query: client.agents.blocks.list(made.id, **query),
    )


def runs_shelf(client: StrictLetta) -> Shelf:
    made = client.agents.create(model=MODEL)
    ids = [client.agents.messages.create(made.id, input="Hello.").usage.run_ids for _ in range(7)]
    return Shelf(
        [run_ids[0] for run_ids in ids if run_ids],
        lambda **query: client.runs.list(agent_id=made.id, **query),
    )


@pytest.fixture(
    params=(agents_shelf, blocks_shelf, blocks_of_agent_shelf, runs_shelf), scope="module"
)
def shelf(request: pytest.FixtureRequest, running_client: StrictLetta) -> Shelf:
    made: Shelf = request.param(running_client)
    return made


def test_the_client_pages_through_a_list_in_both_orders(shelf: Shelf) -> None:
    backwards = shelf.ids[::-1]

    assert [item.id for item in shelf.lister(limit=2, order="asc")] == shelf.ids
    assert [item.id for item in shelf.lister(limit=3, order="desc")] == backwards
    assert [item.id for item in shelf.lister(limit=3)] == backwards
    assert [
        item.id for item in shelf.lister(limit=2, order="asc", after=shelf.ids[2])
    ] == shelf.ids[3:]
    assert [
        item.id for item in shelf.lister(limit=2, order="desc", after=shelf.ids[2])
    ] == shelf.ids[:2][::-1]


def test_before_returns_the_items_next_to_the_cursor_first(shelf: Shelf) -> None:
    for order, ids in (("asc", shelf.ids), ("desc", shelf.ids[::-1])):
        *ahead, last = ids
        listed = shelf.lister(limit=4, order=order, before=last)
        pages = [[item.id for item in page.items] for page in listed.iter_pages()]
        assert pages[0] == ahead[-4:]
        assert [id for page in reversed(pages) for id in page] == ahead


def test_passages_can_be_paged_with_after_and_before(client: StrictLetta) -> None:
    made = client.agents.create(model=MODEL)
    ids = [client.agents.passages.create(made.id, text=f"Fact {n}")[0].id for n in range(5)]

    def page(**query: Any) -> list[str | None]:
        return [passage.id for passage in client.agents.passages.list(made.id, **query)]

    assert page() == ids
    assert page(ascending=False) == ids[::-1]
    assert page(limit=2) == ids[:2]
    assert page(limit=2, after=ids[1]) == ids[2:4]
    assert page(limit=2, after=ids[3]) == ids[4:]
    assert page(limit=2, before=ids[4]) == ids[2:4]
    assert page(limit=2, ascending=False, after=ids[3]) == ids[1:3][::-1]


def test_after_and_before_can_be_combined_and_an_unknown_cursor_lists_nothing(
    client: StrictLetta,
) -> None:
    shelf = blocks_shelf(client)
    between = shelf.lister(order="asc", after=shelf.ids[1], before=shelf.ids[5])
    assert [item.id for item in between.items] == shelf.ids[2:5]
    assert shelf.lister(after=new_id("block")).items == []
    assert shelf.lister(before=new_id("block")).items == []


def test_a_page_has_the_default_size_unless_another_size_is_asked_for(
    client: StrictLetta, http: httpx2.Client
) -> None:
    made = client.agents.create(
        model=MODEL, memory_blocks=[{"label": f"b{n}", "value": ""} for n in range(102)]
    )
    for path, default in (("/v1/blocks/", 50), (f"/v1/agents/{made.id}/core-memory/blocks", 100)):
        assert len(http.get(path).json()) == default
        assert len(http.get(path, params={"limit": 101}).json()) == 101


def test_invalid_paging_or_filter_parameters_are_refused(http: httpx2.Client) -> None:
    agent = new_id("agent")
    lists = ("agents/", "blocks/", "tools/", "runs/", "steps/", f"agents/{agent}/messages")
    for path in (*lists, f"agents/{agent}/archival-memory"):
        for name, value in (
            ("limit", 0),
            ("limit", -1),
            ("limit", 1001),
            ("limit", "ten"),
            ("order", "up"),
        ):
            answer = http.get(f"/v1/{path}", params={name: value})
            assert (answer.status_code, answer.json()["trace_id"]) == (422, ""), (path, name, value)
            assert f"query.{name}: " in answer.json()["detail"]
    for path in ("blocks/?colour=x", "steps/?trace=x", "runs/?identity_id=x"):
        answer = http.get(f"/v1/{path}")
        assert answer.status_code == 422, path
        assert "is not supported by this version" in answer.json()["detail"]
