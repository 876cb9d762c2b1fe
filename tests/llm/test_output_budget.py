"""The length limit of an answer, and the measured speed of a model."""

import pytest

from ricordo.domain.model import ModelInfo
from ricordo.domain.usage import Usage
from ricordo.llm.answer_limits import ModelSpeeds, usual_output_tokens
from ricordo.llm.openai_dialect import OPENAI_ADDRESS
from ricordo.memory.summary import TIMEOUT, timeout_for

LOCAL = ModelInfo("ollama/x", "ollama", "x", "ollama", endpoint="http://127.0.0.1:11434/v1")


@pytest.mark.parametrize(
    ("window", "is_small", "chosen", "tokens"),
    [
        (128_000, False, None, 16_384),
        (32_768, False, None, 8_192),
        (8_192, False, None, 2_048),
        (8_192, True, None, 1_024),
        (2_048, True, None, 512),
        (512, True, None, 256),
        (128_000, True, None, 1_024),
        (128_000, False, 400, 400),
        (4_096, True, 3_000, 3_000),
        (1_000_000, False, 60_000, 60_000),
    ],
)
def test_an_answer_is_limited_by_the_setting_or_the_window(
    window: int, is_small: bool, chosen: int | None, tokens: int
) -> None:
    assert usual_output_tokens(LOCAL, window, is_small=is_small, chosen=chosen) == tokens


def test_an_answer_is_limited_by_the_model_except_for_openais_reasoning_models() -> None:
    short = ModelInfo("a/x", "a", "x", "openai", max_output_tokens=4_096)
    assert usual_output_tokens(short, 128_000) == 4_096
    thinker = ModelInfo("openai/o3", "openai", "o3", "openai", endpoint=OPENAI_ADDRESS)
    assert usual_output_tokens(thinker, 200_000) is None
    assert usual_output_tokens(thinker, 200_000, chosen=9_000) == 9_000
    assert (
        usual_output_tokens(
            ModelInfo("a/o3", "a", "o3", "openai", endpoint="http://host/v1"), 200_000
        )
        == 16_384
    )


def test_the_timeout_of_a_summary_follows_the_models_speed() -> None:
    speeds = ModelSpeeds()
    assert timeout_for(speeds.seconds_for("slow", 4_000, 500)) == TIMEOUT
    for _ in range(20):
        speeds.note("slow", Usage(1_000, 100), 60.0)
        speeds.note("fast", Usage(1_000, 100), 0.5)
        speeds.note("slow", Usage(3, 1), 300.0)  # too few tokens to measure a speed
    expected = speeds.seconds_for("slow", 4_000, 500)
    assert expected is not None
    assert expected == pytest.approx(8_000 / 1_800 * 60)
    assert timeout_for(expected) == pytest.approx(3 * expected)
    assert timeout_for(speeds.seconds_for("slow", 400_000, 500)) == 1_200
    assert timeout_for(speeds.seconds_for("fast", 4_000, 500)) == TIMEOUT


def test_cached_tokens_do_not_count_for_the_speed() -> None:
    speeds = ModelSpeeds()
    speeds.note("a", Usage(10_000, 100, cached_tokens=9_200), 16.0)
    assert speeds.seconds_for("a", 800, 100) == pytest.approx(16.0)
