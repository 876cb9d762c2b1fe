from dataclasses import replace

import pytest

from ricordo.api.wire.agents import agent_to_wire, memory_to_wire, settings_to_wire
from ricordo.api.wire.schemas import AgentShape, MemoryShape
from ricordo.domain.agent import AgentState
from ricordo.domain.model import EmbeddingInfo, ModelInfo, ModelSettings
from ricordo.domain.tool import ToolRule
from tests.api.wire.fits import require_fits
from tests.support import make
from tests.support.clock import START

INFO = ModelInfo("scripted/model", "scripted", "model", "openai")


@pytest.fixture
def state() -> AgentState:
    """An agent with one of everything."""
    agent = make.agent(
        description="A companion",
        metadata={"n": 1},
        tool_rules=(ToolRule("roll_dice", "run_first"),),
        settings={"max_files_open": 3},
        model_settings=ModelSettings(response_format={"type": "text"}),
        updated_by="user-2",
    )
    thread = make.conversation(
        agent, window=("message-1",), last_run_ended_at=START, last_run_ms=12, last_stop_reason="end_turn"
    )
    return AgentState(agent, thread, (make.block(tags=("x",)),), (make.tool(),), (make.archive(),), ("a", "b"))


def test_an_agent_fits_its_shape_and_has_what_is_attached(state: AgentState) -> None:
    wire = agent_to_wire(state, INFO)

    require_fits(AgentShape, wire)
    assert wire["blocks"] == wire["memory"]["blocks"]
    assert [block["label"] for block in wire["blocks"]] == ["human"]
    assert [tool["name"] for tool in wire["tools"]] == ["roll_dice"]
    assert wire["tool_rules"] == [{"tool_name": "roll_dice", "type": "run_first", "prompt_template": None}]
    assert (wire["message_ids"], wire["tags"]) == (["message-1"], ["a", "b"])
    assert wire["last_run_completion"] == "2026-01-01T00:00:00.000000Z"
    assert (wire["last_run_duration_ms"], wire["last_stop_reason"]) == (12, "end_turn")
    assert (wire["max_files_open"], wire["per_file_view_window_char_limit"]) == (3, None)
    assert wire["response_format"] == wire["llm_config"]["response_format"] == {"type": "text"}
    assert wire["created_at"] == "2026-01-01T00:00:00.000000Z"


def test_a_bare_agent_fits_its_shape(state: AgentState) -> None:
    agent = make.agent()
    wire = agent_to_wire(AgentState(agent, make.conversation(agent)), INFO)

    require_fits(AgentShape, wire)
    assert (wire["blocks"], wire["tools"], wire["tags"], wire["last_run_completion"]) == ([], [], [], None)
    assert (wire["embedding"], wire["embedding_config"]) == (None, None)


def test_an_agent_tells_how_its_texts_are_embedded(state: AgentState) -> None:
    wire = agent_to_wire(state, INFO, EmbeddingInfo("scripted/e", "scripted", "e", "openai", 8))

    require_fits(AgentShape, wire)
    assert wire["embedding"] == wire["embedding_config"]["handle"] == "scripted/e"
    assert wire["embedding_config"]["embedding_dim"] == 8


def test_core_memory_fits_its_shape(state: AgentState) -> None:
    require_fits(MemoryShape, memory_to_wire(state))
    require_fits(MemoryShape, memory_to_wire(replace(state, blocks=())))


def test_settings_are_tagged_by_provider_and_leave_out_what_is_unset() -> None:
    assert settings_to_wire(ModelSettings(), "openai") == {"provider_type": "openai"}
    full = ModelSettings(0.0, 10, False, "low", 500, {"type": "text"}, extra={"verbosity": "low"})
    assert settings_to_wire(full, "anthropic") == {
        "provider_type": "anthropic",
        "temperature": 0.0,
        "max_output_tokens": 10,
        "parallel_tool_calls": False,
        "response_format": {"type": "text"},
        "verbosity": "low",
        "reasoning": {"reasoning_effort": "low"},
        "thinking": {"type": "enabled", "budget_tokens": 500},
    }
