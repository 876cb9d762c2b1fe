"""Every answer is what its model documents, with all there can be in it and with the least."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from ricordo.api.models.agents import AgentResponse, ContextResponse, CoreMemoryResponse
from ricordo.api.models.archives import ArchiveResponse, FoundPassageResponse, PassageHitResponse, PassageResponse
from ricordo.api.models.base import Json, ResponseModel
from ricordo.api.models.jobs import STATUSES, JobResponse, QueueResponse, WireStatus
from ricordo.api.models.memory import (
    BlamedLineResponse,
    BlockResponse,
    ComparisonResponse,
    DecidedResponse,
    LineageResponse,
    OutcomeResponse,
    ProposalResponse,
    UndoneResponse,
    UserBlockResponse,
    VersionResponse,
)
from ricordo.api.models.models import (
    EmbeddingConfigResponse,
    EmbeddingModelResponse,
    ModelConfigResponse,
    ModelResponse,
    settings_response,
)
from ricordo.api.models.runs import (
    RunResponse,
    RunUsageResponse,
    StepMetricsResponse,
    StepResponse,
    StopReasonResponse,
    UsageResponse,
)
from ricordo.api.models.tools import ToolResponse, rule_response
from ricordo.api.search import FoundMessageResponse, StoredMessageHitResponse
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
from ricordo.domain.passage import Relevance
from ricordo.domain.run import RunStatus, StepStatus, StopReason
from ricordo.domain.scope import LOCAL_ORGANIZATION, Actor
from ricordo.domain.tool import ToolRule, ToolType
from ricordo.domain.usage import Usage
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.memory.approval import ProposalOutcome, Undone, UndoneBlock
from ricordo.memory.lineage import BlamedLine, HeldBlock, Lineage
from ricordo.memory.overview import overview
from ricordo.memory.recall import FoundMessage, FoundPassage
from ricordo.storage.jobs import Queue
from tests.seams import make
from tests.seams.http import require_fits
from tests.seams.stores import START

STAMP = "2026-01-01T00:00:00.000000Z"
ID, OTHER = bytes(range(20)), bytes(range(1, 21))
INFO = ModelInfo("openai/gpt-x", "openai", "gpt-x", "openai", 64_000, "https://api.example.org/v1")
EMBEDDING = EmbeddingInfo("ollama/nomic", "ollama", "nomic", "ollama", 768, "http://127.0.0.1:11434/v1")
FULL = Usage(100, 20, 60, 5, 7)
WHY = Relevance(0.5, fts_rank=2, vector_rank=7, mode="hybrid")
WHY_ANSWER = {"search_mode": "hybrid", "rrf_score": 0.5, "vector_rank": 7, "fts_rank": 2}
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
        AGENT, window=("message-1",), last_run_ended_at=START, last_run_ms=12, last_stop_reason="end_turn"
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
        AGENT, role="summary", parts=(TextPart("Before."), CompactionPart("window", ("message-1",), 9, 1, 99, 9, 2))
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
    given: dict[str, Any] = {"base": ID, "base_value": "Ada", "value": "Ada L.", "reasoning": "", "created_at": START}
    given |= {"author": Actor("agent", "agent-1", "Nina"), **fields}
    return Proposal("proposal-1", LOCAL_ORGANIZATION, "chain-1", "human", **given)


def lineage() -> Lineage:
    passage = make.passage(make.archive(), tags=("tea",))
    held = (HeldBlock("block-1", ID.hex(), version()), HeldBlock("block-2", OTHER.hex(), None))
    return Lineage("message-1", "run-1", "step-1", True, held, (passage,), ("passage-9",), (version(),), (proposal(),))


def answers() -> Iterator[tuple[type[ResponseModel], Json]]:
    """Answers of every model that is made from a domain value."""
    for state in (STATE, BARE):
        yield AgentResponse, AgentResponse.from_state(state, INFO, EMBEDDING if state is STATE else None)
        yield CoreMemoryResponse, CoreMemoryResponse.of(state)
    for block in (make.block(), make.block(hidden=True, metadata={"n": [1, None]}, tags=("a",), head=ID, title="Me")):
        yield BlockResponse, BlockResponse.of(block)
        yield UserBlockResponse, UserBlockResponse.of(block, pending=3)
    for kind in get_args(ToolType):
        yield ToolResponse, ToolResponse.of(make.tool(tool_type=kind))
    for settings in (ModelSettings(), AGENT.model_settings):
        yield ModelConfigResponse, ModelConfigResponse.from_model(INFO, settings, 8000)
    yield ModelResponse, ModelResponse.of(INFO)
    for info in (EMBEDDING, EmbeddingInfo("openrouter/x", "openrouter", "x", "openrouter")):
        yield EmbeddingConfigResponse, EmbeddingConfigResponse.of(info)
        yield EmbeddingModelResponse, EmbeddingModelResponse.of(info)
    passage = make.passage(make.archive(), "Tea.", tags=("b", "a"), metadata={"n": 1})
    yield PassageResponse, PassageResponse.of(passage)
    yield PassageHitResponse, PassageHitResponse.of(FoundPassage(passage, WHY))
    yield FoundPassageResponse, FoundPassageResponse.of(FoundPassage(passage, WHY))
    yield ArchiveResponse, ArchiveResponse.of(make.archive(), embedding="x", embedding_config=EMBEDDING)
    yield ArchiveResponse, ArchiveResponse.of(make.archive(), embedding_config=None)
    yield FoundMessageResponse, FoundMessageResponse.of(FoundMessage(make.message(AGENT), WHY))
    yield StoredMessageHitResponse, StoredMessageHitResponse.of(FoundMessage(make.call(AGENT, "look"), WHY))
    yield ContextResponse, ContextResponse.of(overview(STATE, WINDOW, TOOLS))
    yield from _answers_of_runs()
    yield from _answers_of_memory()


def _answers_of_runs() -> Iterator[tuple[type[ResponseModel], Json]]:
    error = {"type": "llm_error", "message": "No."}
    for status in get_args(RunStatus):
        run = make.run(AGENT, status=status, stop_reason="error", error=error, metadata={"n": 1}, ended_at=START)
        yield RunResponse, RunResponse.of(run)
    run = make.run(AGENT)
    yield RunResponse, RunResponse.of(run)
    for step_status in get_args(StepStatus):
        step = make.step(run, status=step_status, usage=FULL, error=error, feedback="negative", tags=("rude",))
        yield StepResponse, StepResponse.of(step)
        yield StepMetricsResponse, StepMetricsResponse.of(step)
    yield StepResponse, StepResponse.of(make.step(run))
    for usage in (Usage(), FULL):
        yield UsageResponse, UsageResponse.of(make.run(AGENT, usage=usage))
        yield RunUsageResponse, RunUsageResponse.of(make.run(AGENT, usage=usage))
    for reason in (*get_args(StopReason), None):
        yield StopReasonResponse, StopReasonResponse.of(make.run(AGENT, stop_reason=reason))
    for job_status in get_args(JobStatus):
        one = job(status=job_status, started_at=START, ended_at=START + 20, error={"type": "E", "message": "m"})
        yield JobResponse, JobResponse.of(one)
        yield QueueResponse, QueueResponse.of(Queue({"embed": {"waiting": 2}}, 1_500_000, (one,)))


def _answers_of_memory() -> Iterator[tuple[type[ResponseModel], Json]]:
    yield VersionResponse, VersionResponse.of(version(parents=(OTHER,), old_label="person"))
    yield VersionResponse, VersionResponse.of(version(blob=None, author=Actor("system", "import")))
    approved = proposal(status="approved", result=OTHER)
    for one in (
        proposal(confidence=0.5, expires_at=START, resolved_at=START, resolved_by="user-1", result=OTHER),
        proposal(base=None, base_value=None, description="New"),
        proposal(value=None),
        proposal(value="Ada", new_label="person"),
    ):
        yield ProposalResponse, ProposalResponse.of(one)
    yield DecidedResponse, DecidedResponse.from_proposal(approved, make.block(head=OTHER), 1)
    yield DecidedResponse, DecidedResponse.from_proposal(approved, None, 0)
    for decision in (
        ProposalOutcome("proposal-1", "approved", approved),
        ProposalOutcome("proposal-1", "conflicted", proposal(status="conflicted"), "Why"),
        ProposalOutcome("proposal-1", "rejected", proposal(status="rejected")),
        ProposalOutcome("proposal-1", "failed", error="Why"),
    ):
        yield OutcomeResponse, OutcomeResponse.of(decision)
    blocks = (UndoneBlock("person", "undone", make.block(head=ID)), UndoneBlock("gone", "conflicted"))
    yield UndoneResponse, UndoneResponse.of(Undone("run-1", blocks, (proposal(),)))
    yield LineageResponse, LineageResponse.of(Lineage("message-1"))
    yield LineageResponse, LineageResponse.of(lineage())
    yield BlamedLineResponse, BlamedLineResponse.of(BlamedLine(1, "Ada", version()))
    yield ComparisonResponse, ComparisonResponse.from_texts((None, ""), (ID.hex(), "Ada"), "human")


def test_every_answer_is_what_its_model_documents() -> None:
    for model, answer in answers():
        require_fits(model, answer)


def test_an_agent_has_what_is_attached_and_what_follows_from_its_settings() -> None:
    made = AgentResponse.from_state(STATE, INFO, EMBEDDING)
    assert made["blocks"] == made["memory"]["blocks"]
    assert [block["label"] for block in made["blocks"]] == ["human"]
    assert [tool["name"] for tool in made["tools"]] == ["roll_dice"]
    assert made["tool_rules"] == [{"tool_name": "roll_dice", "type": "run_first", "prompt_template": None}]
    assert (list(made["message_ids"]), list(made["tags"])) == (["message-1"], ["a", "b"])
    assert (made["last_run_completion"], made["created_at"]) == (STAMP, STAMP)
    assert (made["last_run_duration_ms"], made["last_stop_reason"]) == (12, "end_turn")
    assert (made["max_files_open"], made["per_file_view_window_char_limit"]) == (3, None)
    assert made["response_format"] == made["llm_config"]["response_format"] == {"type": "text"}
    assert (made["created_by_id"], made["last_updated_by_id"]) == (AGENT.created_by, "user-2")
    assert made["embedding"] == made["embedding_config"]["handle"] == "ollama/nomic"
    assert made["embedding_config"]["embedding_dim"] == 768
    bare = AgentResponse.from_state(BARE, INFO)
    assert (bare["embedding"], bare["embedding_config"], bare["last_run_completion"]) == (None, None, None)


def test_settings_are_tagged_by_provider_and_leave_out_what_is_unset() -> None:
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


def test_a_model_is_shown_with_its_settings_or_the_values_that_clients_know() -> None:
    made = ModelConfigResponse.from_model(INFO, AGENT.model_settings, 8000)
    assert (made["model"], made["handle"], made["context_window"]) == ("gpt-x", "openai/gpt-x", 8000)
    assert (made["temperature"], made["max_tokens"], made["max_reasoning_tokens"]) == (0.5, 100, 2000)
    assert (made["enable_reasoner"], made["reasoning_effort"], made["parallel_tool_calls"]) == (True, "high", True)
    unset = ModelConfigResponse.from_model(INFO, ModelSettings(), 8000)
    assert (unset["temperature"], unset["max_reasoning_tokens"], unset["enable_reasoner"]) == (1.0, 0, False)
    assert ModelConfigResponse.from_model(INFO, ModelSettings(0.0), 8000)["temperature"] == 0.0
    listed = ModelResponse.of(INFO)
    assert listed["max_context_window"] == listed["context_window"] == 64_000
    other = EmbeddingConfigResponse.of(EmbeddingInfo("openrouter/x", "openrouter", "x", "openrouter"))
    assert (other["embedding_endpoint_type"], other["embedding_dim"], other["handle"]) == ("openai", 0, "openrouter/x")


def test_a_block_is_read_only_by_its_flag_or_by_its_policy() -> None:
    block = make.block()
    for fields, read_only in (({"read_only": True}, True), ({"policy": "read_only"}, True), ({}, False)):
        changed = replace(block, **fields)  # type: ignore[arg-type]
        assert BlockResponse.of(changed)["read_only"] is read_only, fields
        assert UserBlockResponse.of(changed, pending=0)["policy"] == ("read_only" if read_only else "direct")


def test_tools_and_rules_have_their_names_on_the_wire() -> None:
    tool = make.tool(return_limit=100, needs_approval=True, runs_in_parallel=True, metadata={"n": 1})
    made = ToolResponse.of(tool)
    assert (made["return_char_limit"], made["metadata_"]) == (100, {"n": 1})
    assert (made["default_requires_approval"], made["enable_parallel_execution"]) == (True, True)
    rule = ToolRule("search", "max_count_per_step", "At most {n}.", {"max_count_limit": 2})
    assert rule_response(rule) == {
        "tool_name": "search",
        "type": "max_count_per_step",
        "prompt_template": "At most {n}.",
        "max_count_limit": 2,
    }


def test_jobs_are_shown_by_the_statuses_that_clients_know() -> None:
    assert set(STATUSES) == set(get_args(WireStatus))
    assert {kept for statuses in STATUSES.values() for kept in statuses} == set(get_args(JobStatus))
    for status in get_args(JobStatus):
        assert status in STATUSES[JobResponse.of(job(status=status))["status"]]
    assert JobResponse.of(job())["status"] == "created"
    assert JobResponse.of(job(attempts=1))["status"] == "pending"
    assert JobResponse.of(job(payload={"agent_id": "agent-1"}))["agent_id"] == "agent-1"
    ended = JobResponse.of(job(started_at=START + 5, ended_at=START + 25))
    assert (ended["total_duration_ns"], ended["updated_at"]) == (20_000, "2026-01-01T00:00:00.000025Z")
    queue = QueueResponse.of(Queue({"embed": {"waiting": 2, "failed": 1}}, 1_500_000, ()))
    assert (queue["waiting"], queue["running"], queue["failed"], queue["oldest_wait_seconds"]) == (2, 0, 1, 1.5)


def test_versions_and_proposals_have_hex_ids_and_an_author_with_a_name() -> None:
    made = VersionResponse.of(version(parents=(OTHER,)))
    assert (made["sha"], made["author"], made["message"]) == (ID.hex(), "Nina", "A reason")
    assert (made["parents"], made["timestamp"]) == ([OTHER.hex()], STAMP)
    nameless = VersionResponse.of(version(blob=None, author=Actor("system", "import")))
    assert (nameless["author"], nameless["is_deleted"]) == ("import", True)
    assert ProposalResponse.of(proposal(value=None))["diff"].splitlines()[3] == "-Ada"
    assert ProposalResponse.of(proposal(value="Ada", new_label="person"))["diff"] == ""
    approved = proposal(status="approved", result=OTHER)
    assert OutcomeResponse.of(ProposalOutcome("proposal-1", "approved", approved))["version"] == OTHER.hex()
    blocks = (UndoneBlock("person", "undone", make.block("human")), UndoneBlock("gone", "conflicted"))
    undone = UndoneResponse.of(Undone("run-1", blocks, ()))
    assert [one["label"] for one in undone["blocks"]] == ["human", "gone"]
    known = LineageResponse.of(lineage())["blocks"]
    assert [(one["label"], one["sha"]) for one in known] == [("human", ID.hex()), (None, OTHER.hex())]
    assert ComparisonResponse.from_texts((ID.hex(), "Ada"), (ID.hex(), "Ada"), "human")["unified"] == ""
    shown = UserBlockResponse.of(make.block(head=ID), pending=3)
    assert (shown["version"], shown["pending"], shown["updated_at"]) == (ID.hex(), 3, STAMP)


def test_a_context_window_shows_every_kind_of_message_and_adds_up() -> None:
    made = ContextResponse.of(overview(STATE, WINDOW, TOOLS))
    system, summary, user, asked, decided, result = made["messages"]
    assert (system["role"], summary["content"]) == ("system", [{"type": "text", "text": "Before."}])
    assert user["content"][1] == {"type": "image", "source": {"type": "base64"}}
    assert [part["type"] for part in asked["content"]] == ["reasoning", "redacted_reasoning"]
    assert asked["tool_calls"] == [
        {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"at":"cat"}'}}
    ]
    assert decided["approvals"] == [{"type": "approval", "tool_call_id": "call-1", "approve": False, "reason": "No."}]
    assert (result["tool_call_id"], result["tool_returns"][0]["func_response"]) == ("call-1", "A cat.")
    assert made["functions_definitions"][0]["function"]["name"] == "look"
    only: list[Message] = WINDOW[:1]
    made = ContextResponse.of(overview(BARE, only, TOOLS))
    parts = sum(value for key, value in made.items() if key.startswith("num_tokens_"))
    assert made["context_window_size_current"] == parts > 0
    assert made["context_window_size_max"] == BARE.agent.context_window
    assert (made["tool_usage_rules"], made["directories"], made["summary_memory"]) == (None, None, None)
    assert (made["num_messages"], made["core_memory"]) == (1, "")


def test_a_found_message_holds_what_the_agent_said_also_by_its_tool_and_a_stored_one_all_of_it() -> None:
    said = FoundMessageResponse.of(FoundMessage(make.call(AGENT, "send_message", '{"message": "Good morning"}'), WHY))
    assert (said["message_type"], said["content"]) == ("assistant_message", "Good morning")
    parts = (ReasoningPart("Hm."), TextPart("Let me look."), ToolCallPart("call-1", "roll_dice", "{}"))
    stored = StoredMessageHitResponse.of(
        FoundMessage(make.message(AGENT, role="assistant", parts=parts, model="m"), WHY)
    )
    assert (stored["embedded_text"], stored["rrf_score"], stored["fts_rank"]) == ("Let me look.", 0.5, 2)
    assert stored["message"]["content"] == [{"type": "text", "text": "Let me look."}]
    assert stored["message"]["tool_calls"] == [{"name": "roll_dice", "arguments": "{}", "tool_call_id": "call-1"}]
    assert StopReasonResponse.of(make.run(AGENT))["stop_reason"] == "error"
