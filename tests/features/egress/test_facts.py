"""Policies of kinds of facts: in the prompt, next to the hits of a search, and as sources."""

from typing import Any

import httpx2
import pytest

from ricordo.domain.scope import Scope
from ricordo.features.knowledge.facts import decisions, queries
from ricordo.storage import users
from tests.features.egress.providers import CLOUD, LOCAL, World, says
from tests.features.egress.test_blocks import agent_of
from tests.seams.http import ok, refused

USER = {"x-ricordo-user": "eve"}
ABOUT = {"label": "about_the_user", "value": "", "read_only": True}


@pytest.fixture
def eve(http: httpx2.Client) -> str:
    """Make a user with a fact that only local models may see, and one without a policy."""
    ok(http.put("/users/eve/blocks/human", json={"body": "A text."}))
    path = "/v1/users/eve/facts"
    ok(http.put(f"{path}/egress", json={"kind": "who", "allowed": None}, headers=USER))
    for body in (
        {"sentence": "I live in vuqkzoqtown", "kind": "who"},
        {"sentence": "I like green tea", "kind": "preference"},
    ):
        ok(http.post(path, json=body, headers=USER))
    ok(http.put(f"{path}/egress", json={"kind": "who", "allowed": ["local"]}, headers=USER))
    ok(http.post(path, json={"sentence": "I study at vuqkzoqschool", "kind": "who"}, headers=USER))
    return "eve"


def say(http: httpx2.Client, agent: str, text: str) -> Any:
    body = {"messages": [{"role": "user", "content": text}]}
    return ok(http.post(f"/v1/agents/{agent}/messages", json=body, headers=USER))


def with_facts(http: httpx2.Client, model: str) -> str:
    body = {"model": model, "memory_blocks": [ABOUT]}
    return str(ok(http.post("/v1/agents/", json=body))["id"])


def test_facts_of_a_kind_are_withheld_line_by_line(
    world: World, http: httpx2.Client, eve: str
) -> None:
    agent = with_facts(http, CLOUD)
    say(http, agent, "Hello.")
    assert "I like green tea" in world.cloud.last or "Likes green tea" in world.cloud.last
    assert world.cloud.last.count("[1 line withheld from openai by an egress policy]") == 2
    local = with_facts(http, LOCAL)
    say(http, local, "Hello.")
    assert world.local.saw("vuqkzoqtown")
    assert not world.cloud.saw("vuqkzoq")


def test_search_results_leave_out_restricted_facts(
    world: World, http: httpx2.Client, eve: str
) -> None:
    agent = agent_of(http, model=CLOUD)
    world.cloud.script.append(says("", ("conversation_search", {"query": "live study tea"})))
    say(http, agent, "Where do I live?")
    assert not world.cloud.script
    assert "green tea" in world.cloud.last
    assert not world.cloud.saw("vuqkzoq")


def test_ask_sends_no_restricted_facts_to_a_forbidden_model(
    world: World, http: httpx2.Client, eve: str
) -> None:
    question = {"question": "Where do I live, and which tea do I like?", "model": CLOUD}
    ok(http.post("/users/eve/ask", json=question))
    assert world.cloud.saw("green tea")
    assert not world.cloud.saw("vuqkzoq")


def test_only_the_user_may_loosen_the_policy_of_their_facts(http: httpx2.Client, eve: str) -> None:
    path = f"/v1/users/{eve}/facts/egress"
    assert ok(http.get(path)) == [{"kind": "who", "allowed": ["local"]}]
    looser = {"kind": "who", "allowed": None}
    refused(http.put(path, json=looser), 403)
    ok(http.put(path, json=looser, headers=USER))
    assert ok(http.get(path)) == []


def test_others_can_only_tighten_the_policy_of_a_fact_moved_to_another_kind(
    world: World, http: httpx2.Client, eve: str
) -> None:
    path = f"/v1/users/{eve}/facts"
    (fact,) = [
        fact for fact in ok(http.get(path, params={"kind": "who"})) if "town" in fact["sentence"]
    ]
    moved = ok(http.patch(f"{path}/{fact['id']}", json={"kind": "event"}, headers=USER))
    user = world.server.read(lambda tx: users.require(tx, Scope(), eve))

    def label() -> str | None:
        (row,) = world.server.read(lambda tx: queries.by_ids(tx, [moved["id"]]))
        return row.egress

    assert label() == "local"
    world.server.write(lambda tx: decisions.set_egress(tx, Scope(), user, "event", ["openai"]))
    assert label() == "local;openai"
    ok(http.put(f"{path}/egress", json={"kind": "event", "allowed": None}, headers=USER))
    assert label() is None
