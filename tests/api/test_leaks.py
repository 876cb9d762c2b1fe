"""What one user said or keeps reaches no other, by searches, prompts or lists, though nobody has a key."""

from typing import Any

import pytest

from ricordo.domain.ids import new_id
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.server import MODEL

Wire = dict[str, Any]


class Shared:
    """An agent that talks with several users, and with nobody in particular."""

    def __init__(self, api: Api) -> None:
        self.api = api
        tools = ["conversation_search", "archival_memory_search", "archival_memory_insert"]
        given = {"model": MODEL, "tools": tools, "include_base_tools": False, "system": "You remember."}
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
