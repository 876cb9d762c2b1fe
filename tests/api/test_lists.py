"""Each list of the document costs a few statements, whatever its length."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from ricordo.storage.engine.store import Transaction
from tests.seams.http import ok
from tests.seams.people import OPERATOR, World, bearer, open_world
from tests.seams.routes import TEXT, Cell, cells_of
from tests.seams.server import MODEL
from tests.seams.stores import count_statements

MOST = 4
# Whole agents take three more statements than their page. One of them has folders, which take five
# more for all agents: the folders, the files opened in a turn, the newest files, the open files,
# and the beginnings of their texts.
FOLDERS = 5
GROUPS = 5  # the groups, their members, blocks, counters, and read positions
MORE = {
    "/v1/agents/": 5 + FOLDERS + GROUPS,  # one more where calls wait for an answer
    "/v1/groups/": GROUPS,
    "/v1/agents/{agent_id}/sleeptime/transcripts": 7,  # agent and pair, transcripts, their runs, versions, proposals
    "/v1/archives/{archive_id}/agents": 5 + FOLDERS,  # one of the five reads the archive
    "/v1/blocks/{block_id}/agents": 5 + FOLDERS,  # one of the five reads the block
    "/v1/identities/{identity_id}/agents": 5 + FOLDERS,  # one of the five reads the user
    # The agent in three statements, its folders, the opened files, the newest files, all files, and
    # the beginning of each.
    "/v1/agents/{agent_id}/files": 8,
    # The folder, its hidden files, the chunks' sizes, those that fit, and their files.
    "/v1/folders/{folder_id}/passages": 5,
    "/v1/sources/{folder_id}/passages": 5,
    "/v1/agents/{agent_id}/archival-memory": 5,  # the agent in three, the passages' sizes, those that fit
    "/users/{user_id}/blocks/{label:path}/diffs": 5,  # user, chain, block, proposals, texts
    # The owner and its chain, the skill, its proposals and their texts.
    "/v1/users/{user_id}/skills/{skill_name}/proposals": 5,
    "/v1/agents/{agent_id}/skills/{skill_name}/proposals": 5,
    # The user, the courses, the user's agents, their choices and facts.
    "/v1/users/{user_id}/learning": 5,
    # The course, its students, their last messages, proposals and failed tasks.
    "/v1/courses/{course_name}/students": 5,
    "/v1/blocks/{block_id}/blame": 5,  # all versions with their texts
    "/v1/blocks/{block_id}/compare": 7,  # the block, its two versions, and a text in three statements each
    "/users/{user_id}/blocks/{label:path}/compare": 8,  # the same, of a block that is found by its label
    "/users/{user_id}/blocks/{label:path}/blame": 7,  # the same, of a block that is found by its label
}
SEVERAL = 6
# The parameters that hold the id of a page's neighbour.
CURSORS = ("after", "before", "cursor")
UNKNOWN = "00000000-0000-4000-8000-00000000dead"
# Lists whose pages begin at a value, which need not be that of an item.
BY_VALUE = ("/v1/tags/",)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("lists")) as opened:
        yield opened


def lists_of(world: World) -> list[Cell]:
    """Return the routes whose response is an array, or a page of at most `limit` items."""
    document = world.server.app.openapi()

    def is_list(cell: Cell) -> bool:
        operation = (
            document["paths"].get(cell.path.replace(":path", ""), {}).get(cell.method.lower(), {})
        )
        content = operation.get("responses", {}).get("200", {}).get("content", {})
        limited = any(given["name"] == "limit" for given in operation.get("parameters", ()))
        return (
            limited or content.get("application/json", {}).get("schema", {}).get("type") == "array"
        )

    return [cell for cell in cells_of(world.server.app) if cell.method == "GET" and is_list(cell)]


def add_one_more(world: World, number: int) -> None:
    """Make one more object of each listed kind, in addition to the objects of the world."""

    def ask(method: str, path: str, **body: Any) -> Any:
        return world.ask(OPERATOR, method, path, json=body)

    known, name = world.own | world.shared, f"more {number}"
    agent = known["agent_id"]
    block = ask("POST", "/v1/blocks/", label=f"more_{number}", value=name, tags=[name])
    ask("PATCH", f"/v1/agents/{agent}/core-memory/blocks/attach/{block['id']}")
    tool = ask("POST", "/v1/tools/", source_code=f"def more_{number}():\n    'More.'")
    ask("PATCH", f"/v1/agents/{agent}/tools/attach/{tool['id']}")
    body = {
        "model": MODEL,
        "name": name,
        "tags": [name],
        "block_ids": [known["block_id"], block["id"]],
    }
    other = ask(
        "POST",
        "/v1/agents/",
        **body,
        tools=[tool["name"]],
        memory_blocks=[{"label": "own", "value": name}],
    )
    archive = ask("POST", "/v1/archives/", name=name)
    for one in (archive["id"], known["archive_id"]):
        ask("PATCH", f"/v1/agents/{other['id']}/archives/attach/{one}")
    ask("POST", f"/v1/agents/{agent}/archival-memory", text=name, tags=[name])
    ask("POST", f"/v1/agents/{other['id']}/messages", messages=TEXT)
    ask(
        "POST",
        f"/v1/conversations/{known['conversation_id']}/messages",
        messages=TEXT,
        streaming=False,
    )
    ask(
        "POST",
        "/v1/identities/",
        name=name,
        identifier_key=name,
        identity_type="user",
        agent_ids=[other["id"]],
    )
    for kind, one in (("agents", other), ("blocks", block)):
        ask("PATCH", f"/v1/{kind}/{one['id']}/identities/attach/{known['identity_id']}")
    more = world.new_folder(f"folder {number}")
    ask("PATCH", f"/v1/agents/{agent}/folders/attach/{more['folder_id']}")
    world.key(name)
    world.new_variable(f"MORE_{number}")
    world.new_course(f"more-{number}")
    world.new_template(other["id"])
    world.new_mcp_server(f"more_{number}")
    for _ in range(2):
        world.new_schedule(world.ada)
        world.new_token(OPERATOR)
    ask("PUT", "/users/ada/blocks/diary", body=f"One {name}.\nTwo.\n")
    edit = {"old_string": "Two", "new_string": f"Three {name}", "reasoning": name}
    ask("POST", "/users/ada/blocks/diary/propose", **edit)
    ask("PUT", f"/users/ada/blocks/{number}", body=name)


@pytest.fixture(scope="module")
def costs(world: World) -> dict[str, tuple[int, int]]:
    """Return the number of statements of each list, and its number of items."""
    for number in range(SEVERAL):
        add_one_more(world, number)
    values, found = world.own | world.shared, {}
    with world.server.http() as http:
        for cell in lists_of(world):
            counts: list[int] = []
            # Background work has statements too: on a busy machine for some seconds.
            while not counts or (min(counts) > MORE.get(cell.path, MOST) and len(counts) < 12):
                time.sleep(0 if len(counts) < 3 else 0.5)
                with count_statements(world.server.runtime.store) as counted:
                    key = key_for(world, cell)
                    answer = ok(http.get(cell.parts(values)["url"], headers=bearer(key)))
                counts.append(len(counted.statements))
            lists = (
                [answer]
                if isinstance(answer, list)
                else [one for one in answer.values() if isinstance(one, list)]
            )
            found[cell.path] = min(counts), max(map(len, lists), default=0)
    return found


def test_every_list_costs_a_few_statements(costs: dict[str, tuple[int, int]]) -> None:
    over = {path: cost for path, (cost, _) in costs.items() if cost > MORE.get(path, MOST)}
    assert over == {}
    assert costs.keys() >= MORE.keys()


def test_the_measured_lists_are_long_enough_to_reveal_a_statement_for_each_item(
    costs: dict[str, tuple[int, int]],
) -> None:
    long = {path for path, (_, things) in costs.items() if things >= SEVERAL}
    assert len(long) > 30, sorted(costs.keys() - long)


def pages_of(world: World) -> list[tuple[Cell, list[str]]]:
    """Return the lists whose pages begin or end at an id, with the names of these parameters."""
    document = world.server.app.openapi()
    pages: list[tuple[Cell, list[str]]] = []
    for cell in lists_of(world):
        parameters = document["paths"][cell.path.replace(":path", "")]["get"].get("parameters", ())
        names = [one["name"] for one in parameters if one["name"] in CURSORS]
        if names and cell.path not in BY_VALUE:
            pages.append((cell, names))
    return pages


def key_for(world: World, cell: Cell) -> str:
    """Return Ada's key for lists that only a person has, and the operator's for others."""
    return world.ada if cell.path.startswith(("/api/you", "/v1/guardian")) else OPERATOR


def items_in(answer: Any) -> list[Any]:
    """Return the items of a list, or of the first list in a page."""
    if isinstance(answer, list):
        return answer
    return next((one for one in answer.values() if isinstance(one, list)), [])


@pytest.mark.usefixtures("costs")
def test_a_page_after_or_before_an_unknown_id_is_empty_or_refused(world: World) -> None:
    """A client that got the first page again would never come to the last one."""
    values = world.own | world.shared
    whole: list[str] = []
    compared = 0
    with world.server.http() as http:
        for cell, names in pages_of(world):
            headers = bearer(key_for(world, cell))
            sent = cell.parts(values)
            url, query = sent["url"], sent["params"]
            items = items_in(ok(http.get(url, params=query, headers=headers)))
            first = items[0] if items and isinstance(items[0], dict) else {}
            prefix = str(first.get("id", "agent-")).partition("-")[0]
            unknown = f"{prefix}-{UNKNOWN}"
            compared += bool(items)
            for name in names:
                answer = http.get(url, params={**query, name: unknown}, headers=headers)
                if answer.status_code < 400 and items_in(answer.json()):
                    whole.append(f"{cell.path} {name}")
    assert whole == []
    assert compared > 30


@pytest.mark.usefixtures("costs")
def test_the_id_of_an_item_is_the_cursor_of_the_items_after_it(world: World) -> None:
    values = world.own | world.shared
    document = world.server.app.openapi()
    wrong: list[str] = []
    compared = 0
    with world.server.http() as http:
        for cell, names in pages_of(world):
            headers = bearer(key_for(world, cell))
            sent = cell.parts(values)
            url, query = sent["url"], sent["params"]
            parameters = document["paths"][cell.path.replace(":path", "")]["get"]["parameters"]
            if any(one["name"] == "order" for one in parameters):
                query = {**query, "order": "asc"}
            items = items_in(ok(http.get(url, params=query, headers=headers)))
            key = next((key for key in ("id", "sha") if items and key in items[0]), None)
            if key is None:
                continue
            # The parts of a message have one id.
            ids = list(dict.fromkeys(item[key] for item in items))
            if len(ids) > 1:
                compared += 1
                # The lists of versions begin with the newest.
                cursor = {"after" if "after" in names else "before": ids[0], "limit": 1}
                following = items_in(ok(http.get(url, params={**query, **cursor}, headers=headers)))
                if {item[key] for item in following} != {ids[1]}:
                    wrong.append(cell.path)
    assert wrong == []
    assert compared > 30


def plans(world: World, path: str) -> list[str]:
    """Return SQLite's query plan for each statement of a list."""
    shortest: list[str] | None = None
    with world.server.http() as http:
        for _ in range(5):  # Background work has statements too.
            with count_statements(world.server.runtime.store) as counted:
                ok(http.get(path, headers=bearer(OPERATOR)))
            if shortest is None or len(counted.statements) < len(shortest):
                shortest = list(counted.statements)

    def explain(tx: Transaction, statement: str) -> str:
        rows = tx.connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {statement}", (None,) * statement.count("?")
        )
        return "\n".join(row[3] for row in rows)

    return [
        world.server.read(partial(explain, statement=statement)) for statement in shortest or ()
    ]


def test_the_list_of_all_messages_is_read_from_an_index_without_sorting(world: World) -> None:
    """A list of 100,000 messages took 49 ms before, because all were sorted."""
    sizes, page = plans(world, "/v1/messages/")
    assert sizes == "SCAN messages USING INDEX messages_newest"
    assert "SEARCH messages USING INTEGER PRIMARY KEY" in page


def test_a_page_of_agents_is_read_without_joining_the_others(world: World) -> None:
    """A page of 10,000 agents took 21 ms before, because all were joined to find fifty."""
    whole = [plan for plan in plans(world, "/v1/agents/") if "SEARCH conversations" in plan]
    assert len(whole) == 1
    assert "agents_by_time" not in whole[0]
