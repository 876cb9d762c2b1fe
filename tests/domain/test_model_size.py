"""Sizes of models, read from their names."""

import pytest

from ricordo.domain.model import LIBRARIAN, ModelInfo
from ricordo.domain.model_size import billions, is_small

SMALL = """
    qwen2.5-1.5b qwen2.5:0.5b qwen2.5-coder-1.5b-instruct-q4_k_m.gguf Qwen/Qwen2.5-3B-Instruct qwen3:4b llama3.2:3b llama3.2
    llama3.2:latest meta-llama/Llama-3.2-1B-Instruct hermes-3-llama-3.2-3b-q8_0 gemma-3-1b gemma3:270m gemma3 gemma3:4b
    gemma-3n-e2b-it gemma3n:e4b phi-3-mini phi-3-mini-4k-instruct phi3:mini phi3 phi3.5 phi4-mini smollm2-360m smollm2 tinyllama
    ministral-3b deepseek-r1:1.5b nemotron-mini granite3.1-moe:1b stablelm-2-zephyr-1_6b lfm2-1.2b-extract
"""
LARGE = """
    mixtral-8x7b qwen3-30b-a3b gpt-4o-mini o4-mini gpt-4.1-nano gpt-5-mini llama-3.1-8b-instruct llama3.2-vision gemma-2-9b-it
    claude-3-haiku mistral-7b-instruct-v0.3-4bit qwen3:latest gpt-oss-20b phi3:medium phi3:14b mistral-small-latest grok-3-mini
    deepseek-chat gemini-2.5-flash-lite command-r7b-12-2024 yi-34b-200k
"""


@pytest.mark.parametrize(("names", "small"), [(SMALL, True), (LARGE, False)])
def test_a_model_with_at_most_four_billion_parameters_is_small_by_its_name(
    names: str, small: bool
) -> None:
    assert [name for name in names.split() if is_small(name) != small] == []


def test_sizes_are_read_from_names_in_every_format() -> None:
    for size in (0.5, 1, 1.5, 3, 3.8, 4, 7, 8, 13, 70, 405):
        for form in (
            "some-{}b",
            "some:{}b",
            "some-{}B-instruct",
            "org/some_{}b",
            "some-{}b-q4_k_m.gguf",
            "Some {}b chat",
        ):
            assert billions(form.format(size)) == size, form
    assert billions("some-8x7b") == 56
    assert billions("some-model") is None


def test_reported_parameters_override_a_models_name() -> None:
    assert ModelInfo("a/x", "a", "x", "openai", parameters=1.5).is_small
    assert not ModelInfo("a/tiny-1b", "a", "tiny-1b", "openai", parameters=12.0).is_small
    assert ModelInfo("a/x", "a", "x", "openai", context_window=8_192).is_small
    assert not ModelInfo("a/x", "a", "x", "openai").is_small
    assert not ModelInfo(LIBRARIAN, "ricordo", "librarian", "openai", context_window=4_096).is_small
