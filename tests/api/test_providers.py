"""Providers of an organization over HTTP, with a mock provider over real HTTP."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from ricordo.api import providers
from ricordo.api.errors import install_error_handlers
from ricordo.api.providers import ProviderResponse
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.llm.registry.models import Models
from ricordo.llm.registry.organization_providers import OrganizationProviders
from ricordo.secret import Secret
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import providers as stored
from ricordo.storage.engine.sqlite import SqliteStore
from tests.llm.talk import Waits
from tests.seams.http import AsCaller
from tests.support.model_server import Answer, ModelServer

KEY = "sk-very-secret-key"
LISTED = Answer({"object": "list", "data": [{"id": "small"}]})
OTHER = "org-00000000-0000-4000-8000-00000000000b"


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@asynccontextmanager
async def face(
    store: SqliteStore, models: Models, cipher: Secret
) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve the routes on a store; the header x-org names the caller's organization."""
    owned = OrganizationProviders(
        models,
        Waits().policy(retries=0),
        lambda organization_id: store.read(lambda tx: stored.of_organization(tx, organization_id)),
        cipher,
        allow_private=True,
    )
    app = FastAPI()
    install_error_handlers(app)
    app.router.routes.extend(providers.router.routes)
    app.state.runtime = SimpleNamespace(store=store, models=models, organization_providers=owned)

    app.add_middleware(AsCaller)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test"
    ) as client:
        yield client
    await owned.close()


@pytest.fixture
async def models(tmp_path: Path) -> AsyncIterator[Models]:
    settings = Settings(data_dir=tmp_path, find_local_models=False)
    opened = Models(
        settings, ProviderSettings.model_construct(openai_base_url="http://127.0.0.1:9")
    )
    yield opened
    await opened.close()


@pytest.fixture
async def http(
    store: SqliteStore, models: Models, tmp_path: Path
) -> AsyncIterator[httpx2.AsyncClient]:
    async with face(store, models, Secret(tmp_path)) as client:
        yield client


def held_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("ricordo.db*"))


def mine(server: ModelServer, **fields: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "provider_type": "openai",
        "api_key": KEY,
        "base_url": server.url,
    } | fields


async def made(http: httpx2.AsyncClient, server: ModelServer, **fields: Any) -> dict[str, Any]:
    response = await http.post("/v1/providers/", json=mine(server, **fields))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_a_provider_is_created_read_listed_and_deleted_without_showing_its_key(
    http: httpx2.AsyncClient, server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wire = await made(http, server, region="", access_key="")
    held = held_in(tmp_path)
    assert (b"mine" in held, KEY.encode() in held) == (True, False)
    ProviderResponse.model_validate(wire)
    assert wire["provider_category"] == "byok"
    assert wire["organization_id"] == LOCAL_ORGANIZATION
    path = f"/v1/providers/{wire['id']}"
    answers = [await http.get(path), await http.get("/v1/providers/"), await http.delete(path)]
    said = {"message": f"Provider id={wire['id']} successfully deleted"}
    assert [each.json() for each in answers] == [wire, [wire], said]
    assert (await http.get("/v1/providers/")).json() == []
    assert (await http.get(path)).status_code == 404
    assert (await http.delete(path)).status_code == 404
    assert KEY not in "".join([*(each.text for each in answers), str(wire), caplog.text])


async def test_another_organization_cannot_see_or_change_a_provider(
    http: httpx2.AsyncClient, server: ModelServer
) -> None:
    path = f"/v1/providers/{(await made(http, server))['id']}"
    theirs = {"x-org": OTHER}
    assert (await http.get("/v1/providers/", headers=theirs)).json() == []
    for response in (
        await http.get(path, headers=theirs),
        await http.patch(path, headers=theirs, json={"api_key": "x" * 9}),
        await http.post(f"{path}/check", headers=theirs),
        await http.patch(f"{path}/refresh", headers=theirs),
        await http.delete(path, headers=theirs),
    ):
        assert response.status_code == 404
    assert server.requests == []


async def test_a_stored_key_is_not_sent_to_another_address(
    http: httpx2.AsyncClient, server: ModelServer
) -> None:
    path = f"/v1/providers/{(await made(http, server))['id']}"
    async with ModelServer() as elsewhere:
        refused = await http.patch(path, json={"base_url": elsewhere.url})
        assert refused.status_code == 400
        assert "Send api_key together with a new base_url" in refused.text
        moved = await http.patch(
            path, json={"base_url": elsewhere.url, "api_key": "sk-the-next-key"}
        )
        assert moved.json()["base_url"] == elsewhere.url
        elsewhere.push(LISTED)
        assert (await http.post(f"{path}/check")).status_code == 200
        assert "sk-the-next-key" in elsewhere.requests[0].headers["authorization"]


async def test_a_check_asks_the_provider_and_stores_nothing(
    http: httpx2.AsyncClient, server: ModelServer
) -> None:
    server.push(LISTED, Answer({"error": {"message": f"Incorrect API key: {KEY}"}}, 401))
    body = {"provider_type": "openai", "api_key": KEY, "base_url": server.url}
    good, bad = [await http.post("/v1/providers/check", json=body) for _ in range(2)]
    assert good.json() == {"message": "Valid api key for provider_type=openai"}
    assert (bad.status_code, bad.json()["error"]["type"]) == (401, "llm_authentication")
    assert KEY not in bad.text
    assert (await http.get("/v1/providers/")).json() == []
    # OpenRouter's model list is public, so its key is checked by another route.
    server.push(Answer({"error": {"message": "User not found."}}, 401))
    assert (
        await http.post("/v1/providers/check", json={**body, "provider_type": "openrouter"})
    ).status_code == 401
    assert server.requests[-1].path.endswith("/key")


async def test_a_refresh_reloads_the_model_list_and_records_the_time(
    http: httpx2.AsyncClient, server: ModelServer
) -> None:
    owned = http._transport.app.state.runtime.organization_providers  # type: ignore[attr-defined]
    server.push(LISTED)
    wire = await made(http, server)
    assert wire["last_synced"] is None
    models = await owned.of(LOCAL_ORGANIZATION)
    assert [info.handle for info in await models.list()] == ["mine/small"]
    longer = Answer({"object": "list", "data": [{"id": "small"}, {"id": "new"}]})
    server.push(longer, longer)
    refreshed = (await http.patch(f"/v1/providers/{wire['id']}/refresh")).json()
    assert refreshed["last_synced"] is not None
    handles = [info.handle for info in await (await owned.of(LOCAL_ORGANIZATION)).list()]
    assert handles == ["mine/small", "mine/new"]
    server.push(Answer({"error": {"message": "no"}}, 403))
    assert (await http.patch(f"/v1/providers/{wire['id']}/refresh")).status_code == 401
    assert (await http.get(f"/v1/providers/{wire['id']}")).json() == refreshed


async def test_a_name_can_be_used_once_and_never_a_server_name(
    http: httpx2.AsyncClient, server: ModelServer
) -> None:
    await made(http, server)
    again = await http.post("/v1/providers/", json=mine(server))
    of_server = await http.post("/v1/providers/", json=mine(server, name="openai"))
    assert (again.status_code, of_server.status_code) == (409, 409)
    assert "my-openai" in of_server.text


IMPOSSIBLE: list[tuple[dict[str, Any], int]] = [
    ({"name": "a/b"}, 422),
    ({"name": ""}, 422),
    ({"name": " a"}, 422),
    ({"name": "a\nb"}, 422),
    ({"name": "a\0b"}, 422),
    ({"api_key": f"{KEY}\0"}, 422),
    ({"api_key": f"{KEY} {KEY}"}, 400),
    ({"api_key": ""}, 400),
    ({"api_key": None}, 400),
    ({"provider_type": "letta"}, 422),
    ({"provider_type": None}, 422),
    ({"name": None}, 422),
    ({"base_url": "file:///etc/passwd"}, 400),
    ({"provider_type": "bedrock"}, 400),
]


async def test_an_invalid_provider_is_refused_without_quoting_the_key(
    http: httpx2.AsyncClient, server: ModelServer
) -> None:
    for fields, status in IMPOSSIBLE:
        body = {name: value for name, value in mine(server, **fields).items() if value is not None}
        refused = await http.post("/v1/providers/", json=body)
        assert refused.status_code == status, refused.text
        assert KEY not in refused.text, fields
    assert (await http.get("/v1/providers/")).json() == []


async def test_a_key_sealed_by_another_server_is_reported_and_can_be_replaced(
    http: httpx2.AsyncClient,
    store: SqliteStore,
    models: Models,
    server: ModelServer,
    tmp_path: Path,
) -> None:
    path = f"/v1/providers/{(await made(http, server))['id']}"
    async with face(store, models, Secret(tmp_path / "other")) as copy:
        assert (await copy.get(path)).status_code == 200
        for response in (
            await copy.post(f"{path}/check"),
            await copy.patch(path, json={"api_version": "1"}),
        ):
            assert response.status_code == 503
            assert "secret.key" in response.text
        assert (await copy.patch(path, json={"api_key": "sk-the-next-key"})).status_code == 200
        server.push(LISTED)
        assert (await copy.post(f"{path}/check")).status_code == 200
