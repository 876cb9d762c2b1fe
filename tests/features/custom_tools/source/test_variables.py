"""Variables of an organization: all its tools get them, and nobody reads a value."""

import json

import pytest

from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.features.custom_tools.source.test_secrets import everything
from tests.seams.http import Wire, ok
from tests.seams.people import OPERATOR, World
from tests.seams.server import MODEL, serving

TOKEN, CHANGED, OWN = "tok-11aa22bb33cc", "tok-44dd55ee66ff", "own-77aa88bb99cc"
TELLS = """
import os

def tell_variables() -> list:
    'Tell.'
    return [os.environ.get("SHOP_TOKEN"), os.environ.get("PLACE"), len(os.environ.get("SHOP_TOKEN", ""))]
"""
ROUTE = "/v1/sandbox-config"


def home_of(api: Api) -> str:
    (config,) = ok(api.http.get(f"{ROUTE}/"))
    return f"{ROUTE}/{config['id']}/environment-variable"


def trial_values(api: Api) -> list[object]:
    answer: Wire = ok(api.http.post("/v1/tools/run", json={"source_code": TELLS}))
    assert answer["status"] == "success", answer
    return list(answer["func_return"])


def test_variables_can_be_created_changed_and_deleted(api: Api) -> None:
    home = home_of(api)
    made = ok(
        api.http.post(
            home, json={"key": "SHOP_TOKEN", "value": TOKEN, "description": "Of the shop."}
        )
    )
    assert (made["key"], made["value"], made["description"]) == ("SHOP_TOKEN", "", "Of the shop.")
    other = ok(api.http.post(home, json={"key": "PLACE", "value": "Bari"}))
    assert api.http.post(home, json={"key": "PLACE", "value": "Rome"}).status_code == 409
    assert api.http.post(home, json={"key": "1 x", "value": "Rome"}).status_code == 422
    assert [one["key"] for one in ok(api.http.get(home, params={"order": "asc"}))] == [
        "SHOP_TOKEN",
        "PLACE",
    ]
    assert trial_values(api) == ["[secret SHOP_TOKEN]", "Bari", len(TOKEN)]

    tool = api.client.tools.create(source_code=TELLS)
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id], secrets={"PLACE": OWN})
    api.server.says(call("tell_variables"), "Done.")
    answer = api.client.agents.messages.create(agent.id, input="Go.")
    (returned,) = [
        one.tool_return for one in answer.messages if one.message_type == "tool_return_message"
    ]
    assert json.loads(returned) == ["[secret SHOP_TOKEN]", "[secret PLACE]", len(TOKEN)]
    shown = everything(api, agent.id, answer) + api.http.get("/ui/tools").text
    assert TOKEN not in shown
    assert OWN not in shown
    assert "SHOP_TOKEN" in api.http.get("/ui/tools").text

    place = f"{ROUTE}/environment-variable/{made['id']}"
    renamed = ok(api.http.patch(place, json={"value": CHANGED}))
    assert (renamed["key"], renamed["description"]) == ("SHOP_TOKEN", "Of the shop.")
    assert api.http.patch(place, json={"key": "PLACE"}).status_code == 409
    assert trial_values(api)[2] == len(CHANGED)
    assert api.http.delete(place).status_code == 204
    assert api.http.delete(place).status_code == 404
    assert trial_values(api) == [None, "Bari", 0]
    assert api.http.delete(f"{ROUTE}/environment-variable/{other['id']}").status_code == 204
    assert trial_values(api) == [None, None, 0]
    api.client.tools.delete(tool.id)


def test_the_sandbox_configuration_cannot_be_changed_over_the_api(api: Api) -> None:
    (config,) = ok(api.http.get(f"{ROUTE}/", params={"sandbox_type": "local"}))
    assert ok(api.http.get(f"{ROUTE}/", params={"sandbox_type": "e2b"})) == []
    assert ok(api.http.get(f"{ROUTE}/", params={"after": config["id"]})) == []
    for path, body in (
        ("local/default", None),
        ("local", {}),
        ("", {"config": {}}),
        ("", {"config": {"pip_requirements": []}}),
    ):
        assert ok(api.http.post(f"{ROUTE}/{path}", json=body)) == config
    assert ok(api.http.patch(f"{ROUTE}/{config['id']}", json={"config": {}})) == config
    for path, body in (
        ("e2b/default", None),
        ("local/recreate-venv", None),
        ("", {"config": {"sandbox_dir": "/tmp/x"}}),
    ):
        refused = api.http.post(f"{ROUTE}/{path}", json=body)
        assert (refused.status_code, "RICORDO_SANDBOX" in refused.text) == (
            409 if path else 422,
            True,
        ), refused.text
    assert api.http.delete(f"{ROUTE}/{config['id']}").status_code == 409
    for path in ("sandbox-1", "sandbox-1/environment-variable"):
        assert (
            api.http.request(
                "DELETE" if path.endswith("1") else "GET", f"{ROUTE}/{path}"
            ).status_code
            == 404
        )


def test_the_tools_page_stores_and_deletes_variables(api: Api) -> None:
    sent = {"name": "PAGE_KEY", "value": TOKEN}
    assert (
        api.http.post("/ui/tools/variables", data=sent, follow_redirects=False).status_code == 303
    )
    page = api.http.get("/ui/tools").text
    assert "PAGE_KEY" in page
    assert TOKEN not in page
    (one,) = [one for one in ok(api.http.get(home_of(api))) if one["key"] == "PAGE_KEY"]
    api.http.post("/ui/tools/variables", data={"delete": one["id"]})
    assert "PAGE_KEY" not in api.http.get("/ui/tools").text


def test_each_organization_has_its_own_variables(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        serving(tmp_path_factory.mktemp("data"), api_key=OPERATOR) as server,
        server.http() as http,
    ):
        world = World(server, http)
        other = world.ask(OPERATOR, "POST", "/v1/organizations/", json={"name": "Other"})["id"]
        boss = world.key("boss", "admin", organization=other)
        places = {}
        for key in (OPERATOR, boss):
            (config,) = world.ask(key, "GET", f"{ROUTE}/")
            places[key] = f"{ROUTE}/{config['id']}/environment-variable"
        made = world.ask(
            OPERATOR, "POST", places[OPERATOR], json={"key": "SHOP_TOKEN", "value": TOKEN}
        )
        assert world.ask(boss, "GET", places[boss]) == []
        assert world.send(boss, "GET", places[OPERATOR]).status_code == 404
        assert (
            world.send(boss, "DELETE", f"{ROUTE}/environment-variable/{made['id']}").status_code
            == 404
        )
        answer = world.ask(boss, "POST", "/v1/tools/run", json={"source_code": TELLS})
        assert answer["func_return"] == [None, None, 0]
