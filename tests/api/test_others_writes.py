"""One user's view does not change while another user writes.

No list, count, time or score depends on the other's writes.
"""

import io
import json
import re
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from ricordo.domain.ids import new_id
from tests.campaigns.sizes import short_and_long
from tests.conftest import BOTH
from tests.seams.http import Wire
from tests.seams.people import EVERY_USERS, World, bearer, world_on
from tests.seams.routes import Cell, cells_of
from tests.seams.server import LIMIT

SEARCHES = {
    "/v1/messages/search",
    "/v1/agents/messages/search",
    "/v1/passages/search",
    "/users/{user_id}/memories/search",
}
# Values that contain the time of the request, and form values that are new each time.
OF_THE_MOMENT = re.compile(
    r'"until":\s*"[^"]*"|name="otid" value="[^"]*"|"created_at":\s*"[^"]*"(?=[^{}]*"mcp_servers")'
)
MADE_AT = re.compile(rb'"made_at": "[^"]*"')
UUID = re.compile(r"(\w+-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EXPORT = "GET /v1/agents/{agent_id}/export"
WORDS = ("vuqkzoqada", "passage", "whisper", "quartz", "noted", "imported")
# The kinds of another user's ids that are tried as the cursor of a list.
CURSORS = (
    "message_id",
    "conversation_id",
    "run_id",
    "step_id",
    "passage_id",
    "diff_id",
    "batch_id",
    "folder_id",
)


@pytest.fixture(scope="module", params=[BOTH[0], pytest.param(BOTH[1], marks=pytest.mark.soak)])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with world_on(tmp_path_factory.mktemp("others"), request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def cells(world: World) -> list[Cell]:
    every = [cell for cell in cells_of(world.server.app) if cell.scopes]
    return [cell for cell in every if cell.method == "GET" or cell.path in SEARCHES]


def values_of(world: World) -> dict[str, str]:
    return {"group_id": "group-none", **world.shared, **world.own, "schema_name": "human"}


def answers(world: World, cells: list[Cell]) -> dict[str, Any]:
    """Return Ada's responses on every route that reads."""
    found = {}
    for cell in cells:
        answer = cell.ask(world.http, values_of(world), bearer(world.ada))
        name = f"{cell.method} {cell.path}"
        if name == EXPORT:
            shown: Any = without_export_time(answer.json())
        else:
            shown = (
                OF_THE_MOMENT.sub("", answer.text)
                if answer.content[:2] != b"PK"
                else contents(answer.content)
            )
        found[name] = (answer.status_code, shown)
    return found


def settled_answers(
    world: World, cells: list[Cell], last: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the answers once all texts have vectors, and nothing else changed."""
    deadline = time.monotonic() + LIMIT
    while True:
        embed_all(world, deadline)
        found = answers(world, cells)
        if found == last:
            return found
        last = found
        assert time.monotonic() < deadline, "the responses still change"


def embed_all(world: World, deadline: float) -> None:
    """Compute the vectors of all texts, which would otherwise take half a minute.

    Until then a search compares words only.
    """
    hurry = text(
        "UPDATE jobs SET not_before = 0 WHERE kind = 'search.flush' AND status = 'waiting'"
    )
    kinds = "'search.flush', 'search.embed'"
    waiting = text(
        f"SELECT id FROM jobs WHERE kind IN ({kinds}) AND status IN ('waiting', 'running')"  # noqa: S608
    )
    while world.server.read(lambda tx: tx.first(waiting)):
        world.server.write(lambda tx: tx.run(hurry))
        time.sleep(0.01)
        assert time.monotonic() < deadline, "some texts still have no vectors"


def contents(packed: bytes) -> dict[str, bytes]:
    """Return the files of a zip archive, without the time of the request."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: MADE_AT.sub(b"", archive.read(name)) for name in archive.namelist()}


def without_export_time(exported: Wire) -> Wire:
    return {name: value for name, value in exported.items() if name != "created_at"}


def write(world: World, key: str, number: int) -> None:
    """Let another user write something, in one of the possible ways."""
    agent, archive = world.shared["agent_id"], world.shared["archive_id"]
    word = WORDS[number % len(WORDS)]
    words = f"{word} {word} {number} quartz"
    match number % 6:
        case 0:
            world.server.says(f"Noted {words}.")
            said = {"messages": [{"role": "user", "content": f"I say {words}."}]}
            world.ask(key, "POST", f"/v1/agents/{agent}/messages", json=said)
        case 1:
            body = {"text": words, "tags": [f"tag-{number}"]}
            world.ask(key, "POST", f"/v1/agents/{agent}/archival-memory", json=body)
        case 2:
            world.ask(
                key,
                "POST",
                f"/v1/archives/{archive}/passages/batch",
                json={"passages": [{"text": words}] * 3},
            )
        case 3:
            world.ask(
                key,
                "PUT",
                f"/users/eve/blocks/diary{number % 4}",
                json={"body": words, "policy": "direct"},
            )
        case 4:
            talk = world.ask(
                key,
                "POST",
                "/v1/conversations/",
                params={"agent_id": agent},
                json={"summary": words},
            )
            past = {
                "messages": [{"role": "user", "content": words}] * 3,
                "conversation_id": talk["id"],
            }
            world.ask(key, "POST", f"/v1/agents/{agent}/messages/import", json=past)
        case _:
            world.ask(key, "PUT", f"/users/eve/workspace/files/{number}.txt", content=words)


@pytest.mark.parametrize("count", short_and_long(18, 200))
def test_one_users_responses_do_not_change_while_another_user_writes(
    world: World, cells: list[Cell], count: int
) -> None:
    key = world.key("eve", scopes=EVERY_USERS)
    before = settled_answers(world, cells)
    assert sum(status == 200 for status, _ in before.values()) > 100
    for number in range(count):
        write(world, key, number)
    after = settled_answers(world, cells, before)
    moved = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert moved == {}


@pytest.mark.parametrize(
    "is_whole",
    [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.soak)],
)
def test_another_users_id_as_a_cursor_acts_like_an_unknown_id(
    world: World, cells: list[Cell], is_whole: bool
) -> None:
    key = world.key("eve", scopes=EVERY_USERS)
    for number in range(6):
        write(world, key, number)
    own = values_of(world) | {"user_id": "eve"}
    document = world.server.app.openapi()["paths"]
    lists = [
        cell
        for cell in cells
        if {"before", "after"}
        & {
            given["name"]
            for given in document.get(cell.path, {}).get("get", {}).get("parameters", ())
        }
        and not {"conversation_id", "run_id", "step_id", "block_id"}
        & set(re.findall(r"\{(\w+)", cell.path))
    ]
    assert len(lists) > 20
    for place, cell in enumerate(lists):
        for mark in ("before", "after") if is_whole else (("before", "after")[place % 2],):
            kinds = CURSORS if is_whole else CURSORS[place // 2 % 2 :: 2]
            theirs = [asked(world, key, cell, own, {mark: world.own[name]}) for name in kinds]
            random_ids = [new_id(world.own[name].rsplit("-", 5)[0]) for name in kinds]
            nobodys = [asked(world, key, cell, own, {mark: id}) for id in random_ids]
            assert theirs == nobodys, (cell, mark)


def asked(
    world: World, key: str, cell: Cell, values: dict[str, str], params: dict[str, str]
) -> tuple[int, Any]:
    """Ask for a page of a list as another user; an id in an error is left out."""
    parts = cell.parts(values)
    query = {
        name: value for name, value in parts.pop("params").items() if name != "conversation_id"
    }
    world.http.cookies.clear()
    answer = world.http.request(**parts, params=query | params, headers=bearer(key))
    text = UUID.sub("ID", answer.text) if answer.status_code >= 400 else answer.text
    try:
        return answer.status_code, json.loads(text)
    except ValueError:
        return answer.status_code, OF_THE_MOMENT.sub("", text)
