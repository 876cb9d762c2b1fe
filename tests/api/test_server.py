"""Whether the server answers, and its models."""

from importlib.metadata import version
from typing import Any

import httpx2

from ricordo.llm.embedding.embedded import HANDLE
from ricordo.llm.embedding.scripted import ScriptedEmbedder
from tests.seams.server import ServerInThread, StrictLetta


def test_the_official_client_finds_the_server_healthy(client: StrictLetta) -> None:
    health = client.health()

    assert (health.version, health.status) == (version("ricordo"), "ok")


def test_health_answers_with_and_without_the_last_slash(http: httpx2.Client) -> None:
    for path in ("/v1/health", "/v1/health/"):
        answer = http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json() == {"version": version("ricordo"), "status": "ok"}


HANDLES = ["ricordo/librarian", "scripted/model", "scripted/small", "scripted/pieces"]


def test_every_usable_model_is_listed(client: StrictLetta) -> None:
    models = client.models.list()

    assert [model.handle for model in models] == HANDLES
    assert {model.handle: model.max_context_window for model in models}["scripted/small"] == 16_000
    assert {model.handle: (model.name, model.provider_name) for model in models}["scripted/small"] == (
        "small",
        "scripted",
    )
    assert {model.provider_type for model in models} == {"openai"}


def test_models_are_filtered(client: StrictLetta) -> None:
    filters: list[tuple[dict[str, Any], list[str]]] = [
        ({"provider_name": "ricordo"}, ["ricordo/librarian"]),
        ({"provider_name": "nobody"}, []),
        ({"provider_type": "openai"}, HANDLES),
        ({"provider_type": "anthropic"}, []),
        ({"provider_category": ["base"]}, HANDLES),
        ({"provider_category": ["byok"]}, []),
    ]
    for query, handles in filters:
        assert [model.handle for model in client.models.list(**query)] == handles, query


def test_every_usable_embedding_model_is_listed(client: StrictLetta, server: ServerInThread) -> None:
    server.runtime.models.embedders.add(ScriptedEmbedder(dimensions=8))

    listed = {model.handle: model for model in client.models.embeddings.list()}

    assert list(listed) == [HANDLE, "scripted/embedder"]
    assert [model.embedding_dim for model in listed.values()] == [256, 8]
    assert {model.api_model_type for model in listed.values()} == {"embedding"}
    assert (listed[HANDLE].name, listed[HANDLE].provider_name) == ("wordllama-256", "ricordo")
    assert listed[HANDLE].embedding_endpoint is None


def test_an_agent_that_names_no_embedding_model_shows_the_default(client: StrictLetta) -> None:
    made = client.agents.create()

    assert made.embedding == HANDLE
    assert made.embedding_config is not None
    assert (made.embedding_config.handle, made.embedding_config.embedding_dim) == (HANDLE, 256)
