from ricordo.api.wire.models import (
    embedding_config_to_wire,
    embedding_model_to_wire,
    model_config_to_wire,
    model_to_wire,
)
from ricordo.api.wire.schemas import EmbeddingConfigShape, EmbeddingModelShape, ModelConfigShape, ModelShape
from ricordo.domain.model import EmbeddingInfo, ModelInfo, ModelSettings
from tests.api.wire.fits import require_fits

INFO = ModelInfo("openai/gpt-x", "openai", "gpt-x", "openai", 64_000, "https://api.example.org/v1")


def test_a_configuration_follows_from_the_model_and_its_settings() -> None:
    settings = ModelSettings(0.5, 100, True, "high", 2000, {"type": "json_object"})

    wire = model_config_to_wire(INFO, 8000, settings)

    require_fits(ModelConfigShape, wire)
    assert wire == {
        "model": "gpt-x",
        "display_name": "gpt-x",
        "model_endpoint_type": "openai",
        "model_endpoint": "https://api.example.org/v1",
        "provider_name": "openai",
        "provider_category": "base",
        "model_wrapper": None,
        "context_window": 8000,
        "put_inner_thoughts_in_kwargs": False,
        "handle": "openai/gpt-x",
        "temperature": 0.5,
        "max_tokens": 100,
        "enable_reasoner": True,
        "reasoning_effort": "high",
        "max_reasoning_tokens": 2000,
        "parallel_tool_calls": True,
        "response_format": {"type": "json_object"},
    }


def test_what_is_not_set_takes_the_values_clients_know() -> None:
    wire = model_config_to_wire(INFO, 8000, ModelSettings())

    require_fits(ModelConfigShape, wire)
    assert (wire["temperature"], wire["max_reasoning_tokens"], wire["enable_reasoner"]) == (1.0, 0, False)
    assert model_config_to_wire(INFO, 8000, ModelSettings(temperature=0.0))["temperature"] == 0.0


def test_a_listed_model_tells_its_own_window() -> None:
    wire = model_to_wire(INFO)

    require_fits(ModelShape, wire)
    assert (wire["name"], wire["provider_type"], wire["model_type"]) == ("gpt-x", "openai", "llm")
    assert wire["max_context_window"] == wire["context_window"] == 64_000


EMBEDDING = EmbeddingInfo("ollama/nomic", "ollama", "nomic", "ollama", 768, "http://127.0.0.1:11434/v1")


def test_an_embedding_configuration_follows_from_the_model() -> None:
    wire = embedding_config_to_wire(EMBEDDING)

    require_fits(EmbeddingConfigShape, wire)
    assert wire == {
        "embedding_endpoint_type": "ollama",
        "embedding_endpoint": "http://127.0.0.1:11434/v1",
        "embedding_model": "nomic",
        "embedding_dim": 768,
        "embedding_chunk_size": 300,
        "handle": "ollama/nomic",
        "batch_size": 32,
        "azure_endpoint": None,
        "azure_version": None,
        "azure_deployment": None,
    }


def test_a_kind_that_clients_do_not_know_is_called_openai_and_unknown_dimensions_are_zero() -> None:
    wire = embedding_config_to_wire(EmbeddingInfo("openrouter/x", "openrouter", "x", "openrouter"))

    require_fits(EmbeddingConfigShape, wire)
    assert (wire["embedding_endpoint_type"], wire["embedding_dim"], wire["handle"]) == ("openai", 0, "openrouter/x")


def test_a_listed_embedding_model_says_what_it_is() -> None:
    wire = embedding_model_to_wire(EMBEDDING)

    require_fits(EmbeddingModelShape, wire)
    assert (wire["name"], wire["provider_name"], wire["model_type"]) == ("nomic", "ollama", "embedding")
    assert wire["embedding_dim"] == 768
