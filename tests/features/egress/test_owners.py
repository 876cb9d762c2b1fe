"""Setting a policy: the owner may set any, everybody else only a stricter one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from ricordo.agents.hearing import store_heard
from ricordo.agents.request import NewMessage, TurnRequest
from ricordo.agents.turn_start import new_run
from ricordo.domain.message import TextPart
from ricordo.domain.scope import ROLE_SCOPES, Scope
from ricordo.errors import Forbidden
from ricordo.features.egress import service
from ricordo.features.knowledge.facts import decisions
from ricordo.storage import conversations, runs, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import messages
from tests.features.egress.providers import CLOUD, LOCAL, World
from tests.features.egress.test_blocks import agent_of, allow, block_of
from tests.seams.http import ok, refused
from tests.seams.server import serving
from tests.seams.stores import overlapped


def test_only_the_user_may_loosen_the_policy_of_their_memory(
    world: World, http: httpx2.Client
) -> None:
    ok(http.put("/users/ada/blocks/human", json={"body": "Text of Ada."}))
    blocks = ok(http.get("/v1/blocks/", params={"value_search": "Text of Ada."}))
    path = f"/v1/blocks/{blocks[0]['id']}/egress"
    ada = {"x-ricordo-user": "ada"}

    def put(allowed: Any, **headers: str) -> httpx2.Response:
        return http.put(path, json={"allowed": allowed}, headers=headers)

    ok(put(["local", "openai"], **ada))
    # The server's administrator does not act for the user here.
    assert ok(put(["local"]))["allowed"] == ["local"]
    for looser in (None, ["local", "openai"], ["openai"]):
        assert "Only the owner" in refused(put(looser), 403)
    assert ok(put([]))["allowed"] == []
    assert ok(put(None, **ada))["allowed"] is None
    assert ok(http.get(path))["allowed"] is None


def test_another_user_can_neither_see_nor_set_a_policy(world: World, http: httpx2.Client) -> None:
    ok(http.put("/users/bo/blocks/human", json={"body": "Text of Bo."}))
    blocks = ok(http.get("/v1/blocks/", params={"value_search": "Text of Bo."}))
    path = f"/v1/blocks/{blocks[0]['id']}/egress"
    cy = {"x-ricordo-user": "cy"}
    refused(http.get(path, headers=cy), 404)
    refused(http.put(path, json={"allowed": []}, headers=cy), 404)


def test_everybody_else_may_only_tighten_and_what_is_shared_needs_the_right_to_write_agents(
    world: World, http: httpx2.Client
) -> None:
    lea = world.server.write(lambda tx: users.find_or_make(tx, Scope(), "lea", is_subject=True))
    headers = {"x-ricordo-user": "lea"}
    agent = agent_of(http, ("human", "Text."), model=LOCAL)
    ok(http.put("/users/lea/blocks/human", json={"body": "Text of Lea."}))
    blocks = ok(http.get("/v1/blocks/", params={"value_search": "Text of Lea."}))

    def folder_of(**headers: str) -> str:
        body = {"name": str(len(headers)) + agent, "embedding": None}
        return str(ok(http.post("/v1/folders/", json=body, headers=headers))["id"])

    everybody, owner = Scope(), Scope().acting_for(lea)
    reader = replace(owner, role="user", scopes=ROLE_SCOPES["user"])

    def put(change: Any, id: str, scope: Scope, names: list[str] | None) -> None:
        world.server.write(lambda tx: change(tx, scope, id, names))

    for change, id in (
        (service.set_block_policy, blocks[0]["id"]),
        (service.set_folder_policy, folder_of(**headers)),
        (service.set_conversation_policy, conversation_of(http, agent, **headers)),
    ):
        put(change, id, reader, ["local", "openai"])
        put(change, id, everybody, ["local"])
        for looser in (None, ["openai"], ["local", "openai"]):
            with pytest.raises(Forbidden, match="Only the owner"):
                put(change, id, everybody, looser)
        put(change, id, reader, None)
    for change, id in (
        (service.set_block_policy, block_of(http, agent, "human")),
        (service.set_folder_policy, folder_of()),
    ):
        for scope in (owner, everybody):
            put(change, id, scope, ["local"])
            put(change, id, scope, None)
        with pytest.raises(Forbidden, match="Others share this"):
            put(change, id, reader, ["local"])


def test_a_users_copy_keeps_the_policy_of_the_agents_block(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", "Text."), model=LOCAL)
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    di = {"x-ricordo-user": "di"}
    path = f"/v1/agents/{agent}/core-memory/blocks/human"
    copy = ok(http.patch(path, json={"value": "Text of Di."}, headers=di))
    policy = ok(http.get(f"/v1/blocks/{copy['id']}/egress", headers=di))
    assert policy["allowed"] == ["local"]


def test_the_block_page_shows_and_sets_the_policy(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("human", "Text."), model=LOCAL)
    block = block_of(http, agent, "human")
    page = f"/ui/blocks/{block}"
    assert 'name="egress" maxlength="3000" value=""' in http.get(page).text
    for typed, allowed, shown in (
        ("Local, openai", ["local", "openai"], "local, openai"),
        ("nobody", [], "nobody"),
        ("", None, ""),
    ):
        form = {"egress": typed, "policy": "direct"}
        headers = {"origin": str(http.base_url).rstrip("/")}
        answer = http.post(f"{page}/settings", data=form, headers=headers)
        assert answer.status_code in (200, 303), answer.text
        assert ok(http.get(f"/v1/blocks/{block}/egress"))["allowed"] == allowed
        text = http.get(page).text
        assert f'name="egress" maxlength="3000" value="{shown}"' in text
        assert ("May be sent to: " + shown in text) == bool(shown)


def test_the_agent_settings_page_warns_of_withheld_blocks_before_a_model_change(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", "Text."), model=LOCAL)
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    headers = {"origin": str(http.base_url).rstrip("/")}
    page = f"/ui/agents/{agent}/settings"
    asked = http.post(page, data={"model": CLOUD}, headers=headers)
    assert "block:human" in asked.text
    assert ok(http.get(f"/v1/agents/{agent}"))["model"] == LOCAL
    http.post(page, data={"model": CLOUD, "withheld_seen": "yes"}, headers=headers)
    assert ok(http.get(f"/v1/agents/{agent}"))["model"] == CLOUD


def test_with_egress_refuses_a_turn_with_a_forbidden_block_is_refused(tmp_path: Path) -> None:
    with (
        serving(tmp_path, egress_refuses=True) as server,
        httpx2.Client(base_url=server.url, timeout=60) as client,
    ):
        agent = agent_of(client, ("human", "Text."), model="scripted/model")
        say = {"messages": [{"role": "user", "content": "Hello."}]}
        ok(client.post(f"/v1/agents/{agent}/messages", json=say))
        allow(client, f"blocks/{block_of(client, agent, 'human')}", "local")
        sentence = refused(client.post(f"/v1/agents/{agent}/messages", json=say), 403)
        assert "block:human may not be sent to scripted" in sentence
        allow(client, f"blocks/{block_of(client, agent, 'human')}", "scripted")
        ok(client.post(f"/v1/agents/{agent}/messages", json=say))


def second_of(
    world: World, first: Callable[[Transaction], Any], second: Callable[[Transaction], Any]
) -> Any:
    """Run both units at once, beginning with the first; return the result of the second."""
    store = world.server.runtime.store
    changed, later = world.server.run(overlapped(store, first, second))
    assert not isinstance(changed, BaseException), changed
    return later


def conversation_of(http: httpx2.Client, agent: str, **headers: str) -> str:
    path = "/v1/conversations/"
    made = ok(http.post(path, params={"agent_id": agent}, json={}, headers=headers))
    return str(made["id"])


def labels_in(world: World, conversation: str) -> list[str | None]:
    statement = sa.select(messages.c.egress).where(
        messages.c.conversation_id == conversation, messages.c.role != "system"
    )
    return [row.egress for row in world.server.read(lambda tx: tx.all(statement))]


def test_a_turn_that_starts_during_a_policy_change_reads_the_new_policy(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, model=LOCAL)
    conversation = conversation_of(http, agent)

    def start(tx: Transaction) -> str | None:
        run = new_run(tx, TurnRequest(Scope(), agent, (), conversation_id=conversation))
        runs.open_run(tx, run)
        label = conversations.require(tx, Scope(), conversation).egress
        runs.end(tx, run.ended("cancelled", tx.clock.now()))
        return label

    assert (
        second_of(
            world,
            lambda tx: service.set_conversation_policy(tx, Scope(), conversation, ["local"]),
            start,
        )
        == "local"
    )


def test_others_cannot_loosen_a_policy_that_the_owner_just_tightened(
    world: World, http: httpx2.Client
) -> None:
    kai = world.server.write(lambda tx: users.find_or_make(tx, Scope(), "kai", is_subject=True))
    own, other = Scope().acting_for(kai), Scope()
    headers = {"x-ricordo-user": "kai"}
    conversation = conversation_of(http, agent_of(http, model=LOCAL), **headers)
    folder = ok(
        http.post("/v1/folders/", json={"name": "kai", "embedding": None}, headers=headers)
    )["id"]
    ok(http.put("/users/kai/blocks/human", json={"body": "Text of Kai."}))
    blocks = ok(http.get("/v1/blocks/", params={"value_search": "Text of Kai."}))

    def facts(tx: Transaction, scope: Scope, _id: str, names: list[str]) -> Any:
        return decisions.set_egress(tx, scope, kai, "who", names)

    for change, id in (
        (service.set_conversation_policy, conversation),
        (service.set_folder_policy, folder),
        (service.set_block_policy, blocks[0]["id"]),
        (facts, ""),
    ):
        later = second_of(
            world,
            lambda tx, change=change, id=id: change(tx, own, id, ["local"]),
            lambda tx, change=change, id=id: change(tx, other, id, ["openai"]),
        )
        assert isinstance(later, Forbidden), (change, later)


def test_every_message_of_a_conversation_gets_the_conversations_policy(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, model=LOCAL)
    conversation = conversation_of(http, agent)
    allow(http, f"conversations/{conversation}", "local")
    heard = NewMessage("user", (TextPart("Heard in a group."),), egress="local,vllm")
    world.server.write(lambda tx: store_heard(tx, Scope(), conversation, [heard]))
    assert labels_in(world, conversation) == ["local"]
    body = {"messages": [{"role": "user", "content": "Hello."}], "streaming": False}
    ok(http.post(f"/v1/conversations/{conversation}/messages", json=body))
    assert set(labels_in(world, conversation)) == {"local"}
