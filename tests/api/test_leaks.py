"""What one user said or keeps reaches no other, by searches, prompts or lists, though nobody has a key."""

from typing import Any

import pytest

from ricordo.domain.ids import new_id
from ricordo.llm.scripted import call
from ricordo.storage.engine.store import Transaction
from ricordo.storage.migrations import part_tags_by_users
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.server import MODEL

Wire = dict[str, Any]


class Shared:
    """An agent that talks with several users, and with nobody in particular."""

    def __init__(self, api: Api) -> None:
        self.api = api
        tools = ["conversation_search", "archival_memory_search", "archival_memory_insert", "memory_insert"]
        blocks = [{"label": "persona", "value": "I am Nina."}]
        given = {"model": MODEL, "tools": tools, "include_base_tools": False, "memory_blocks": blocks}
        self.id = str(ok(api.http.post("/v1/agents/", json=given))["id"])
        self.conversations: dict[str | None, Wire] = {}

    def conversation(self, user: str | None) -> Wire:
        if user not in self.conversations:
            query = {"agent_id": self.id}
            made = ok(self.api.http.post("/v1/conversations/", params=query, json={"user_id": user} if user else {}))
            self.conversations[user] = made
        return self.conversations[user]

    def say(self, user: str | None, words: str, *lines: Any) -> str:
        """Send a message in the user's conversation; returns the last prompt."""
        self.api.server.says(*lines, "Done.")
        path = f"/v1/conversations/{self.conversation(user)['id']}/messages"
        ok(self.api.http.post(path, json={"messages": [{"role": "user", "content": words}], "streaming": False}))
        return self.prompt

    def file(self, user: str | None, text: str, *tags: str) -> None:
        self.say(user, "Keep that.", call("archival_memory_insert", content=text, tags=list(tags)))

    def finds(self, user: str | None, tool: str, words: str) -> str:
        """The result of the agent's search in a conversation with this user."""
        self.say(user, "Search.", call(tool, query=words))
        return str(self.api.server.model.requests[-1].messages[-1].tool_returns[0].content)

    def passages(self) -> dict[str, str]:
        """The ids of the passages by their texts."""
        listed = ok(self.api.http.get(f"/v1/agents/{self.id}/archival-memory", params={"limit": 1000}))
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


def test_a_conversation_searches_what_is_shared_its_users_and_its_own(shared: Shared) -> None:
    ada, bea = names()
    for user, words in ((ada, "Ada keeps a zebra."), (bea, "Bea keeps a zebra."), (None, "Somebody keeps a zebra.")):
        shared.say(user, words)
        shared.file(user, f"Filed: {words}")
    for tool in ("conversation_search", "archival_memory_search"):
        found = {user: shared.finds(user, tool, "zebra") for user in (ada, bea, None)}
        assert {"Ada", "Somebody"} == {name for name in ("Ada", "Bea", "Somebody") if name in found[ada]}
        assert {"Bea", "Somebody"} == {name for name in ("Ada", "Bea", "Somebody") if name in found[bea]}
        assert {"Somebody"} == {name for name in ("Ada", "Bea", "Somebody") if name in found[None]}
    # The administrator, who asks by REST without naming anybody, sees everything.
    http = shared.api.http
    hits = ok(http.post("/v1/messages/search", json={"query": "zebra", "agent_id": shared.id}))
    assert {"Ada keeps a zebra.", "Bea keeps a zebra."} <= {hit["content"] for hit in hits}
    passages = ok(http.get(f"/v1/agents/{shared.id}/archival-memory/search", params={"query": "zebra"}))
    assert passages["count"] == 3


def tags_in(prompt: str) -> set[str]:
    (line,) = [line for line in prompt.splitlines() if "archival memory tags" in line] or [": "]
    return set(filter(None, line.partition(": ")[2].split(", ")))


def test_a_prompt_holds_the_tags_of_shared_passages_and_of_its_users_alone(shared: Shared) -> None:
    ada, bea = names()
    shared.file(ada, "Ada sees a doctor.", "illness", "common")
    shared.file(bea, "Bea sees a lawyer.", "lawsuit", "common")
    shared.file(None, "The library opens at nine.", "hours")
    expected = {ada: {"illness", "common", "hours"}, bea: {"lawsuit", "common", "hours"}, None: {"hours"}}
    assert {user: tags_in(shared.say(user, "Hello.")) for user in expected} == expected
    assert {user: tags_in(shared.say(user, "Hello again.")) for user in expected} == expected
    # What is deleted takes its tags along, each from those prompts alone that showed it for its sake.
    everything = shared.passages()
    shared.delete(everything["The library opens at nine."])
    shared.file(None, "Opening hours are the same for all.", "common")
    shared.delete(everything["Bea sees a lawyer."])
    expected = {ada: {"illness", "common"}, bea: {"common"}, None: {"common"}}
    assert {user: tags_in(shared.say(user, "Hello once more.")) for user in expected} == expected
    shared.delete(shared.passages()["Opening hours are the same for all."])
    expected = {ada: {"illness", "common"}, bea: set(), None: set()}
    assert {user: tags_in(shared.say(user, "And now?")) for user in expected} == expected


def test_a_prompt_made_anew_within_a_turn_shows_the_tags_that_were_just_filed(shared: Shared) -> None:
    ada, bea = names()
    shared.file(ada, "Ada sees a doctor.", "illness")
    shared.file(bea, "Bea sees a lawyer.", "lawsuit")
    file = call("archival_memory_insert", content="Ada has a cat.", tags=["pets"])
    prompt = shared.say(
        ada, "Keep that too.", [file, call("memory_insert", label="persona", new_string="I like cats.")]
    )
    assert tags_in(prompt) == {"illness", "pets"}
    assert tags_in(shared.say(ada, "Hello.")) == {"illness", "pets"}


def test_tags_of_an_earlier_version_are_parted_by_users(shared: Shared) -> None:
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
