"""The built-in words for models."""

from typing import get_args

import pytest

from ricordo.domain.agent import AgentType
from ricordo.prompt.texts import default_system, text


@pytest.mark.parametrize("agent_type", ["letta_v1_agent", "split_thread_agent"])
def test_a_native_agent_is_told_about_its_three_kinds_of_memory(agent_type: AgentType) -> None:
    system = default_system(agent_type)
    assert system is not None
    for word in ("Memory blocks", "Recall memory", "Archival memory"):
        assert word in system


def test_every_built_in_prompt_is_trimmed_and_closes_the_section_it_opens() -> None:
    prompts = [system for agent_type in get_args(AgentType) if (system := default_system(agent_type))]
    assert prompts
    for system in prompts:
        assert system == system.strip()
        assert system.startswith("<base_instructions>\n")
        assert system.endswith("\n</base_instructions>")


def test_an_unknown_text_is_an_error_of_ours() -> None:
    with pytest.raises(FileNotFoundError):
        text("no_such_prompt")
