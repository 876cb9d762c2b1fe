"""One user's messages and memory reach no other user, even without keys.

Searches, prompts and lists are checked.
"""

from typing import Any

import pytest

from ricordo.domain.ids import new_id
from ricordo.llm.scripted import call
from ricordo.storage.engine.store import Transaction
from ricordo.storage.migrations import part_tags_by_users
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.server import MODEL
from tests.support.canaries import in_tables

Wire = dict[str, Any]


class Shared:
    """An agent that talks with several users, and in a conversation without a user."""

    def __init__(self, api: Api) -> None:
        self.api = api
        tools = [
            "conversation_search",
            "archival_memory_search",
            "archival_memory_insert",
            "memory_insert",
        ]
        blocks = [{"label": "persona", "value": "I am Nina."}]
        given = {
            "model": MODEL,
            "tools": tools,
            "include_base_tools": False,
            "memory_blocks": blocks,
        }
        self.id = str(ok(api.http.post("/v1/agents/", json=given))["id"])
        self.conversations: dict[str | None, Wire] = {}

    def conversation(self, user: str | None) -> Wire:
        if user not in self.conversations:
            query = {"agent_id": self.id}
            made = ok(
                self.api.http.post(
                    "/v1/conversations/", params=query, json={"user_id": user} if user else {}
                )
            )
            self.conversations[user] = made
        return self.conversations[user]

    def say(self, user: str | None, words: str, *lines: Any) -> str:
        """Send a message in the user's conversation; return the last prompt."""
        self.api.server.says(*lines, "Done.")
        path = f"/v1/conversations/{self.conversation(user)['id']}/messages"
        ok(
            self.api.http.post(
                path, json={"messages": [{"role": "user", "content": words}], "streaming": False}
            )
        )
        return self.prompt

    def file(self, user: str | None, text: str, *tags: str) -> None:
        self.say(user, "Keep that.", call("archival_memory_insert", content=text, tags=list(tags)))

    def finds(self, user: str | None, tool: str, words: str) -> str:
        """Return the result of the agent's search in a conversation with this user."""
        self.say(user, "Search.", call(tool, query=words))
        return str(self.api.server.model.requests[-1].messages[-1].tool_returns[0].content)

    def passages(self) -> dict[str, str]:
        """Return the ids of the passages by text."""
        listed = ok(
            self.api.http.get(f"/v1/agents/{self.id}/archival-memory", params={"limit": 1000})
        )
        return {passage["text"]: passage["id"] for passage in listed}

    def delete(self, passage_id: str) -> None:
        ok(self.api.http.delete(f"/v1/agents/{self.id}/archival-memory/{passage_id}"))

    @property
    def prompt(self) -> str:
        return self.api.server.model.requests[-1].messages[0].text


@pytest.fixture
def shared(api: Api) -> Shared:
    return Shared(api)


def names() -> tuple[str, str]:
    return new_id("ada"), new_id("bea")


def test_a_conversation_searches_only_shared_data_and_its_users_data(shared: Shared) -> None:
    ada, bea = names()
    for user, words in (
        (ada, "Ada keeps a zebra."),
        (bea, "Bea keeps a zebra."),
        (None, "Somebody keeps a zebra."),
    ):
        shared.say(user, words)
        shared.file(user, f"Filed: {words}")
    for tool in ("conversation_search", "archival_memory_search"):
        # Messages in the window are not searched, so each search runs in a new conversation.
        shared.conversations.clear()
        found = {user: shared.finds(user, tool, "zebra") for user in (ada, bea, None)}
        assert {"Ada", "Somebody"} == {
            name for name in ("Ada", "Bea", "Somebody") if name in found[ada]
        }
        assert {"Bea", "Somebody"} == {
            name for name in ("Ada", "Bea", "Somebody") if name in found[bea]
        }
        assert {"Somebody"} == {name for name in ("Ada", "Bea", "Somebody") if name in found[None]}
    # An administrator who names no user sees everything over REST.
    http = shared.api.http
    hits = ok(http.post("/v1/messages/search", json={"query": "zebra", "agent_id": shared.id}))
    assert {"Ada keeps a zebra.", "Bea keeps a zebra."} <= {hit["content"] for hit in hits}
    passages = ok(
        http.get(f"/v1/agents/{shared.id}/archival-memory/search", params={"query": "zebra"})
    )
    assert passages["count"] == 3


def tags_in(prompt: str) -> set[str]:
    (line,) = [line for line in prompt.splitlines() if "archival memory tags" in line] or [": "]
    return set(filter(None, line.partition(": ")[2].split(", ")))


def test_a_prompt_lists_only_the_tags_of_shared_passages_and_its_users(shared: Shared) -> None:
    ada, bea = names()
    shared.file(ada, "Ada sees a doctor.", "illness", "common")
    shared.file(bea, "Bea sees a lawyer.", "lawsuit", "common")
    shared.file(None, "The library opens at nine.", "hours")
    expected = {
        ada: {"illness", "common", "hours"},
        bea: {"lawsuit", "common", "hours"},
        None: {"hours"},
    }
    assert {user: tags_in(shared.say(user, "Hello.")) for user in expected} == expected
    assert {user: tags_in(shared.say(user, "Hello again.")) for user in expected} == expected
    # Deleting a passage removes its tags from the prompts that showed them because of it, and from
    # no others.
    everything = shared.passages()
    shared.delete(everything["The library opens at nine."])
    shared.file(None, "Opening hours are the same for all.", "common")
    shared.delete(everything["Bea sees a lawyer."])
    expected = {ada: {"illness", "common"}, bea: {"common"}, None: {"common"}}
    assert {user: tags_in(shared.say(user, "Hello once more.")) for user in expected} == expected
    shared.delete(shared.passages()["Opening hours are the same for all."])
    expected = {ada: {"illness", "common"}, bea: set(), None: set()}
    assert {user: tags_in(shared.say(user, "And now?")) for user in expected} == expected


def test_a_prompt_rebuilt_within_a_turn_shows_the_tags_just_filed(
    shared: Shared,
) -> None:
    ada, bea = names()
    shared.file(ada, "Ada sees a doctor.", "illness")
    shared.file(bea, "Bea sees a lawyer.", "lawsuit")
    file = call("archival_memory_insert", content="Ada has a cat.", tags=["pets"])
    prompt = shared.say(
        ada,
        "Keep that too.",
        [file, call("memory_insert", label="persona", new_string="I like cats.")],
    )
    assert tags_in(prompt) == {"illness", "pets"}
    assert tags_in(shared.say(ada, "Hello.")) == {"illness", "pets"}


def test_an_upgrade_separates_the_tags_of_an_older_version_by_user(shared: Shared) -> None:
    ada, bea = names()
    shared.file(ada, "Ada sees a doctor.", "illness")
    shared.file(None, "The library opens at nine.", "hours")
    server = shared.api.server

    def downgrade(tx: Transaction) -> None:
        tx.connection.exec_driver_sql("UPDATE passages_tags SET user_id = NULL")
        tx.connection.exec_driver_sql("""UPDATE archives SET tags = '["hours", "illness"]'""")

    def upgrade(tx: Transaction) -> None:
        part_tags_by_users(tx.connection)

    server.write(downgrade)
    assert tags_in(shared.say(bea, "Hello.")) == {"hours", "illness"}
    server.write(upgrade)
    expected = {ada: {"illness", "hours"}, bea: {"hours"}, None: {"hours"}}
    assert {user: tags_in(shared.say(user, "Hello again.")) for user in expected} == expected


SECRET = "sk-1234567890abcdef1234567890abcdef"
# The same secret with an invisible character in it.
HIDDEN_SECRET = SECRET.replace("k-", "k\u200b-")
NESTED = {
    "note": f"my key is {SECRET}",
    "list": [{SECRET: HIDDEN_SECRET}],
    "password": "swordfish",
    "age": 7,
}
TOLD = {
    "note": "my key is [secret removed: api key]",
    "password": "[secret removed: password]",
    "age": 7,
}


def test_no_route_that_writes_memory_stores_or_returns_a_secret(shared: Shared) -> None:
    http, user, agent = shared.api.http, new_id("ada"), shared.id
    words = {"description": f"d {SECRET}", "metadata": NESTED}
    titled = {**words, "title": f"t {HIDDEN_SECRET}", "course": SECRET, "message": f"m {SECRET}"}
    block = {"label": new_id("b"), "value": SECRET, **words, "tags": [SECRET, "tea"]}
    memory = f"/users/{user}/blocks/human"
    proposal = {
        "old_string": "Ada",
        "new_string": SECRET,
        "reasoning": SECRET,
        "agent_id": f"tutor {SECRET}",
    }
    passage = {"text": SECRET, "tags": [SECRET, HIDDEN_SECRET, "tea"], "metadata": NESTED}
    archive = {"name": f"a {SECRET}", **words}
    answers = [
        http.put(memory, json={"body": f"Ada {SECRET}", **titled}),
        http.patch(memory, json={**titled, "title": f"again {SECRET}"}),
        (proposed := http.post(f"{memory}/propose", json=proposal)),
        http.post(f"{memory}/diffs/{proposed.json()['id']}/reject", json={"reason": SECRET}),
        http.get(f"{memory}/diffs", params={"status": "all"}),
        http.get(f"{memory}/history"),
        (made := http.post("/v1/blocks/", json=block)),
        http.patch(f"/v1/blocks/{made.json()['id']}", json={**words, "value": f"again {SECRET}"}),
        http.post(
            "/v1/agents/", json={"model": MODEL, "memory_blocks": [{**block, "label": "notes"}]}
        ),
        http.post(f"/v1/agents/{agent}/archival-memory", json=passage),
        (archived := http.post("/v1/archives/", json=archive)),
        http.patch(
            f"/v1/archives/{archived.json()['id']}", json={**archive, "name": f"again {SECRET}"}
        ),
        http.post(f"/v1/archives/{archived.json()['id']}/passages", json=passage),
        http.post(
            f"/v1/archives/{archived.json()['id']}/passages/batch", json={"passages": [passage]}
        ),
    ]
    first = ok(http.put(f"/users/{user}/blocks/notes", json={"body": "One"}))["version"]
    ok(http.put(f"/users/{user}/blocks/notes", json={"body": "Two"}))
    collision = http.put(f"/users/{user}/blocks/notes", json={"body": SECRET, "version": first})
    assert (collision.status_code, SECRET in collision.text) == (409, False)
    for answer in answers:
        ok(answer)
        assert "sk-12" not in answer.text.replace("\u200b", ""), answer.request.url
    found = ok(http.get(memory))
    assert TOLD.items() <= found["metadata"].items()
    assert found["title"] == "again [secret removed: api key]"
    assert made.json()["tags"] == ["[secret removed: api key]", "tea"]
    assert ok(answers[-2])["tags"] == ["[secret removed: api key]", "tea"]
    assert shared.api.server.read(lambda tx: in_tables(tx, "sk-12")) == []
    assert shared.api.server.read(lambda tx: in_tables(tx, "swordfish")) == []


def test_a_label_that_contains_a_secret_is_refused_without_quoting_it(shared: Shared) -> None:
    http, user = shared.api.http, new_id("ada")
    label = {"label": SECRET, "value": "Ada."}
    ok(http.put(f"/users/{user}/blocks/human", json={"body": "Ada."}))
    block = ok(http.post("/v1/blocks/", json={"label": new_id("b"), "value": "x"}))
    for answer in (
        http.put(f"/users/{user}/blocks/{SECRET}", json={"body": "Ada."}),
        http.patch(f"/users/{user}/blocks/human", json={"label": SECRET}),
        http.post("/v1/blocks/", json=label),
        http.patch(f"/v1/blocks/{block['id']}", json={"label": SECRET}),
        http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": [label]}),
    ):
        assert answer.status_code in (400, 422), answer.text
        assert "seems to hold a secret" in answer.text
        assert SECRET not in answer.text
    assert shared.api.server.read(lambda tx: in_tables(tx, "sk-12")) == []


def test_a_tool_result_reports_secrets_removed_from_tags(shared: Shared) -> None:
    ada, _ = names()
    shared.file(ada, "Ada has a key.", f"key {SECRET}", "tea")
    result = shared.api.server.model.requests[-1].messages[-1].tool_returns[0].content
    assert "A secret (api key) was removed" in result
    assert tags_in(shared.say(ada, "Hello.")) == {"key [secret removed: api key]", "tea"}
