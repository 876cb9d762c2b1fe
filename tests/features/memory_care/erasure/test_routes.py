"""A user is forgotten.

Afterwards none of the user's texts remain, others' texts are unchanged, and a receipt lists the
removed data.
"""

import itertools
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from sqlalchemy import text

from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER, Scope
from ricordo.features.memory_care.erasure import receipts
from ricordo.llm.scripted import call
from ricordo.search.reader import IndexCache
from ricordo.search.write_buffer import FLUSH
from ricordo.secret import Secret
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.message_cache import MessageCache
from ricordo.tools.toolbox import ToolContext
from tests.conftest import BOTH
from tests.seams.http import ok
from tests.seams.server import LIMIT, MODEL, Gate, ServerInThread, serving
from tests.support import postgres
from tests.support.canaries import CANARY, canary, in_files, in_heap, in_tables, rows

# Tables that change in the background, or because of the users who stay.
UNSETTLED = ("jobs", "expenses")
SCOPE = Scope()
NUMBERS = itertools.count(1)


@dataclass
class World:
    """Two users, an agent that both use, and one that only the second uses."""

    server: ServerInThread
    http: httpx2.Client
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.server.settings.data_dir

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return ok(self.http.post(path, json=body, params=query))

    def put(self, path: str, body: str, **more: Any) -> Any:
        return ok(self.http.put(path, json={"body": body, **more}))

    def agent(self, name: str, **more: Any) -> str:
        blocks = [{"label": "persona", "value": f"I am {name}."}]
        made = self.post(
            "/v1/agents/", {"name": name, "model": MODEL, "memory_blocks": blocks, **more}
        )
        return str(made["id"])

    def thread(self, agent_id: str, user: str, **more: Any) -> str:
        return str(
            self.post("/v1/conversations/", {"user_id": user, **more}, agent_id=agent_id)["id"]
        )

    def say(self, thread: str, words: str, *lines: Any, **more: Any) -> str:
        self.server.says(*lines)
        messages = [{"role": "user", "content": words}]
        if thread.startswith("agent-"):
            response = self.http.post(
                f"/v1/agents/{thread}/messages", json={"messages": messages, **more}
            )
        else:
            body = {"messages": messages, "streaming": False, **more}
            response = self.http.post(f"/v1/conversations/{thread}/messages", json=body)
        assert response.status_code == 200, response.text
        return response.text

    def user_id(self, name: str) -> str:
        return self.server.read(lambda tx: users.require(tx, SCOPE, name)).id

    def flush(self, agent_id: str) -> None:
        runtime = self.server.runtime
        job = Job(FLUSH, LOCAL_ORGANIZATION, {"owner_id": agent_id}, agent_id)
        self.server.run(runtime.indexing.flush(job, lambda _done, _total: None))

    def forget(self, name: str, **query: Any) -> Any:
        told = self.http.delete(f"/users/{name}", params=query)
        assert told.status_code in (200, 202), told.text
        deadline, id = time.monotonic() + LIMIT, told.json()["id"]
        while (told := self.http.get(f"/v1/receipts/{id}")).status_code == 202:
            assert time.monotonic() < deadline, told.text
            time.sleep(0.02)
        return ok(told)

    def rows(self) -> dict[str, set[str]]:
        found = self.server.read(rows)
        return {
            name: some
            for name, some in found.items()
            if name not in UNSETTLED and not name.startswith("search_")
        }


def world_with_bob(server: ServerInThread, http: httpx2.Client) -> World:
    """Bob has a separate agent and memory, and uses the agent that Ada will use too."""
    made = World(server, http)
    made.ids["shared"] = made.agent("Nina")
    made.ids["own"] = made.agent("Otto", user_id="bob")
    made.put("/users/bob/blocks/human", "Bob drinks Darjeeling.")
    made.put("/users/bob/blocks/human", "Bob drinks Darjeeling, and Assam.")
    made.ids["bob"] = made.thread(made.ids["shared"], "bob")
    made.say(
        made.ids["bob"],
        "I am Bob.",
        call("archival_memory_insert", content="Bob likes maps."),
        "Noted.",
    )
    made.say(made.ids["own"], "Hello Otto.", "Hello Bob.")
    return made


@pytest.fixture(params=[BOTH[0], pytest.param(BOTH[1], marks=pytest.mark.soak)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Run a server with Bob and the shared agent for one test, on each database.

    All traces are kept.
    """
    is_file = request.param == BOTH[0]
    url = None if is_file else postgres.server().new_database()
    place = {} if url is None else {"database_url": url}
    with serving(tmp_path / "data", traces="all", **place) as server, server.http() as http:
        yield world_with_bob(server, http)
    if url:
        postgres.server().drop(url)


@pytest.fixture(scope="module")
def running_world(running_server: ServerInThread, running_http: httpx2.Client) -> World:
    """Make one world for this module.

    Tests use the fixture `shared`, which has a new name for Ada.
    """
    return world_with_bob(running_server, running_http)


@pytest.fixture
def shared(server: ServerInThread, running_world: World) -> World:
    assert server is running_world.server
    running_world.ids["name"] = f"ada-{next(NUMBERS)}"
    return running_world


def ada(world: World) -> None:
    """Let Ada store canaries of every possible kind."""
    post, put, shared = world.post, world.put, world.ids["shared"]
    name = world.ids.setdefault("name", "ada")
    memory = f"/users/{name}/blocks"
    put(
        f"{memory}/human",
        f"Ada is {canary('block')}.",
        title=canary("title"),
        message=canary("reason"),
    )
    put(f"{memory}/human", f"Ada was {canary('version')}.")
    put(f"{memory}/notes/gone", canary("deleted"), title=canary("log"))
    assert world.http.delete(f"{memory}/notes/gone").status_code == 200
    proposed = {
        "old_string": "Ada",
        "new_string": canary("proposal"),
        "reasoning": canary("reasoning"),
    }
    post(f"{memory}/human/propose", {**proposed, "agent_id": canary("author")})
    ids = world.ids
    ids["ada"] = thread = world.thread(
        shared, name, summary=canary("summary"), description=canary("description")
    )
    file = call(
        "archival_memory_insert", content=f"Ada filed {canary('passage')}.", tags=[canary("tag")]
    )
    world.say(thread, f"I am {canary('said')}.", file, f"You are {canary('answer')}.")
    edit = call("core_memory_append", label="human", content=canary("edit"))
    world.say(thread, f"Remember {canary('memory')}.", edit, "Done.")
    world.say(thread, canary("stream"), canary("streamed"), streaming=True, background=True)
    past = [
        {"role": "user", "content": canary("past"), "name": canary("name"), "otid": canary("otid")}
    ]
    post(f"/v1/agents/{shared}/messages/import", {"messages": past, "conversation_id": thread})
    ids["fork"] = post(f"/v1/conversations/{thread}/fork")["id"]
    world.say(ids["fork"], canary("forked"), "ok")
    ids["hers"] = world.agent("Ida", user_id=name)
    world.say(ids["hers"], canary("default"), canary("defaulted"))
    user_id = ids["user"] = world.user_id(name)
    body = {"messages": [{"role": "user", "content": canary("sender"), "sender_id": user_id}]}
    post(f"/v1/agents/{shared}/messages", body)
    # Her default conversation with the shared agent. Her edit of its persona makes a copy for her.
    world.server.says(
        call("memory_insert", label="persona", new_string=canary("copy")), canary("own")
    )
    own = {"messages": [{"role": "user", "content": canary("at home")}]}
    ok(world.http.post(f"/v1/agents/{shared}/messages", json=own, headers={"x-ricordo-user": name}))


def ask_about_ada(world: World) -> None:
    """Let an agent without a user find Ada's messages, as earlier versions did."""
    look = call("conversation_search", query="Who said I am?")
    archive = call("archival_memory_search", query="Ada filed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ToolContext, "subject_id", None)
        answer = world.say(
            world.ids["shared"], "What do you know?", [look, archive], "I will not tell."
        )
    assert canary("said") in answer
    assert canary("passage") in answer


def files_beside_the_database(world: World) -> tuple[list[Path], Path]:
    """Make files outside the database.

    The files are the user's repository, a dump with the user's data, and another user's repository.
    """
    chain = world.server.read(
        lambda tx: tx.all(text(f"SELECT id FROM chains WHERE owner_id = '{world.ids['user']}'"))  # noqa: S608
    )
    repositories, backups = world.data / "repositories", world.data / "backups"
    files = [repositories / f"{chain[0].id}.git" / "pack", backups / "ricordo-schema5.dump"]
    other = repositories / "chain-other.git" / "pack"
    for path in (*files, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if path == other else canary("file"))
    return files, other


def back_up(world: World, name: str) -> Path:
    """Put a copy of the database into the data folder, as an upgrade does.

    With PostgreSQL, make only the folder.
    """
    target = world.data / "backups" / f"ricordo-schema6-{name}.db"
    target.parent.mkdir(parents=True, exist_ok=True)
    if world.server.settings.postgres_url is None:
        database = world.server.settings.database_path
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    return target


def everything_of_bob(found: dict[str, set[str]], world: World) -> dict[str, set[str]]:
    """Return Bob's rows.

    Texts of the shared agent are left out, since its prompt names Ada's tags, and the traces
    contain that prompt.
    """
    own = {world.user_id("bob"), world.ids["own"], world.ids["bob"]}
    is_shown = {
        "messages": "'role': 'system'",
        "conversations": world.ids["shared"],
        "traces": "It is me, Bob.",
    }
    return {
        name: {
            row
            for row in some
            if any(id in row for id in own) and is_shown.get(name, "\n") not in row
        }
        for name, some in found.items()
    }


def cached_texts(world: World) -> str:
    """Return what the server's memory holds of messages and of the search index's terms."""

    def read(tx: Transaction) -> str:
        index = tx.cache.get(IndexCache)
        return f"{tx.cache.get(MessageCache)} {vars(index.terms) if index else {}}"

    return world.server.read(read)


def test_erasing_a_user_removes_all_their_data_and_keeps_others(world: World) -> None:
    before_her = back_up(world, "before")
    was_there = before_her.exists()
    ada(world)
    ask_about_ada(world)
    world.flush(world.ids["shared"])
    world.say(world.ids["bob"], "It is me, Bob.", "Hello Bob.")
    with_her = back_up(world, "with")
    going, staying = files_beside_the_database(world)
    before = world.rows()
    assert len(world.server.read(in_tables)) > 20
    cached = cached_texts(world)
    assert CANARY in cached
    assert world.ids["shared"] in cached

    receipt = world.forget("ada")

    cached = cached_texts(world)
    assert CANARY not in cached
    assert world.ids["shared"] not in cached
    assert world.server.read(in_tables) == []
    assert world.server.read(lambda tx: in_tables(tx, world.ids["user"])) == []
    assert everything_of_bob(world.rows(), world) == everything_of_bob(before, world)
    assert [path.exists() for path in (*going, with_her, staying)] == [False, False, False, True]
    assert before_her.exists() == was_there
    assert in_files(world.data) == []
    if url := world.server.settings.postgres_url:
        assert in_heap(url) == []
    assert CANARY not in orjson.dumps(receipt).decode()
    assert receipts.verify(receipt, Secret(world.data))
    assert receipts.read(receipts.path_of(world.data, receipt["id"])) == receipt
    removed = receipt["removed"]
    assert (removed["users"], removed["chains"], removed["conversations"], removed["passages"]) == (
        1,
        1,
        3,
        1,
    )
    assert receipt["changed"]["quotes"] == 1
    assert receipt["subject"] == receipts.subject_of(world.ids["user"])
    assert {agent["id"] for agent in receipt["agents"]} == {world.ids["shared"], world.ids["hers"]}


def test_erasure_deletes_agents_of_the_user_alone_and_keeps_shared_data(world: World) -> None:
    ada(world)
    hers, shared, name = world.ids["hers"], world.ids["shared"], world.ids["name"]
    alone = world.post("/v1/blocks/", {"label": "alone", "value": canary("alone")})["id"]
    both = world.post("/v1/blocks/", {"label": "both", "value": "Of several agents."})["id"]
    for agent, block in ((hers, alone), (hers, both), (shared, both)):
        assert (
            world.http.patch(f"/v1/agents/{agent}/core-memory/blocks/attach/{block}").status_code
            == 200
        )
    edit = call("core_memory_append", label="persona", content=canary("own"))
    world.say(
        hers, "Learn this.", edit, call("archival_memory_insert", content=canary("filed")), "Done."
    )
    # An agent of Ada's that must stay, since another agent has one of its blocks.
    lent = world.agent("Lena", user_id=name)
    block = world.http.get(f"/v1/agents/{lent}").json()["memory"]["blocks"][0]["id"]
    other = world.post("/v1/agents/", {"name": "Omar", "model": MODEL, "block_ids": [block]})["id"]
    before = world.rows()

    receipt = world.forget(name, with_agents=True)

    assert world.server.read(in_tables) == []
    assert in_files(world.data) == []
    assert everything_of_bob(world.rows(), world) == everything_of_bob(before, world)
    assert world.http.get(f"/v1/agents/{hers}").status_code == 404
    assert world.http.get(f"/v1/blocks/{alone}").status_code == 404
    for path in (f"agents/{shared}", f"agents/{lent}", f"agents/{other}", f"blocks/{both}"):
        assert world.http.get(f"/v1/{path}").status_code == 200
    told = {agent["id"]: (agent["is_deleted"], agent["stays"]) for agent in receipt["agents"]}
    assert told == {
        hers: (True, None),
        shared: (False, "others talk with it"),
        lent: (False, "another agent has one of its blocks"),
    }
    removed = receipt["removed"]
    assert (removed["agents"], removed["archives"], removed["chains"]) == (1, 1, 3)
    assert receipts.verify(receipt, Secret(world.data))


def test_an_unused_agent_with_the_users_memory_stays_without_it(
    shared: World,
) -> None:
    name = shared.ids["name"]
    shared.put(f"/users/{name}/blocks/human", canary("unspoken"))
    agent = shared.agent("Lea", user_id=name)
    assert shared.server.read(lambda tx: in_tables(tx, canary("unspoken")))
    receipt = shared.forget(name)
    assert shared.server.read(lambda tx: in_tables(tx, canary("unspoken"))) == []
    assert "Hello." in shared.say(agent, "Hello?", "Hello.")
    assert "agents" not in receipt["removed"]
    assert not any(one["is_deleted"] for one in receipt["agents"])


def test_an_erased_user_is_unknown_at_once_and_others_are_unaffected(shared: World) -> None:
    name = shared.ids["name"]
    ada(shared)
    ask_about_ada(shared)
    spent = shared.http.get("/v1/ledger").json()["total"]["total_tokens"]
    shared.http.delete(f"/users/{name}")
    assert shared.http.get(f"/users/{name}/blocks").status_code == 404
    shared.put(f"/users/{name}/blocks/human", "Another Ada.")
    assert shared.user_id(name) != shared.ids["user"]

    shared.forget(shared.ids["user"])

    # The sums of the cost stay, without a user.
    assert shared.http.get("/v1/ledger").json()["total"]["total_tokens"] == spent
    by_user = shared.http.get("/v1/ledger", params={"group_by": "user"}).json()["lines"]
    assert shared.ids["user"] not in {line["key"] for line in by_user}
    assert shared.http.get(f"/users/{name}/blocks/human").json()["body"] == "Another Ada."
    assert "Darjeeling" in shared.http.get("/users/bob/blocks/human").json()["body"]
    assert "Fine." in shared.say(shared.ids["shared"], "How are you?", "Fine.")
    assert "Well." in shared.say(shared.ids["bob"], "And you?", "Well.")
    assert "Empty." in shared.say(shared.ids["hers"], "Who are you?", "Empty.")
    asked = repr(shared.server.model.requests[-1])
    assert (CANARY in asked, "I am Ida." in asked) == (False, True)
    for thread in (shared.ids["ada"], shared.ids["fork"]):
        assert shared.http.get(f"/v1/conversations/{thread}").status_code == 404
    found = shared.post("/v1/messages/search", {"query": canary("said")})
    assert [hit for hit in found if CANARY in repr(hit)] == []


def test_a_repeated_erasure_returns_the_same_receipt(
    shared: World,
) -> None:
    name = shared.ids["name"]
    shared.put(f"/users/{name}/blocks/human", "Ada.")
    user_id = shared.user_id(name)
    receipt = shared.forget(name)
    file = receipts.path_of(shared.data, receipt["id"])
    written = file.read_bytes()
    # The file may be on another machine, or the job may be over.
    file.unlink()
    for known in (f"/v1/receipts/{receipt['id']}", f"/users/{name}", f"/users/{user_id}"):
        again = shared.http.request("GET" if "receipts" in known else "DELETE", known)
        assert (again.status_code, again.json()) == (200, receipt), known
    file.write_bytes(written)
    shared.server.write(lambda tx: tx.run(text("DELETE FROM jobs")))
    assert shared.http.delete(f"/users/{name}").json() == receipt
    file.unlink()
    for gone in (f"/users/{name}", "/users/eve"):
        assert shared.http.delete(gone).status_code == 404, gone
    assert shared.http.get("/v1/receipts/receipt-eve").status_code == 404
    refused = shared.http.delete(f"/users/{LOCAL_USER}")
    assert (refused.status_code, "runs the server" in refused.text) == (409, True)


def test_a_finished_erasure_has_its_receipt_before_the_job_has_written_the_file(
    shared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = shared.ids["name"]
    shared.put(f"/users/{name}/blocks/human", "Ada.")
    may_write = threading.Event()
    write = receipts.write

    def write_later(*arguments: Any) -> None:
        may_write.wait(LIMIT)
        write(*arguments)

    monkeypatch.setattr(receipts, "write", write_later)
    try:
        receipt = shared.forget(name)
        assert not receipts.path_of(shared.data, receipt["id"]).exists()
    finally:
        may_write.set()
    assert shared.http.delete(f"/users/{name}").json() == receipt


def test_erasure_cancels_a_running_turn_of_the_user(shared: World) -> None:
    name = shared.ids["name"]
    thread = shared.thread(shared.ids["shared"], name)
    gate = Gate(shared.server, canary("late"))
    shared.server.answers_with(gate)
    ended: list[str] = []

    def talk() -> None:
        with shared.server.http() as http:
            body = {"messages": [{"role": "user", "content": canary("now")}], "streaming": False}
            ended.append(http.post(f"/v1/conversations/{thread}/messages", json=body).text)

    talking = threading.Thread(target=talk)
    talking.start()
    gate.wait()
    receipt = shared.forget(name)
    gate.open()
    talking.join(LIMIT)
    assert ended
    assert receipt["removed"]["runs"] == 1
    assert shared.server.read(in_tables) == []


def said_in_bobs_conversation(world: World, text: str, **signed: str) -> None:
    world.server.says("ok")
    body = {"messages": [{"role": "user", "content": text, **signed}], "streaming": False}
    ok(world.http.post(f"/v1/conversations/{world.ids['bob']}/messages", json=body))


def test_messages_in_others_conversations_are_erased_by_identifier_or_unique_name(
    world: World,
) -> None:
    world.put("/users/ada/blocks/human", "Ada likes tea.")
    for signed in ({"sender_id": "ada"}, {"name": "ada"}, {"sender_id": world.user_id("ada")}):
        said_in_bobs_conversation(world, f"I am {canary('guest')}.", **signed)
    kept = (
        {"sender_id": "bob", "name": "ada"},
        {"sender_id": "ida"},
        {"name": "Ada"},
        {"sender_id": "ADA"},
    )
    for number, signed in enumerate(kept):
        said_in_bobs_conversation(world, f"I am somebody else, {number}.", **signed)
    world.flush(world.ids["shared"])

    receipt = world.forget("ada")

    assert world.server.read(in_tables) == []
    assert in_files(world.data) == []
    assert receipt["removed"]["messages"] == 3
    # The sender of these messages may be another Ada, so the receipt counts them as remaining.
    assert receipt["remaining"] == {"messages.name": 2}
    hits = ok(
        world.http.post(
            "/v1/messages/search", json={"query": "somebody else", "agent_id": world.ids["shared"]}
        )
    )
    assert len([hit for hit in hits if "somebody else" in hit["content"]]) == len(kept)
    # Search for a whole word: the same letters may occur in an id or in the signature.
    assert (
        re.search(
            r"\bada\b", orjson.dumps({**receipt, "names": [], "signature": {}}).decode(), re.I
        )
        is None
    )


def test_a_name_shared_by_two_users_erases_no_messages(world: World) -> None:
    for user in ("ada", "ada-2"):
        world.put(f"/users/{user}/blocks/human", "Likes tea.")
    namesake = world.user_id("ada-2")
    world.server.write(
        lambda tx: tx.run(text(f"UPDATE users SET name = 'ada' WHERE id = '{namesake}'"))  # noqa: S608
    )
    said_in_bobs_conversation(world, "Which of them am I?", name="ada")
    receipt = world.forget("ada")
    assert receipt["remaining"] == {"messages.name": 1}
    hits = ok(
        world.http.post(
            "/v1/messages/search", json={"query": "which of them", "agent_id": world.ids["shared"]}
        )
    )
    assert any("Which of them" in hit["content"] for hit in hits)


def test_messages_under_former_identifiers_are_erased(world: World) -> None:
    world.put("/users/ada/blocks/human", "Ada likes tea.")
    for signed in ({"sender_id": "ada"}, {"name": "ada"}):
        said_in_bobs_conversation(world, f"I am {canary('guest')}.", **signed)
    for former, later in (("ada", "countess"), ("countess", "lovelace")):
        ok(world.http.patch(f"/v1/users/{former}", json={"identifier": later, "name": later}))
        said_in_bobs_conversation(world, f"I am {canary('guest')} as {later}.", sender_id=later)
    world.flush(world.ids["shared"])
    receipt = world.forget("lovelace")
    assert receipt["removed"]["messages"] == 4
    assert world.server.read(in_tables) == []
    assert in_files(world.data) == []


def test_a_former_identifier_now_used_by_another_erases_nothing(world: World) -> None:
    world.put("/users/ada/blocks/human", "Ada likes tea.")
    ok(world.http.patch("/v1/users/ada", json={"identifier": "lovelace", "name": "lovelace"}))
    world.put("/users/ada/blocks/human", "Another Ada.")
    said_in_bobs_conversation(world, "I am the new Ada.", sender_id="ada")
    receipt = world.forget("lovelace")
    assert "messages" not in receipt["removed"]
    # Either of the two users may have sent the message, so the receipt counts it as remaining.
    assert receipt["remaining"] == {"messages.name": 1}
