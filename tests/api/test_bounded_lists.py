"""Lists of long messages, passages and proposals.

A page has at most the allowed bytes of a list, and the next page continues.
"""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread, serving

LIST = 1024 * 1024 // 8
# Two items exceed the limit of a list, each alone. Of the others, several fit on one page.
SIZES = [1000, 60_000, 50_000, 30_000, 200_000, 200_000, 10, 70_000, 70_000, 10, 90_000, 5]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("data"), max_answer_mb=1) as server:
        yield server


def text_of(number: int, size: int) -> str:
    return f"{number} é ".ljust(size, "x")[:size]


def pages(
    ask: Callable[..., list[Json]], cursor: str = "after", limit: int = 100
) -> list[list[Json]]:
    """Return all pages, read as clients do: until one is empty."""
    found: list[list[Json]] = []
    mark: dict[str, str] = {}
    while page := ask(limit=limit, **mark):
        found.append(page)
        mark = {cursor: page[0 if cursor == "before" else -1]["id"]}
    return found


def require_bounded(found: list[list[Json]], size: Callable[[Json], int], ids: list[str]) -> None:
    """Require that no item is missing or repeated, and that each page fits or has one item."""
    assert [item["id"] for page in found for item in page] == ids
    assert all(len(page) == 1 or sum(map(size, page)) <= LIST for page in found)
    assert len(found) > 4, "all items together are too long for one page"
    following = [size(page[0]) for page in found[1:]]
    assert all(
        sum(map(size, page)) + more + 4000 > LIST
        for page, more in zip(found, following, strict=False)
    ), "each page has as many items as fit"


def test_pages_of_long_passages_end_early_and_the_next_page_continues(http: httpx2.Client) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL}))["id"]
    path = f"/v1/agents/{agent}/archival-memory"
    ids = [
        ok(http.post(path, json={"text": text_of(number, size)}))[0]["id"]
        for number, size in enumerate(SIZES)
        if size
    ]

    def ask(**query: Any) -> list[Json]:
        return ok(http.get(path, params=query))

    for cursor, ascending in (("after", True), ("after", False), ("before", True)):
        found = pages(
            lambda ascending=ascending, **query: ask(ascending=ascending, **query), cursor
        )
        if cursor == "before":
            first = ask(ascending=True, before=ids[-1], limit=100)
            assert [one["id"] for one in first] == ids[len(ids) - 1 - len(first) : -1], (
                "the page must have the items nearest to the cursor"
            )
            continue
        require_bounded(
            found, lambda one: len(one["text"].encode()), ids if ascending else ids[::-1]
        )


def test_pages_of_long_messages_end_early_and_continue_also_in_forks(http: httpx2.Client) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL}))["id"]
    talk = ok(http.post("/v1/conversations/", params={"agent_id": agent}, json={}))["id"]
    past = [{"role": "user", "content": text_of(number, size)} for number, size in enumerate(SIZES)]
    for message in past:
        ok(
            http.post(
                f"/v1/agents/{agent}/messages/import",
                json={"messages": [message], "conversation_id": talk},
            )
        )
    fork = ok(http.post(f"/v1/conversations/{talk}/fork"))["id"]
    own = [{"role": "user", "content": text_of(99, 90_000)}]
    ok(
        http.post(
            f"/v1/agents/{agent}/messages/import", json={"messages": own, "conversation_id": fork}
        )
    )
    for id, expected in ((talk, past), (fork, [*past, *own])):
        for order in ("asc", "desc"):

            def ask(id: str = id, order: str = order, **query: Any) -> list[Json]:
                path = f"/v1/conversations/{id}/messages"
                kinds = {"include_return_message_types": ["user_message"]}
                return ok(http.get(path, params={"order": order, **kinds, **query}))

            whole = [one for page in pages(ask, limit=1) for one in page]
            texts = [one["content"] for one in whole]
            contents = [str(one["content"]) for one in expected]
            assert texts == (contents if order == "asc" else contents[::-1])
            require_bounded(
                pages(ask), lambda one: len(one["content"].encode()), [one["id"] for one in whole]
            )


def test_a_filtered_page_of_messages_is_empty_only_at_the_end(http: httpx2.Client) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL}))["id"]
    long = [{"role": "assistant", "content": text_of(number, 100_000)} for number in range(5)]
    past = [{"role": "user", "content": "First."}, *long, {"role": "user", "content": "Last."}]
    talk = ok(http.post("/v1/conversations/", params={"agent_id": agent}, json={}))["id"]
    for message in past:
        ok(
            http.post(
                f"/v1/agents/{agent}/messages/import",
                json={"messages": [message], "conversation_id": talk},
            )
        )
    query = {"include_return_message_types": ["user_message"], "order": "desc"}

    def ask(**more: Any) -> list[Json]:
        return ok(http.get(f"/v1/conversations/{talk}/messages", params={**query, **more}))

    assert [one["content"] for page in pages(ask) for one in page] == ["Last.", "First."]


def test_pages_of_long_proposals_end_early_and_the_next_page_continues(http: httpx2.Client) -> None:
    long = [60_000, 50_000, 70_000, 70_000, 90_000, 99_000, 20_000]
    for number, size in enumerate(long):
        body = {"old_string": "", "new_string": text_of(number, size), "reasoning": "New."}
        ok(http.post(f"/users/ada/blocks/notes {number}/propose", json=body))

    def ask(**query: Any) -> list[Json]:
        return ok(http.get("/users/ada/diffs", params=query))

    whole = [one for page in pages(ask, limit=1) for one in page]
    assert [one["body"] for one in whole] == [
        text_of(number, size) for number, size in enumerate(long)
    ][::-1]
    assert all(one["diff"].count("\n+") == 2 for one in whole)
    require_bounded(pages(ask), lambda one: len(one["body"]), [one["id"] for one in whole])
