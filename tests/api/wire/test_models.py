from ricordo.api.wire.models import model_config_to_wire, model_to_wire
from ricordo.api.wire.schemas import ModelConfigShape, ModelShape
from ricordo.domain.model import ModelInfo, ModelSettings
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
