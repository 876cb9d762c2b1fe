import pytest

from ricordo.llm.embedding.embedded import HANDLE
from ricordo.llm.embedding.scripted import ScriptedEmbedder
from tests.support.serving import ServerInThread, StrictLetta

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


@pytest.mark.parametrize(
    ("query", "handles"),
    [
        ({"provider_name": "ricordo"}, ["ricordo/librarian"]),
        ({"provider_name": "nobody"}, []),
        ({"provider_type": "openai"}, HANDLES),
        ({"provider_type": "anthropic"}, []),
        ({"provider_category": ["base"]}, HANDLES),
        ({"provider_category": ["byok"]}, []),
    ],
)
def test_models_are_filtered(client: StrictLetta, query: dict[str, object], handles: list[str]) -> None:
    assert [model.handle for model in client.models.list(**query)] == handles  # type: ignore[arg-type]


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
