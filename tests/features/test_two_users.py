"""Two users with separate keys and one agent, which writes with every tool.

Neither sees anything of the other.
"""

import io
import itertools
import random
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from ricordo.llm.scripted import call
from tests.seams.http import OPERATOR, Wire, bearer, ok, refused
from tests.seams.server import MODEL, ServerInThread, serving

# Each tool is called once by each user, and under soak six times.
TURNS = 32
MANY_TURNS = 200
# No language has these words.
CANARY = {"ada": "xqadaz", "bob": "xqbobz"}
USERS = tuple(CANARY)
SHARED = "The exam is in May."
BLOCKS = [
    {"label": "human", "value": "Nobody is known yet."},
    {"label": "persona", "value": "I am Nina."},
    {"label": "plan", "value": "No plan.", "policy": "propose"},
    {"label": "course", "value": SHARED, "shared": True},
]
TOOLS = (
    *(
        "core_memory_append",
        "core_memory_replace",
        "memory_insert",
        "memory_replace",
        "memory_rethink",
        "memory",
    ),
    *(
        "memory_apply_patch",
        "edit_memory_block",
        "propose_memory_edit",
        "archival_memory_insert",
        "conversation_search",
    ),
    *("archival_memory_search", "list_memory_blocks", "read_memory_block"),
)
PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


def edits(word: str, number: int) -> Sequence[tuple[str, Wire]]:
    """Return the calls that write a user's text, one for each tool and command."""
    said = f"{word} said so at {number} o'clock"
    return (
        ("core_memory_append", {"label": "human", "content": f"{said}, once."}),
        (
            "core_memory_replace",
            {"label": "persona", "old_content": "I am", "new_content": f"I am {word}{number}'s"},
        ),
        ("memory_insert", {"label": "human", "new_string": f"{said}, twice."}),
        (
            "memory_replace",
            {
                "label": "human",
                "old_string": "known yet",
                "new_string": f"known yet to {word}{number}",
            },
        ),
        (
            "memory_rethink",
            {"label": "persona", "new_memory": f"I am the friend of {word}, {number} years."},
        ),
        (
            "memory",
            {
                "command": "create",
                "path": f"/memories/{word}/{number}",
                "file_text": f"{said}, in a new block.",
            },
        ),
        (
            "memory",
            {"command": "insert", "path": "/memories/human", "insert_text": f"{said}, in a line."},
        ),
        (
            "memory",
            {
                "command": "str_replace",
                "path": "human",
                "old_string": "Nobody",
                "new_string": f"Nobody {word}",
            },
        ),
        (
            "memory",
            {"command": "rename", "path": "human", "description": f"{said}, to describe it."},
        ),
        ("memory_apply_patch", {"label": "human", "patch": f"@@ -1 @@\n+{said}, by a patch."}),
        (
            "memory_apply_patch",
            {"patch": f"*** Add Block: {word}/patch/{number}\n+{said}, in a patch."},
        ),
        ("core_memory_append", {"label": "plan", "content": f"{said}, to be approved."}),
        *(
            (
                name,
                {
                    "label": "plan",
                    "old_string": "No plan.",
                    "new_string": f"No plan. {said}.",
                    "reasoning": said,
                },
            )
            for name in ("edit_memory_block", "propose_memory_edit")
        ),
        (
            "archival_memory_insert",
            {"content": f"{said}, for the archive.", "tags": [f"{word}tag"]},
        ),
        ("core_memory_append", {"label": "course", "content": f"Note {number} for all."}),
    )


SEARCHES: Sequence[tuple[str, Wire]] = (
    ("conversation_search", {"query": "said so o'clock noted"}),
    ("archival_memory_search", {"query": "said so o'clock archive"}),
    ("list_memory_blocks", {}),
    ("read_memory_block", {"label": "human"}),
)


@dataclass
class World:
    """The server with the operator's client and one for each user.

    `ids` are the objects that each user created, by the name in routes.
    """

    server: ServerInThread
    operator: httpx2.Client
    clients: dict[str, httpx2.Client]
    agent_id: str
    turns: int = TURNS
    ids: dict[str, dict[str, list[str]]] = field(
        default_factory=lambda: {user: {} for user in USERS}
    )
    asked: dict[str, str] = field(default_factory=dict)
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def say(self, user: str, place: str, *calls: tuple[str, Wire], **body: Any) -> str:
        """Let the user send the word, and the agent make these calls; return the answer."""
        lines = [call(name, **arguments) for name, arguments in calls]
        self.server.says(*([lines] if lines else []), f"Noted for {CANARY[user]}.")
        words = f"It is me, {CANARY[user]}, now for the time number {next(self.numbers)}."
        before = len(self.server.model.requests)
        sent = {"messages": [{"role": "user", "content": words}], "streaming": False, **body}
        answer = self.clients[user].post(f"/v1/{place}/messages", json=sent)
        assert answer.status_code == 200, answer.text
        # Everything that the model reads: the prompt, messages, results of tools, and the tools
        # themselves.
        self.asked[user] = "\n".join(map(repr, self.server.model.requests[before:]))
        self.require_none_of_the_other(user, self.asked[user])
        return answer.text

    def require_none_of_the_other(self, user: str, text: str, where: str = "") -> None:
        (other,) = {*USERS} - {user}
        place = text.lower().find(CANARY[other])
        assert place < 0, f"{where}: {text[max(0, place - 200) : place + 100]}"

    def note(self, user: str, name: str, *ids: str) -> None:
        self.ids[user].setdefault(name, []).extend(ids)


@pytest.fixture(scope="module", params=[TURNS, pytest.param(MANY_TURNS, marks=pytest.mark.soak)])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Both users have three conversations each, one of them the default one."""
    with (
        serving(
            tmp_path_factory.mktemp("two"), api_key=SecretStr(OPERATOR), traces="all"
        ) as server,
        ExitStack() as stack,
    ):
        keys = (OPERATOR, *map(server.key, USERS))
        operator, *clients = [stack.enter_context(server.http(headers=bearer(key))) for key in keys]
        spec = {
            "name": "Nina",
            "model": MODEL,
            "memory_blocks": BLOCKS,
            "tools": TOOLS,
            "include_base_tools": False,
        }
        agent = ok(operator.post("/v1/agents/", json=spec))
        made = World(
            server, operator, dict(zip(USERS, clients, strict=True)), agent["id"], request.param
        )
        talk(made)
        yield made


def talk(world: World) -> None:
    """Let both users talk in random order, with each tool called by both."""
    chance = random.Random(13)  # noqa: S311 - an order
    places = {user: [f"agents/{world.agent_id}"] for user in USERS}
    for user in (*USERS, *USERS):
        made = ok(
            world.clients[user].post("/v1/conversations/", params={"agent_id": world.agent_id})
        )
        world.note(user, "conversation_id", made["id"])
        places[user].append(f"conversations/{made['id']}")
    turns = [(user, place) for user in USERS for place in range(world.turns // 2)]
    chance.shuffle(turns)
    for number, (user, place) in enumerate(turns):
        kinds = edits(CANARY[user], number)
        name, arguments = kinds[place % len(kinds)]
        text = world.say(
            user, chance.choice(places[user]), (name, arguments), chance.choice(SEARCHES)
        )
        world.done[user, name] += '"status":"success"' in text or '"status": "success"' in text
    for user in USERS:
        past = {"messages": [{"role": "user", "content": f"Long ago {CANARY[user]} said so."}]}
        ok(world.clients[user].post(f"/v1/agents/{world.agent_id}/messages/import", json=past))
        acting = {"x-ricordo-user": user}
        passage = {"text": f"{CANARY[user]} said so by REST.", "tags": [f"{CANARY[user]}rest"]}
        stored = world.operator.post(
            f"/v1/agents/{world.agent_id}/archival-memory", json=passage, headers=acting
        )
        world.note(user, "passage_id", *(one["id"] for one in ok(stored)))
        changed = {"value": f"I was told by {CANARY[user]}."}
        ok(
            world.clients[user].patch(
                f"/v1/agents/{world.agent_id}/core-memory/blocks/persona", json=changed
            )
        )
        world.say(user, places[user][0], stream_tokens=False)


def collect(world: World, user: str) -> None:
    """Record the ids of all the user's objects, for routes that take one."""
    client, agent = world.clients[user], world.agent_id
    runs = ok(client.get("/v1/runs/", params={"user_id": user, "limit": 200}))
    assert len(runs) >= world.turns // 2
    world.note(user, "run_id", *(run["id"] for run in runs[:2]))
    steps = ok(client.get(f"/v1/runs/{runs[0]['id']}/steps"))
    world.note(user, "step_id", *(step["id"] for step in steps))
    messages = ok(client.get(f"/v1/agents/{agent}/messages"))
    world.note(user, "message_id", *(one["id"] for one in messages[:3]))
    world.note(
        user,
        "user_id",
        user,
        ok(client.get(f"/v1/conversations/{world.ids[user]['conversation_id'][0]}"))["user_id"],
    )
    world.note(user, "block_id", *(one["id"] for one in ok(client.get(f"/users/{user}/blocks"))))
    world.note(user, "label", "human", "persona")
    world.note(user, "block_label", "human", "persona")
    waiting = ok(client.get(f"/users/{user}/diffs"))
    assert waiting
    world.note(user, "diff_id", *(one["id"] for one in waiting))
    world.note(
        user,
        "sha",
        *(one["sha"] for one in ok(client.get(f"/users/{user}/blocks/human/history"))[:2]),
    )


def test_each_tool_wrote_for_both_users(world: World) -> None:
    names = {name for name, _ in edits("", 0)}
    assert {(user, name) for user in USERS for name in names} == {
        which for which, count in world.done.items() if count
    }


def test_prompts_contain_nothing_of_the_other_user_but_the_shared_block(
    world: World,
) -> None:
    for user in USERS:  # the other half is checked after every turn
        prompt = world.asked[user]
        notes = {int(number) for number in re.findall(r"Note (\d+) for all", prompt)}
        assert SHARED in prompt
        assert "shared=true" in prompt
        assert len(notes) > world.turns // 20
    assert re.findall(r"Note \d+ for all", world.asked["ada"]) != []


def test_read_routes_show_nothing_of_the_other_user(world: World) -> None:
    for user in USERS:
        collect(world, user)
    paths = {
        path: ways["get"]
        for path, ways in world.server.app.openapi()["paths"].items()
        if "get" in ways
    }
    known = 0
    for user, client in world.clients.items():
        (other,) = {*USERS} - {user}
        asked: set[str] = set()
        for path, way in paths.items():
            for owner in USERS:
                ids = {"agent_id": [world.agent_id], **world.ids[owner]}
                names = PARAMETER.findall(path)
                for values in itertools.islice(
                    itertools.product(*(ids.get(name, ["x"]) for name in names)), 2
                ):
                    address = path
                    for name, value in zip(names, values, strict=True):
                        address = re.sub(rf"\{{{name}(:path)?\}}", value, address)
                    if address in asked:
                        continue
                    asked.add(address)
                    searches = any(one["name"] == "query" for one in way.get("parameters", ()))
                    answer = client.get(address, params={"query": "said so"} if searches else {})
                    assert answer.status_code < 500, (address, answer.text)
                    world.require_none_of_the_other(user, answer.text, f"{user}: {address}")
                    if answer.status_code == 200:
                        known += CANARY[user] in answer.text
                        assert world.ids[other]["user_id"][-1] not in answer.text, (
                            f"{user}: {address}"
                        )
        assert refused(client.get("/v1/conversations/", params={"user_id": other}), 403)
    assert known > 40


def test_searches_and_exports_contain_nothing_of_the_other_user(world: World) -> None:
    for user, client in world.clients.items():
        for path in ("messages/search", "agents/messages/search", "passages/search"):
            for query in ("said so noted", CANARY["ada"], CANARY["bob"]):
                for mode in ("fts", "hybrid"):
                    found = client.post(
                        f"/v1/{path}", json={"query": query, "search_mode": mode, "limit": 100}
                    )
                    world.require_none_of_the_other(user, found.text, path)
            assert CANARY[user] in client.post(f"/v1/{path}", json={"query": CANARY[user]}).text
        exported = client.get(f"/users/{user}/export")
        assert exported.status_code == 200
        with zipfile.ZipFile(io.BytesIO(exported.content)) as archive:
            files = "\n".join(
                archive.read(name).decode("utf-8", "replace") for name in archive.namelist()
            )
        assert CANARY[user] in files
        world.require_none_of_the_other(user, files, "export")
        # With `user_id` the operator, who may see everything, gets the answer that the user would
        # get.
        for path in (
            "conversations/",
            "runs/",
            "blocks/",
            f"agents/{world.agent_id}/messages",
            "steps/",
        ):
            listed = world.operator.get(f"/v1/{path}", params={"user_id": user, "limit": 200})
            world.require_none_of_the_other(user, listed.text, path)
            assert len(ok(listed)) > 1, path


def test_the_agents_own_blocks_are_unchanged_except_the_shared_one(world: World) -> None:
    agent = ok(world.operator.get(f"/v1/agents/{world.agent_id}"))
    values = {block["label"]: block["value"] for block in agent["blocks"]}
    assert values.pop("course") != SHARED
    assert values == {
        block["label"]: block["value"] for block in BLOCKS if block["label"] != "course"
    }


@pytest.mark.parametrize("user", USERS)
def test_every_route_shows_the_same_blocks_for_a_user(world: World, user: str) -> None:
    client, agent = world.clients[user], f"/v1/agents/{world.agent_id}"

    def told(blocks: Any) -> dict[str, str]:
        return {block["label"]: block["value"] for block in blocks}

    blocks = told(ok(client.get(agent))["blocks"])
    assert CANARY[user] in blocks["human"]
    assert told(ok(client.get(f"{agent}/core-memory"))["blocks"]) == blocks
    assert told(ok(client.get(f"{agent}/core-memory/blocks"))) == blocks
    assert told(ok(client.get(f"{agent}/core-memory/blocks/{label}")) for label in blocks) == blocks
    assert (
        told(ok(world.operator.get(f"{agent}/core-memory/blocks", params={"user_id": user})))
        == blocks
    )
    world.say(user, f"agents/{world.agent_id}")
    shown = [
        ok(client.get(f"{agent}/context"))["core_memory"],
        ok(client.post(f"{agent}/recompile?dry_run=true")),
    ]
    shown.append(str(world.server.model.requests[-1].messages[0].text))
    for prompt in shown:
        assert all(f"<{label}>" in prompt and value in prompt for label, value in blocks.items())


def test_approved_blocks_are_in_the_prompt_of_their_agent_and_user(world: World) -> None:
    client = world.clients["ada"]
    waiting = [
        one
        for one in ok(client.get("/users/ada/diffs", params={"limit": 100}))
        if "/" in one["label"]
    ]
    assert waiting
    for one in waiting:
        ok(client.post(f"/users/ada/blocks/{one['label']}/diffs/{one['id']}/approve"))
    made = ok(client.get(f"/users/ada/blocks/{waiting[0]['label']}"))
    assert (made["agent_id"], made["policy"]) == (world.agent_id, "propose")
    world.say("ada", f"agents/{world.agent_id}")
    assert f"<{waiting[0]['label']}>" in world.asked["ada"]
    world.say("bob", f"agents/{world.agent_id}")
