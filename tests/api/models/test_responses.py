"""Values in responses that are not simply a field of the domain value.

The test server itself checks that each response fits its model.
"""

from dataclasses import replace
from typing import Any, get_args

from ricordo.api.models.agents import ContextResponse
from ricordo.api.models.jobs import STATUSES, JobResponse, QueueResponse, WireStatus
from ricordo.api.models.memory import ComparisonResponse, ProposalResponse, VersionResponse
from ricordo.api.models.models import (
    EmbeddingConfigResponse,
    ModelConfigResponse,
    ModelResponse,
    settings_response,
)
from ricordo.domain.agent import AgentState
from ricordo.domain.job import Job, JobStatus
from ricordo.domain.message import (
    ApprovalPart,
    CompactionPart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from ricordo.domain.model import EmbeddingInfo, ModelInfo, ModelSettings, ToolSchema
from ricordo.domain.scope import LOCAL_ORGANIZATION, Actor
from ricordo.domain.tool import ToolRule
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.llm.tokens import tool_tokens, transcript_tokens
from ricordo.prompt.system_prompt import system_prompt
from ricordo.storage.jobs import Queue
from tests.seams import make
from tests.seams.http import require_fits
from tests.seams.stores import START

ID, OTHER = bytes(range(20)), bytes(range(1, 21))
INFO = ModelInfo("openai/gpt-x", "openai", "gpt-x", "openai", 64_000, "https://api.example.org/v1")
AGENT = make.agent(
    description="A companion",
    metadata={"n": 1},
    tool_rules=(ToolRule("roll_dice", "run_first"),),
    settings={"max_files_open": 3},
    model_settings=ModelSettings(0.5, 100, True, "high", 2000, {"type": "text"}),
    updated_by="user-2",
)
STATE = AgentState(
    AGENT,
    make.conversation(
        AGENT,
        window=("message-1",),
        last_run_ended_at=START,
        last_run_ms=12,
        last_stop_reason="end_turn",
    ),
    (make.block(tags=("x",)),),
    (make.tool(),),
    (make.archive(),),
    ("a", "b"),
)
BARE = AgentState(make.agent(), make.conversation(make.agent()))
TOOLS = (ToolSchema("look", "Look around.", {"type": "object", "properties": {}}),)
WINDOW = [
    make.message(AGENT, "You are Nina.", "system"),
    make.message(
        AGENT,
        role="summary",
        parts=(TextPart("Before."), CompactionPart("window", ("message-1",), 9, 1, 99, 9, 2)),
    ),
    make.message(AGENT, parts=(TextPart("See."), ImagePart("image/png", "eA==" * 1_000))),
    make.message(
        AGENT,
        role="approval",
        parts=(
            ReasoningPart("Hm.", signature="s"),
            ReasoningPart("", redacted="r"),
            ToolCallPart("call-1", "look", '{"at":"cat"}', is_gated=True),
        ),
    ),
    make.message(AGENT, role="approval", parts=(ApprovalPart("call-1", False, "No."),)),
    make.result(AGENT, "look", "A cat."),
]


def job(**fields: Any) -> Job:
    return Job("embed", LOCAL_ORGANIZATION, **{"created_at": START, "not_before": START, **fields})


def version(**fields: Any) -> BlockVersion:
    given: dict[str, Any] = {"blob": OTHER, "reason": "A reason", "created_at": START}
    given |= {"author": Actor("agent", "agent-1", "Nina"), **fields}
    return BlockVersion(ID, "chain-1", 7, "human", **given)


def proposal(**fields: Any) -> Proposal:
    given: dict[str, Any] = {
        "base": ID,
        "base_value": "Ada",
        "value": "Ada L.",
        "reasoning": "",
        "created_at": START,
    }
    given |= {"author": Actor("agent", "agent-1", "Nina"), **fields}
    return Proposal("proposal-1", LOCAL_ORGANIZATION, "chain-1", "human", **given)


def test_model_settings_are_tagged_by_provider_and_omit_unset_values() -> None:
    assert settings_response(ModelSettings(), "openai") == {"provider_type": "openai"}
    full = ModelSettings(0.0, 10, False, "low", 500, {"type": "text"}, extra={"verbosity": "low"})
    assert settings_response(full, "anthropic") == {
        "provider_type": "anthropic",
        "temperature": 0.0,
        "max_output_tokens": 10,
        "parallel_tool_calls": False,
        "response_format": {"type": "text"},
        "verbosity": "low",
        "reasoning": {"reasoning_effort": "low"},
        "thinking": {"type": "enabled", "budget_tokens": 500},
    }


def test_a_model_configuration_shows_its_settings_or_the_client_defaults() -> None:
    made = ModelConfigResponse.from_model(INFO, AGENT.model_settings, 8000)
    assert (made["model"], made["handle"], made["context_window"]) == (
        "gpt-x",
        "openai/gpt-x",
        8000,
    )
    assert (made["temperature"], made["max_tokens"], made["max_reasoning_tokens"]) == (
        0.5,
        100,
        2000,
    )
    assert (made["enable_reasoner"], made["reasoning_effort"], made["parallel_tool_calls"]) == (
        True,
        "high",
        True,
    )
    unset = ModelConfigResponse.from_model(INFO, ModelSettings(), 8000)
    assert (unset["temperature"], unset["max_reasoning_tokens"], unset["enable_reasoner"]) == (
        1.0,
        0,
        False,
    )
    assert ModelConfigResponse.from_model(INFO, ModelSettings(0.0), 8000)["temperature"] == 0.0
    listed = ModelResponse.of(INFO)
    assert listed["max_context_window"] == listed["context_window"] == 64_000
    other = EmbeddingConfigResponse.of(
        EmbeddingInfo("openrouter/x", "openrouter", "x", "openrouter")
    )
    assert (other["embedding_endpoint_type"], other["embedding_dim"], other["handle"]) == (
        "openai",
        0,
        "openrouter/x",
    )


def test_jobs_are_shown_with_the_clients_statuses() -> None:
    assert set(STATUSES) == set(get_args(WireStatus))
    assert {kept for statuses in STATUSES.values() for kept in statuses} == set(get_args(JobStatus))
    for status in get_args(JobStatus):
        assert status in STATUSES[JobResponse.of(job(status=status))["status"]]
    assert JobResponse.of(job())["status"] == "created"
    assert JobResponse.of(job(attempts=1))["status"] == "pending"
    assert JobResponse.of(job(payload={"agent_id": "agent-1"}))["agent_id"] == "agent-1"
    ended = JobResponse.of(job(started_at=START + 5, ended_at=START + 25))
    assert (ended["total_duration_ns"], ended["updated_at"]) == (
        20_000,
        "2026-01-01T00:00:00.000025Z",
    )
    queue = QueueResponse.of(Queue({"embed": {"waiting": 2, "failed": 1}}, 1_500_000, ()))
    assert (queue["waiting"], queue["running"], queue["failed"], queue["oldest_wait_seconds"]) == (
        2,
        0,
        1,
        1.5,
    )


def test_versions_and_proposals_have_hex_ids_and_an_author_with_a_name() -> None:
    made = VersionResponse.of(version(parents=(OTHER,)))
    assert (made["sha"], made["author"], made["parents"]) == (ID.hex(), "Nina", [OTHER.hex()])
    nameless = VersionResponse.of(version(blob=None, author=Actor("system", "import")))
    assert (nameless["author"], nameless["is_deleted"]) == ("import", True)
    assert ProposalResponse.of(proposal(value=None))["diff"].splitlines()[3] == "-Ada"
    assert ProposalResponse.of(proposal(value="Ada", new_label="person"))["diff"] == ""
    assert (
        ComparisonResponse.from_texts((ID.hex(), "Ada"), (ID.hex(), "Ada"), "human", limit=100)[
            "unified"
        ]
        == ""
    )


def test_a_context_window_shows_every_kind_of_message_and_its_counts_add_up() -> None:
    made = ContextResponse.from_window(STATE, WINDOW, TOOLS)
    require_fits(ContextResponse, made)
    system, summary, user, asked, decided, result = made["messages"]
    assert (system["role"], summary["content"]) == ("system", [{"type": "text", "text": "Before."}])
    assert user["content"][1] == {"type": "image", "source": {"type": "base64"}}
    assert [part["type"] for part in asked["content"]] == ["reasoning", "redacted_reasoning"]
    assert asked["tool_calls"] == [
        {
            "id": "call-1",
            "type": "function",
            "function": {"name": "look", "arguments": '{"at":"cat"}'},
        }
    ]
    assert decided["approvals"] == [
        {"type": "approval", "tool_call_id": "call-1", "approve": False, "reason": "No."}
    ]
    assert (result["tool_call_id"], result["tool_returns"][0]["func_response"]) == (
        "call-1",
        "A cat.",
    )
    assert made["functions_definitions"][0]["function"]["name"] == "look"
    only: list[Message] = WINDOW[:1]
    made = ContextResponse.from_window(BARE, only, TOOLS)
    parts = sum(value for key, value in made.items() if key.startswith("num_tokens_"))
    assert made["context_window_size_current"] == parts > 0
    assert made["context_window_size_max"] == BARE.agent.context_window
    assert (made["tool_usage_rules"], made["directories"], made["summary_memory"]) == (
        None,
        None,
        None,
    )
    assert (made["num_messages"], made["core_memory"]) == (1, "")
    thread = replace(STATE.conversation, token_percent=150, context_window=8_000)
    window = [
        make.message(AGENT, system_prompt(STATE, "openai", START, recall_count=36).text, "system"),
        *WINDOW[1:],
    ]
    plain, scaled = (
        ContextResponse.from_window(replace(STATE, conversation=one), window, TOOLS)
        for one in (STATE.conversation, thread)
    )
    whole = transcript_tokens(window) + tool_tokens(TOOLS)
    assert abs(plain["context_window_size_current"] - whole) <= 10
    counted = plain["num_tokens_messages"]
    assert (scaled["num_tokens_messages"], scaled["context_window_size_max"]) == (
        -(-counted * 150 // 100),
        8_000,
    )
    assert plain["system_prompt"] == AGENT.system
    empty = ContextResponse.from_window(BARE, [], ())
    assert (empty["system_prompt"], empty["num_tokens_messages"]) == (BARE.agent.system, 0)
