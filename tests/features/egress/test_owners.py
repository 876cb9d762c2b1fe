"""Setting a policy: the owner may set any, everybody else only a stricter one."""

from pathlib import Path
from typing import Any

import httpx2

from tests.features.egress.providers import CLOUD, LOCAL, World
from tests.features.egress.test_blocks import agent_of, allow, block_of
from tests.seams.http import ok, refused
from tests.seams.server import serving


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
