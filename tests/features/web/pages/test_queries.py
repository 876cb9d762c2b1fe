"""The SQL statements of the pages.

If a page names a few agents, no statement reads all agents. With a condition on the organization,
SQLite would choose to read all of them.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Engine

from ricordo.domain.message import TextPart
from ricordo.domain.scope import NOBODY, Role, Scope
from ricordo.features.web.pages.queries import expected_blocks
from ricordo.memory.course_blocks import COPY, FOR_ALL
from ricordo.storage import (
    agent_access,
    conversation_overviews,
    conversations,
    deletion,
    memory_overviews,
    messages,
    runs,
    users,
)
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import Transaction
from tests.features.web.pages.test_home import visitor
from tests.seams import make
from tests.seams.stores import START


def plan_of(tx: Transaction, statement: str) -> str:
    values = ("[]",) * statement.count("?")
    return "\n".join(
        row[3] for row in tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
    )


@pytest.mark.parametrize("name", ["_DEFAULTS", "_DEFAULTS_FOR_ONE"])
async def test_a_default_conversation_is_found_by_an_index(name: str, tmp_path: Path) -> None:
    """Before, all agents were read to find the default conversation.

    That took 25 ms with ten thousand agents, in every request that names only an agent.
    """
    store = open_sqlite(tmp_path / "ricordo.db")
    plan = await store.read(
        lambda tx: plan_of(tx, str(getattr(conversations, name).compile(dialect=sqlite.dialect())))
    )
    await store.close()
    assert "SEARCH conversations USING INDEX" in plan
    assert "organization_id=?" not in plan


async def test_runs_of_a_conversation_are_found_by_an_index(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "ricordo.db")
    seen: list[str] = []

    def see(_connection: Any, _cursor: Any, statement: str, *_given: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", see)
    await store.read(
        lambda tx: runs.page(
            tx, Scope(), Page(limit=1), statuses=("running",), conversation_id="conv-1"
        )
    )
    await store.read(lambda tx: runs.page(tx, Scope(), Page(limit=1), agent_ids=("agent-1",)))
    event.remove(Engine, "before_cursor_execute", see)
    first, second = [one for one in seen if "FROM runs" in one]
    plans = [await store.read(lambda tx, one=one: plan_of(tx, one)) for one in (first, second)]  # type: ignore[misc]
    await store.close()
    assert ["runs_by_conversation" in plans[0], "runs_by_agent" in plans[1]] == [True, True], plans


async def test_summaries_of_a_conversation_are_listed_newest_first(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "ricordo.db")
    state = await make.stored_agent(store)
    said = [make.message(state.agent, "Hello.", created_at=number) for number in range(3)]
    made = [
        make.message(
            state.agent, "", "summary", parts=(TextPart(f"Part {number}."),), created_at=number
        )
        for number in range(10, 13)
    ]
    await store.write(lambda tx: messages.insert_all(tx, [*said, *made]))
    home = conversations.default_id(state.agent.id)
    found = await store.read(lambda tx: conversation_overviews.summaries(tx, Scope(), home, 2))
    assert [one.parts[0] for one in found] == [TextPart("Part 12."), TextPart("Part 11.")]
    assert (
        await store.read(lambda tx: conversation_overviews.summaries(tx, Scope(), "conv-other", 2))
        == []
    )
    await store.close()


async def test_agents_are_listed_by_last_use_and_only_the_callers(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "ricordo.db")
    ids = [
        (await make.stored_agent(store, make.agent(f"Agent {number}"))).agent.id
        for number in range(3)
    ]
    assert (
        await store.read(lambda tx: conversation_overviews.agents_used_last(tx, Scope(), 2))
        == ids[:0:-1]
    )
    assert (
        await store.read(
            lambda tx: conversation_overviews.agents_used_last(
                tx, Scope("org-other", subject_id=NOBODY), 2
            )
        )
        == []
    )
    await store.close()


async def test_agents_of_others_do_not_hide_the_agents_that_a_caller_used(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "ricordo.db")
    used, *others = [make.agent(f"Agent {number}") for number in range(4)]
    never_used = [make.agent(f"New {number}", created_at=START + 1) for number in range(2)]
    for agent in (used, *others, *never_used):
        await make.stored_agent(store, agent)
    caller = Scope(subject_id="user-caller", role="user")

    def fill(tx: Transaction) -> None:
        for number, agent in enumerate((used, *others)):
            runs.open_run(tx, make.run(agent, created_at=START + number))
        other_user = users.find_or_make(tx, Scope(), "other")
        for agent in others:
            agent_access.attach_user(tx, agent.id, other_user.id)

    await store.write(fill)
    last = conversation_overviews.agents_used_last
    assert await store.read(lambda tx: last(tx, caller, 2)) == [used.id, never_used[1].id]
    assert await store.read(lambda tx: last(tx, Scope(), 2)) == [others[2].id, others[1].id]
    await store.write(lambda tx: deletion.hide_agent(tx, Scope(), others[2].id))
    assert await store.read(lambda tx: last(tx, Scope(), 2)) == [others[1].id, others[0].id]
    await store.close()


@pytest.mark.parametrize("role", ["admin", "user"])
async def test_agents_used_last_are_found_by_an_index_of_runs(role: Role, tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "ricordo.db")
    seen: list[tuple[str, Any]] = []

    def see(_connection: Any, _cursor: Any, statement: str, values: Any, *_given: Any) -> None:
        seen.append((statement, values))

    event.listen(Engine, "before_cursor_execute", see)
    caller = Scope(subject_id="user-caller", role=role)
    await store.read(lambda tx: conversation_overviews.agents_used_last(tx, caller, 2))
    event.remove(Engine, "before_cursor_execute", see)
    (statement,) = [statement for statement, _ in seen if "FROM runs" in statement]
    plan = await store.read(lambda tx: plan_of(tx, statement))
    await store.close()
    assert "SEARCH runs USING INDEX runs_by_time" in plan
    assert "organization_id=?" not in plan.replace("runs_by_time (organization_id=?)", "")
    assert not re.search(r"SCAN (agents|agents_users|runs)\b(?!_read)", plan), plan


@pytest.mark.parametrize(
    "metadata",
    [{COPY: FOR_ALL.replace("_", "-")}, {COPY: FOR_ALL.upper()}, {"note": FOR_ALL}, {}],
    ids=str,
)
async def test_other_blocks_do_not_hide_the_blocks_that_courses_will_add(
    metadata: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_overviews, "_READ_AT_ONCE", 3)
    store = open_sqlite(tmp_path / "ricordo.db")
    others = [make.block(f"other-{number}", metadata=metadata) for number in range(7)]
    marked = [make.block(f"marked-{number}", metadata={COPY: FOR_ALL}) for number in range(4)]
    await make.stored_agent(store, with_blocks=[*others, *marked])
    user = await store.write(lambda tx: users.find_or_make(tx, Scope(), "ada"))
    for limit in (2, 4, 9):
        blocks = await store.read(
            lambda tx, limit=limit: expected_blocks(tx, Scope(), user, {"marked-0"}, limit)  # type: ignore[misc]
        )
        assert [block.label for block in blocks] == ["marked-1", "marked-2", "marked-3"][:limit]
    await store.close()


def test_the_home_page_shows_the_newest_conversations(tmp_path: Path) -> None:
    with visitor(tmp_path) as browser:
        browser_says(browser, "first")
        browser_says(browser, "second")
        page = browser.get("/").text.split("Recent conversations")[1]
        assert page.index("second") < page.index("first")


def test_the_home_page_offers_the_agent_of_the_last_conversation(tmp_path: Path) -> None:
    with visitor(tmp_path) as browser:
        first = browser_says(browser, "first")
        browser.post("/v1/agents/", json={"name": "newest"})
        assert partner_of(browser) == (first, "Your chat with first")
        browser.post("/ui/say", data={"agent": first, "message": "Hello."})
        assert partner_of(browser) == (first, "Continues with first")
        second = browser_says(browser, "second")
        assert partner_of(browser) == (second, "Your chat with second")


def test_conversations_of_others_do_not_hide_the_users_last_chat(tmp_path: Path) -> None:
    key = {"authorization": "Bearer operator"}
    with visitor(tmp_path, api_key="operator") as browser:
        browser.headers["origin"] = "http://localhost:8283"
        browser.post("/ui/login", data={"key": "operator"})
        agents = [
            browser.post("/v1/agents/", json={"name": name}, headers=key).json()["id"]
            for name in ("coach", "newest")
        ]
        sent = browser.post("/ui/say", data={"agent": agents[0], "message": "Hello."})
        assert sent.status_code == 303, sent.text
        body = {"messages": [{"role": "user", "content": "Hello."}]}
        for number in range(11):
            named = key | {"x-ricordo-user": f"pupil-{number}"}
            path = f"/v1/agents/{agents[1]}/messages"
            assert browser.post(path, json=body, headers=named).status_code == 200
        assert partner_of(browser) == (agents[0], "Continues with coach")
        assert "Last chat" in browser.get("/").text


def partner_of(browser: TestClient) -> tuple[str, str]:
    """Return the agent of the form on the home page, and the form's text about it."""
    form = browser.get("/").text.split('action="/ui/say"')[1].split("</form>")[0]
    agent = re.findall(r'name="agent" value="([^"]+)"', form)[0]
    said = re.findall(r"((?:Continues|Your chat|A new chat) with \w+)", form)[0]
    return agent, said


def browser_says(browser: TestClient, name: str) -> str:
    agent = str(browser.post("/v1/agents/", json={"name": name}).json()["id"])
    body = {"messages": [{"role": "user", "content": "Hello."}]}
    assert browser.post(f"/v1/agents/{agent}/messages", json=body).status_code == 200
    return agent
