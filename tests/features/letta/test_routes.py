"""Tags, environments, an answer without a turn, and other requests of older clients.

The real client is used if it has them.
"""

import pytest
from letta_client import NotFoundError

from ricordo.domain.ids import new_id
from tests.api.conftest import Api
from tests.seams.http import ok, refused
from tests.seams.server import MODEL


def test_tags_of_agents_and_blocks_are_listed_alphabetically(api: Api) -> None:
    tags = ["tag-a", "tag-b", "tag-c", "tag-d"]
    api.client.agents.create(model=MODEL, tags=tags[:3])
    api.client.blocks.create(label="notes", value="", tags=tags[2:])
    assert api.client.tags.list(name="tag-") == tags
    assert api.client.tags.list(query_text="AG-B") == ["tag-b"]
    assert api.client.tags.list(name="tag-", order="desc", limit=2) == ["tag-d", "tag-c"]
    assert api.client.tags.list(name="tag-", after="tag-b") == tags[2:]
    assert api.client.tags.list(name="tag-", before="tag-d", limit=2) == tags[1:3]
    assert api.client.tags.list(name="tag-", order="desc", after="tag-c") == ["tag-b", "tag-a"]
    assert api.client.tags.list(name="100%") == []


def test_the_environments_routes_report_that_there_are_none(api: Api) -> None:
    listed = api.client.environments.list(online_only=True, source="local")
    assert (listed.connections, listed.has_next_page) == ([], False)
    with pytest.raises(NotFoundError, match="There is no environment"):
        api.client.environments.retrieve("device-1")
    refused(api.http.post("/v1/environments/device-1/messages", json={"messages": []}), 404)


def test_generate_calls_the_model_once_and_stores_only_token_usage(api: Api) -> None:
    agent = api.client.agents.create(
        model=MODEL, memory_blocks=[{"label": "human", "value": "Ada likes tea."}]
    )
    rows = {name: count for name, count in api.server.rows().items() if name != "expenses"}
    path, schema = (
        f"/v1/agents/{agent.id}/generate",
        {"type": "object", "properties": {"title": {"type": "string"}}},
    )
    api.server.says('{"title": "Tea"}')
    body = {"prompt": "A title, please.", "system_prompt": "Be short.", "response_schema": schema}
    answer = ok(api.http.post(path, json=body))
    assert (answer["content"], answer["model"]) == ('{"title": "Tea"}', MODEL)
    assert answer["usage"]["total_tokens"] > 0
    (asked,) = api.server.model.requests
    assert [(message.role, message.text) for message in asked.messages] == [
        ("system", "Be short."),
        ("user", "A title, please."),
    ]
    assert asked.tools == ()
    assert asked.settings.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema},
    }
    assert {name: count for name, count in api.server.rows().items() if name != "expenses"} == rows
    refused(api.http.post(path, json={"prompt": ""}), 422)
    refused(api.http.post(path, json={"prompt": "x", "override_model": "scripted/nothing"}), 404)


def test_older_letta_routes_answer_or_say_why_not(api: Api) -> None:
    agent = api.client.agents.create(model=MODEL)
    assert ok(api.http.get(f"/v1/agents/{agent.id}/groups")) == []
    words = refused(
        api.http.patch(
            f"/v1/agents/{agent.id}/messages/{new_id('message')}", json={"content": "x"}
        ),
        405,
    )
    assert "cannot be changed" in words
    names = {tool["name"] for tool in ok(api.http.post("/v1/tools/add-base-tools"))}
    assert {"memory_insert", "conversation_search"} < names
    # All routes below /v1 also exist below /latest.
    assert ok(api.http.get(f"/latest/agents/{agent.id}"))["id"] == agent.id
    for method, path in (
        ("POST", "/v1/nothing"),
        ("DELETE", "/v1/health"),
        ("GET", "/latest/nothing"),
    ):
        answer = api.http.request(method, path)
        told = answer.json()["detail"]
        assert (answer.status_code in (404, 405), "docs/develop/compatibility.md" in told) == (
            True,
            True,
        ), told
