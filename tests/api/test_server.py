"""The health check, and the list of models."""

import asyncio
import threading
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from ricordo import app
from ricordo.app import open_runtime
from ricordo.domain.scope import Scope
from ricordo.errors import Unavailable
from ricordo.llm.embedding.embedded import HANDLE
from ricordo.llm.scripted import ScriptedEmbedder
from ricordo.sandbox.service import Sandbox
from ricordo.search import pgvector
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import organizations, tools
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.tools.toolbox import sync_tools
from tests.seams.server import LIMIT, ServerInThread, StrictLetta

SELECT_ONE = text("SELECT 1")


def test_health_answers_with_and_without_the_last_slash(
    client: StrictLetta, http: httpx2.Client
) -> None:
    assert client.health().version == version("ricordo")
    for path in ("/v1/health", "/v1/health/"):
        answer = http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json() == {"version": version("ricordo"), "status": "ok"}


HANDLES = ["ricordo/librarian", "scripted/model", "scripted/small", "scripted/pieces"]


def test_every_usable_model_is_listed_and_can_be_filtered_by_provider(client: StrictLetta) -> None:
    small = next(model for model in client.models.list() if model.handle == "scripted/small")
    assert (small.max_context_window, small.name, small.provider_name) == (
        16_000,
        "small",
        "scripted",
    )
    filters: list[tuple[dict[str, Any], list[str]]] = [
        ({}, HANDLES),
        ({"provider_name": "ricordo"}, ["ricordo/librarian"]),
        ({"provider_name": "nobody"}, []),
        ({"provider_type": "openai"}, HANDLES),
        ({"provider_type": "anthropic"}, []),
        ({"provider_category": ["base"]}, HANDLES),
        ({"provider_category": ["byok"]}, []),
    ]
    for query, handles in filters:
        assert [model.handle for model in client.models.list(**query)] == handles, query


def test_every_usable_embedding_model_is_listed(
    client: StrictLetta, server: ServerInThread
) -> None:
    server.runtime.models.embedders.add(ScriptedEmbedder(dimensions=8))

    listed = {model.handle: model for model in client.models.embeddings.list()}

    assert list(listed) == [HANDLE, "scripted/embedder"]
    assert [model.embedding_dim for model in listed.values()] == [256, 8]
    assert {model.api_model_type for model in listed.values()} == {"embedding"}
    assert (listed[HANDLE].name, listed[HANDLE].provider_name) == ("wordllama-256", "ricordo")
    assert listed[HANDLE].embedding_endpoint is None


def test_health_answers_while_all_reader_threads_are_busy(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.app.state.authentication.forget()
    released, store = threading.Event(), server.runtime.store
    reading = [
        asyncio.run_coroutine_threadsafe(store.read(lambda _: released.wait(LIMIT)), server.loop)
        for _ in range(200)
    ]
    try:
        assert http.get("/v1/health/").json()["status"] == "ok"
        assert not any(one.done() for one in reading)
    finally:
        released.set()
    assert all(one.result(LIMIT) for one in reading)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (app, "sweep"),
        (pgvector, "index_of"),
        (app, "sync_all_tools"),
        (app, "load_secret"),
        (Sandbox, "close"),
        (app, "finish_turns"),
    ],
)
async def test_a_server_that_fails_to_open_or_close_leaves_its_database_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Any, name: str
) -> None:
    settings = Settings(data_dir=tmp_path, find_local_models=False, api_key=None)
    closed = []
    close = SqliteStore.close

    async def close_and_note(store: SqliteStore) -> None:
        await close(store)
        closed.append(store)

    def fail(*_: Any) -> None:
        raise Unavailable("It fails.")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "close", close_and_note)
        patch.setattr(part, name, fail)
        with pytest.raises(Unavailable, match="It fails"):
            async with open_runtime(settings, ProviderSettings.model_construct()):
                pass
    assert len(closed) == 1
    async with open_runtime(settings, ProviderSettings.model_construct()) as runtime:
        assert await runtime.store.read(lambda tx: tx.all(SELECT_ONE)) == [(1,)]


async def test_built_in_tools_are_stored_in_a_transaction_for_each_organization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path, find_local_models=False, api_key=None)
    async with open_runtime(settings, ProviderSettings.model_construct()) as runtime:
        store = runtime.store
        for name in ("one", "two", "three"):
            await store.write(partial(organizations.create, name=name))
        writes: list[Any] = []
        write = store.write

        async def counted(work: Any) -> Any:
            writes.append(work)
            return await write(work)

        monkeypatch.setattr(store, "write", counted)
        await app.sync_all_tools(store, runtime.toolbox)
        assert sum(getattr(work, "func", None) is sync_tools for work in writes) == 4
        every_id = await store.read(organizations.every_id)
        for organization_id in every_id:
            scope = Scope(organization_id)
            stored = await store.read(partial(tools.by_names, scope=scope, names=["memory_insert"]))
            assert list(stored) == ["memory_insert"]
