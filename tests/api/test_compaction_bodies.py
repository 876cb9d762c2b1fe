"""`compaction_settings` as callers send them: checked, read, kept and served."""

from dataclasses import asdict
from typing import Any

import pytest
from letta_client._models import construct_type
from letta_client.types.agent_state import CompactionSettings as ClientSettings
from pydantic import ValidationError

from ricordo.api.models.compaction import CompactionSettingsRequest, CompactionSettingsResponse
from ricordo.domain.agent import CompactionSettings


def read(base: CompactionSettings | None = None, **sent: Any) -> CompactionSettings:
    return CompactionSettingsRequest.model_validate(sent).settings(base)


def test_an_empty_body_means_the_defaults() -> None:
    assert read() == CompactionSettings()
    body = CompactionSettingsRequest()
    defaults = CompactionSettings()
    for name in ("model", "prompt", "prompt_acknowledgement", "clip_chars", "mode", "sliding_window_percentage"):
        assert getattr(body, name) == getattr(defaults, name)


def test_what_was_sent_is_kept_and_served_again() -> None:
    sent = {
        "model": "openai/gpt-5-mini",
        "model_settings": {
            "provider_type": "openai",
            "temperature": 0.2,
            "reasoning": {"reasoning_effort": "low"},
            "verbosity": "low",
        },
        "prompt": "Sum up in verse.",
        "prompt_acknowledgement": True,
        "clip_chars": None,
        "mode": "self_compact_all",
        "sliding_window_percentage": 0.5,
    }
    settings = read(**sent)
    assert CompactionSettingsResponse.from_settings(settings) == sent
    assert CompactionSettings(**asdict(settings)) == settings
    client: Any = construct_type(type_=ClientSettings, value=CompactionSettingsResponse.from_settings(settings))
    assert (client.mode, client.sliding_window_percentage, client.clip_chars) == ("self_compact_all", 0.5, None)
    assert client.api_model_settings.temperature == 0.2


def test_no_model_settings_are_null_on_the_wire() -> None:
    assert CompactionSettingsResponse.from_settings(CompactionSettings())["model_settings"] is None
    assert read(model_settings=None).model_settings == {}
    assert read(CompactionSettings(model_settings={"temperature": 1.0}), model_settings=None).model_settings == {}


def test_what_is_left_out_stays_as_it_was() -> None:
    base = CompactionSettings(model="a/b", prompt="Mine.", clip_chars=9)
    assert read(base, clip_chars=8) == CompactionSettings(model="a/b", prompt="Mine.", clip_chars=8)
    assert read(base, model=None).model is None
    assert read(base, mode="all").prompt is None
    assert read(base, mode="all", prompt="Other.").prompt == "Other."
    assert read(base, mode="sliding_window").prompt == "Mine."


def test_null_where_clients_send_back_what_they_read_means_not_chosen() -> None:
    base = CompactionSettings(mode="all", prompt_acknowledgement=True, sliding_window_percentage=0.7)
    sent = {"mode": None, "prompt_acknowledgement": None, "sliding_window_percentage": None}
    assert read(base, **sent) == base


def test_fields_of_newer_clients_are_let_through() -> None:
    assert read(something_new=1) == CompactionSettings()


@pytest.mark.parametrize(
    ("sent", "where", "why"),
    [
        ({"mode": "everything"}, ("mode",), "Input should be 'all', 'sliding_window'"),
        ({"sliding_window_percentage": 1.2}, ("sliding_window_percentage",), "less than or equal to 1"),
        ({"sliding_window_percentage": -0.1}, ("sliding_window_percentage",), "greater than or equal to 0"),
        ({"sliding_window_percentage": float("nan")}, ("sliding_window_percentage",), "finite"),
        ({"clip_chars": -1}, ("clip_chars",), "greater than or equal to 0"),
        ({"clip_chars": 10**30}, ("clip_chars",), "less than or equal to"),
        ({"model": "gpt"}, (), 'a handle such as "openai/gpt-5-mini", not "gpt"'),
        ({"model": ""}, (), "a handle such as"),
        ({"model": "openai/"}, (), "a handle such as"),
        ({"model_settings": {"temperature": "hot"}}, ("model_settings", "temperature"), "valid number"),
        ({"model_settings": {"reasoning": "low"}}, ("model_settings", "reasoning"), "valid dictionary"),
        ({"model_settings": {"max_output_tokens": 0}}, ("model_settings", "max_output_tokens"), "greater than"),
        ({"prompt": "x" * 100_001}, ("prompt",), "at most 100000 characters"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place_and_reason(
    sent: dict[str, Any], where: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        read(**sent)
    fault = caught.value.errors()[0]
    assert fault["loc"] == where
    assert why in fault["msg"]
