"""The built-in prompts and texts for models."""

from importlib import resources

import pytest

from ricordo.llm.tokens import text_tokens
from ricordo.prompt.texts import BUILT_IN, text

MOST_TOKENS = 1_000
# The tools that a prompt explains, or a text about its task if it has no tools.
RELIES_ON = {
    "letta_v1": ("Memory blocks", "Recall memory", "Archival memory"),
    "memgpt_chat": (
        *(
            "send_message",
            "request_heartbeat",
            "conversation_search",
            "core_memory_append",
            "core_memory_replace",
        ),
        *("archival_memory_insert", "archival_memory_search"),
    ),
    "memgpt_v2_chat": (
        *(
            "send_message",
            "request_heartbeat",
            "conversation_search",
            "memory_insert",
            "memory_replace",
        ),
        *("archival_memory_insert", "archival_memory_search"),
    ),
    "react": ("request_heartbeat",),
    "workflow": ("request_heartbeat",),
    "sleeptime_v2": ("memory_insert", "memory_replace", "memory_rethink", "memory_finish_edits"),
    "sleeptime_doc_ingest": (
        "memory_insert",
        "memory_replace",
        "memory_rethink",
        "memory_finish_edits",
    ),
    "voice_chat": (
        "search_memory",
        "convo_keyword_queries",
        "start_minutes_ago",
        "end_minutes_ago",
    ),
    "voice_sleeptime": (
        *("store_memories", "start_index", "end_index", "context", "rethink_user_memory"),
        "finish_rethinking_memory",
    ),
    "memgpt_generate_tool": (
        "Args:",
        "Returns:",
        "Sample arguments",
        "JSON object",
        "Keep its name",
    ),
    "summary_system_prompt": ("deadlines", "Leave out", "Write the summary and nothing else"),
}


def test_every_system_prompt_has_its_file_and_its_check() -> None:
    assert sorted(BUILT_IN) == list(BUILT_IN) == sorted(RELIES_ON)
    assert all(
        resources.files("ricordo.prompt.texts").joinpath(f"{key}.md").is_file() for key in BUILT_IN
    )


@pytest.mark.parametrize("key", BUILT_IN)
def test_a_prompt_names_the_tools_it_relies_on_and_fits_a_small_window(key: str) -> None:
    words = text(key)
    assert [tool for tool in RELIES_ON[key] if tool not in words] == []
    assert 100 < text_tokens(words) <= MOST_TOKENS


@pytest.mark.parametrize("key", BUILT_IN)
def test_a_prompt_is_trimmed_and_closes_the_sections_it_opens(key: str) -> None:
    words = text(key)
    assert words == words.strip()
    opened = [
        line for line in words.splitlines() if line.startswith("<") and not line.startswith("</")
    ]
    assert all(line.replace("<", "</", 1) in words for line in opened)
    if opened:
        assert words.startswith("<base_instructions>\n")
        assert words.endswith("\n</base_instructions>")


@pytest.mark.parametrize("key", BUILT_IN)
def test_a_prompt_names_no_other_product_and_does_not_claim_to_be_a_person(key: str) -> None:
    words = text(key).lower()
    assert [name for name in ("letta", "memgpt", "limnal") if name in words] == []
    assert [
        claim for claim in ("you are a real person", "never state that you are") if claim in words
    ] == []


@pytest.mark.parametrize("key", ["memgpt_chat", "memgpt_v2_chat", "voice_chat"])
def test_a_prompt_with_a_persona_asks_for_honesty(key: str) -> None:
    words = text(key)
    assert "sincere" in words
    assert "persona" in words
