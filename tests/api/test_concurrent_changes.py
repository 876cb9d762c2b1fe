"""Two concurrent changes to one object, on PostgreSQL: neither undoes the other."""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2
import psycopg
import pytest

from ricordo.api.routing import GuardedRoute
from tests.seams.http import ok
from tests.seams.people import OPERATOR, World, bearer, world_on
from tests.seams.routes import fill
from tests.seams.server import LIMIT

# The table that each route changes last, and new values of its fields. A change of one field is
# sent together with a change of the next field.
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/agents/{agent_id}": (
        "agents",
        {"name": "Ona", "description": "New.", "metadata": {"a": 1}, "timezone": "Europe/Rome"},
    ),
    "/v1/conversations/{conversation_id}": (
        "conversations",
        {"summary": "New.", "hidden": True, "archived": True},
    ),
    "/v1/blocks/{block_id}": (
        "blocks",
        {"value": "New.", "description": "New.", "metadata": {"a": 1}, "tags": ["new"]},
    ),
    "/v1/agents/{agent_id}/core-memory/blocks/{block_label:path}": (
        "blocks",
        {"value": "New.", "description": "Newer.", "metadata": {"a": 2}},
    ),
    "/v1/tools/{tool_id}": (
        "tools",
        {"description": "New.", "tags": ["new"], "return_char_limit": 77},
    ),
    "/v1/providers/{provider_id}": ("providers", {"region": "eu", "api_version": "2"}),
    "/v1/steps/{step_id}/feedback": ("steps", {"feedback": "positive", "tags": ["new"]}),
    "/v1/archives/{archive_id}": (
        "archives",
        {"name": "New", "description": "New.", "metadata": {"a": 1}},
    ),
    "/v1/sandbox-config/environment-variable/{variable_id}": (
        "tool_variables",
        {"key": "NEW", "description": "New."},
    ),
    "/v1/folders/{folder_id}": (
        "folders",
        {"name": "New", "description": "New.", "instructions": "New.", "metadata": {"a": 1}},
    ),
    "/v1/sources/{folder_id}": (
        "folders",
        {"name": "Newer", "description": "Newer.", "instructions": "Newer.", "metadata": {"a": 2}},
    ),
    "/v1/groups/{group_id}": ("groups", {"description": "New.", "hidden": True}),
    "/v1/users/{user}": ("users", {"name": "New", "email": "a@example.org", "identifier": "faye"}),
    "/v1/identities/{identity_id}": (
        "users",
        {
            "name": "New",
            "identity_type": "org",
            "properties": [{"key": "a", "value": "1", "type": "string"}],
        },
    ),
    "/v1/mcp-servers/{mcp_server_id}": (
        "mcp_servers",
        {"server_name": "new-name", "allowed_tools": ["none"]},
    ),
    "/users/{user_id}/notifications": (
        "notification_preferences",
        {"email": "daily", "webhook": "off", "hour": 7},
    ),
    "/v1/notifications": (
        "notification_preferences",
        {"email": "daily", "webhook": "off", "hour": 7},
    ),
    "/v1/users/{user_id}/learning/{course_name}": (
        "learner_choices",
        {"is_off": True, "shares": True, "retention_days": 9},
    ),
    "/users/{user_id}/blocks/{label:path}": (
        "blocks",
        {"title": "New.", "description": "New.", "limit": 999, "metadata": {"a": 1}},
    ),
}
# Routes that change one thing only, or store a new version of the whole.
WHOLE = {
    "/v1/agents/{agent_id}/budget": "the budget is one number",
    "/v1/agents/{agent_id}/sleeptime": "only the pause can be changed",
    "/v1/agents/{agent_id}/skills/{skill_name}": "only the policy can be changed",
    "/v1/users/{user_id}/skills/{skill_name}": "only the policy can be changed",
    "/v1/skills/{skill_name}": "only the policy can be changed",
    "/v1/agents/{agent_id}/tools/approval/{tool_name}": "only the approval can be changed",
    "/v1/users/{user_id}/guardians/{guardian_id}": "only what a guardian sees can be changed",
    "/v1/sandbox-config/{sandbox_config_id}": "nothing is stored",
    "/v1/templates/{template_name}": "the whole content is stored as a new version",
    "/v1/tools/mcp/servers/{mcp_server_name}": "calls the route of /v1/mcp-servers",
    "/v1/users/{user_id}/facts/{fact_id}": "a corrected fact is a new fact",
    "/v1/agents/{agent_id}/messages/{message_id}": "the whole text is replaced",
    "/v1/groups/{group_id}/messages/{message_id}": "the whole text is replaced",
}
WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_on(tmp_path_factory.mktemp("concurrent"), "postgresql") as opened:
        yield opened


def test_two_changes_of_different_fields_both_survive(world: World) -> None:
    """Both requests have read the row before either may write it."""
    secret = world.server.settings.database_url
    assert secret
    values = {**world.shared, **world.own, "block_id": world.shared["shared_block_id"]}
    lost = []
    address = secret.get_secret_value()
    with (
        psycopg.connect(address) as holder,
        psycopg.connect(address, autocommit=True) as observer,
        ThreadPoolExecutor(2) as callers,
    ):
        for path, (table, fields) in CHANGES.items():
            url = fill(path, values)
            headers = bearer(world.ada if "{user_id}" in path else OPERATOR)
            for pair in itertools.pairwise(fields.items()):
                holder.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
                sent = [
                    callers.submit(world.http.patch, url, json={name: new}, headers=headers)
                    for name, new in pair
                ]
                wait_for_both(observer, sent)
                holder.rollback()
                answers = [each.result() for each in sent]
                assert {answer.status_code for answer in answers} <= {200, 409}, (
                    path,
                    [answer.text for answer in answers],
                )
                stored = ok(world.http.patch(url, json={}, headers=headers))
                lost += [
                    f"{path}: {name} is {stored[name]!r}"
                    for (name, new), answer in zip(pair, answers, strict=True)
                    if answer.status_code == 200 and stored[name] != new
                ]
                assert any(answer.status_code == 200 for answer in answers), path
    assert not lost


def wait_for_both(observer: psycopg.Connection[Any], sent: list[Future[httpx2.Response]]) -> None:
    """Return when both requests wait for a lock, or one was answered before it wrote."""
    deadline = time.monotonic() + LIMIT
    while not any(each.done() for each in sent):
        (count,) = observer.execute(WAITING.encode()).fetchone() or (0,)
        if count >= 2:
            return
        assert time.monotonic() < deadline, "a request did not reach its write"
        time.sleep(0.01)


def test_each_route_that_changes_fields_is_tested(world: World) -> None:
    known = {*CHANGES, *WHOLE}
    document = world.server.app.openapi()["paths"]
    with_body = {
        route.path
        for route in world.server.app.routes
        if isinstance(route, GuardedRoute)
        and "PATCH" in route.methods
        and "requestBody" in document.get(route.path_format, {}).get("patch", {})
    }
    assert with_body <= known, with_body - known
