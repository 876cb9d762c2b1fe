"""Concurrent requests about one block, over HTTP, on both databases.

They decide, edit, delete and erase.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import httpx2
import pytest

from tests.seams.http import ok, propose, put
from tests.seams.server import ServerInThread, serving
from tests.support import postgres

TEXT = "one\ntwo\nthree"
BLOCK, DIFFS = "/users/ada/blocks/day", "/users/ada/diffs"
Ask = Callable[..., httpx2.Response]
MEETS: dict[str, Ask] = {
    "reject": lambda id, http: http.post(f"{BLOCK}/diffs/{id}/reject", json={"reason": "No."}),
    "approve": lambda id, http: http.post(f"{BLOCK}/diffs/{id}/approve"),
    "approve all": lambda _id, http: http.post(f"{DIFFS}/approve", json={"all": True}),
    "edit": lambda _id, http: http.put(BLOCK, json={"body": TEXT.replace("two", "2")}),
    "edit beside": lambda _id, http: http.put(BLOCK, json={"body": TEXT.replace("one", "1")}),
    "delete": lambda _id, http: http.delete(BLOCK),
    "rename": lambda _id, http: http.patch(BLOCK, json={"label": "week"}),
    "forget": lambda _id, http: http.delete("/users/ada"),
}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerInThread]:
    url = postgres.server().new_database() if request.param == "postgresql" else None
    with serving(tmp_path, **({"database_url": url} if url else {})) as running:
        yield running
    if url:
        postgres.server().drop(url)


def at_once(server: ServerInThread, *asks: Callable[[httpx2.Client], httpx2.Response]) -> list[int]:
    """Send these requests at once, each on a separate connection; return their statuses."""
    together = Barrier(len(asks))

    def make(ask: Callable[[httpx2.Client], httpx2.Response]) -> int:
        with server.http() as http:
            ok(http.get("/v1/health/"))
            together.wait()
            return ask(http).status_code

    with ThreadPoolExecutor(len(asks)) as threads:
        return list(threads.map(make, asks))


def test_what_meets_an_approval_comes_before_or_behind_it(server: ServerInThread) -> None:
    with server.http() as http:
        for (name, ask), twice in itertools.product(MEETS.items(), (False, True)):
            http.delete(BLOCK), http.delete("/users/ada/blocks/week")
            put(http, "ada", "day", TEXT)
            id = propose(http, "ada", "day", "two", "TWO", agent_id="tutor")
            asks = [MEETS["approve"], ask, ask] if twice else [MEETS["approve"], ask]
            statuses = at_once(server, *(partial(ask, id) for ask in asks))
            assert set(statuses) <= {200, 202, 404, 409}, (name, statuses)
            if name == "forget":
                continue
            listed = {one["id"]: one for one in ok(http.get(DIFFS, params={"status": "all"}))}
            blocks = {block["label"]: block for block in ok(http.get("/users/ada/blocks"))}
            text = "".join(block["body"] for block in blocks.values())
            status = listed[id]["status"]
            assert status in ("approved", "rejected", "conflicted", "expired", "open"), (
                name,
                statuses,
            )
            assert (status == "expired") <= (not blocks), (name, statuses)
            if name not in ("edit", "edit beside"):  # These writes may overwrite the approved text.
                assert ("TWO" in text) == (status == "approved" and bool(blocks)), (
                    name,
                    statuses,
                    text,
                )


def test_of_twenty_writers_at_once_each_keeps_what_it_wrote(server: ServerInThread) -> None:
    with server.http() as http:
        put(http, "ada", "day", "\n\n".join(f"line {number}" for number in range(20)))

    def writer(number: int) -> Callable[[httpx2.Client], httpx2.Response]:
        def write(own: httpx2.Client) -> httpx2.Response:
            for _ in range(3):
                read = ok(own.get(BLOCK))
                lines = read["body"].split("\n")
                lines = [
                    f"{line}+" if line.rstrip("+") == f"line {number}" else line for line in lines
                ]
                done = own.put(BLOCK, json={"body": "\n".join(lines), "version": read["version"]})
                assert done.status_code == 200, done.text
            return done

        return write

    assert set(at_once(server, *(writer(number) for number in range(20)))) == {200}
    with server.http() as http:
        lines = ok(http.get(BLOCK))["body"].split("\n\n")
        assert [line.rstrip("+") for line in lines] == [f"line {number}" for number in range(20)]
        assert all(line.endswith("+++") for line in lines)
        assert len(ok(http.get(f"{BLOCK}/history", params={"limit": 100}))) == 61
