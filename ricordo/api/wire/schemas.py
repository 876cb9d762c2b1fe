"""The shapes of answers, for the OpenAPI document. A test holds what the wire functions make against them, field by field."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ricordo.domain.agent import AgentType
from ricordo.domain.block import Policy
from ricordo.domain.run import RunStatus, StepStatus, StopReason
from ricordo.domain.tool import ToolType

Json = dict[str, Any]


class Shape(BaseModel):
    """The base of all answers; nothing that is not named here is sent."""

    # The shapes of all answers at once would take a tenth of the start; each is worked out when the document or a test asks.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), defer_build=True)


class Health(Shape):
    """The server answers."""

    version: str
    status: Literal["ok"]


class HostedFields(Shape):
    """Fields of a hosted product that clients expect to find; always null here."""

    project_id: str | None
    template_id: str | None
    base_template_id: str | None
    deployment_id: str | None
    entity_id: str | None


class BlockShape(HostedFields):
    """A memory block."""

    id: str
    label: str
    value: str
    limit: int
    description: str | None
    metadata: Json
    read_only: bool
    policy: Policy
    hidden: bool
    tags: list[str]
    is_template: bool
    template_name: str | None
    preserve_on_migration: bool | None
    created_by_id: str | None
    last_updated_by_id: str | None


class MemoryShape(Shape):
    """An agent's core memory."""

    agent_type: AgentType
    git_enabled: bool
    blocks: list[BlockShape]
    file_blocks: list[Json]
    prompt_template: str


class ToolShape(Shape):
    """A tool."""

    id: str
    name: str
    tool_type: ToolType
    description: str | None
    source_type: str | None
    source_code: str | None
    json_schema: Json | None
    args_json_schema: Json | None
    return_char_limit: int
    default_requires_approval: bool | None
    enable_parallel_execution: bool
    tags: list[str]
    metadata_: Json | None
    pip_requirements: list[Json] | None
    npm_requirements: list[Json] | None
    project_id: str | None
    created_by_id: str | None
    last_updated_by_id: str | None


class ModelConfigShape(Shape):
    """How an agent's model is called."""

    model: str
    display_name: str | None
    model_endpoint_type: str
    model_endpoint: str | None
    provider_name: str | None
    provider_category: Literal["base", "byok"]
    model_wrapper: str | None
    context_window: int
    put_inner_thoughts_in_kwargs: bool
    handle: str
    temperature: float
    max_tokens: int | None
    enable_reasoner: bool
    reasoning_effort: str | None
    max_reasoning_tokens: int
    parallel_tool_calls: bool | None
    response_format: Json | None


class ModelShape(ModelConfigShape):
    """A model that can be used here."""

    name: str
    provider_type: str
    max_context_window: int
    model_type: Literal["llm"]


class EmbeddingConfigShape(Shape):
    """How texts are embedded."""

    embedding_endpoint_type: str
    embedding_endpoint: str | None
    embedding_model: str
    embedding_dim: int
    embedding_chunk_size: int
    handle: str
    batch_size: int
    azure_endpoint: None
    azure_version: None
    azure_deployment: None


class EmbeddingModelShape(EmbeddingConfigShape):
    """An embedding model that can be used here."""

    name: str
    display_name: str
    provider_name: str
    provider_type: str
    model_type: Literal["embedding"]


class AgentShape(HostedFields):
    """An agent with everything that is attached to it."""

    id: str
    name: str
    agent_type: AgentType
    system: str
    description: str | None
    metadata: Json
    model: str
    model_settings: Json
    embedding: str | None
    llm_config: ModelConfigShape
    embedding_config: EmbeddingConfigShape | None
    compaction_settings: Json | None
    response_format: Json | None
    message_ids: list[str]
    blocks: list[BlockShape]
    memory: MemoryShape
    tools: list[ToolShape]
    tool_rules: list[Json]
    tags: list[str]
    sources: list[Json]
    secrets: list[Json]
    tool_exec_environment_variables: list[Json]
    identity_ids: list[str]
    identities: list[Json]
    pending_approval: Json | None
    message_buffer_autoclear: bool
    enable_sleeptime: bool
    multi_agent_group: Json | None
    managed_group: Json | None
    last_run_completion: datetime | None
    last_run_duration_ms: int | None
    last_stop_reason: StopReason | None
    timezone: str
    max_files_open: int | None
    per_file_view_window_char_limit: int | None
    hidden: bool
    created_by_id: str | None
    last_updated_by_id: str | None
    created_at: datetime
    updated_at: datetime


class RunShape(Shape):
    """A run: one turn."""

    id: str
    agent_id: str
    conversation_id: str | None
    status: RunStatus
    stop_reason: StopReason | None
    background: bool
    metadata: Json
    request_config: Json | None
    created_at: datetime
    completed_at: datetime | None
    callback_url: str | None
    callback_sent_at: datetime | None
    callback_status_code: int | None
    callback_error: str | None
    ttft_ns: int | None
    total_duration_ns: int | None
    base_template_id: str | None


class RunUsageShape(Shape):
    """Tokens of a run."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: Json | None
    completion_tokens_details: Json | None


class StepShape(Shape):
    """A step: one call of the model, and the tools it asked for."""

    id: str
    run_id: str | None
    agent_id: str | None
    organization_id: str | None
    origin: str | None
    provider_id: str | None
    provider_name: str | None
    provider_category: str | None
    model: str | None
    model_handle: str | None
    model_endpoint: str | None
    context_window_limit: int | None
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    completion_tokens_details: Json | None
    prompt_tokens_details: Json | None
    stop_reason: StopReason | None
    status: StepStatus
    error_type: str | None
    error_data: Json | None
    feedback: Literal["positive", "negative"] | None
    tags: list[str]
    tid: str | None
    trace_id: str | None
    request_id: str | None
    messages: list[Json]
    project_id: str | None


class StepMetricsShape(Shape):
    """A step's times, in nanoseconds."""

    id: str
    organization_id: str | None
    provider_id: str | None
    run_id: str | None
    agent_id: str | None
    step_start_ns: int | None
    llm_request_start_ns: int | None
    llm_request_ns: int | None
    tool_execution_ns: int | None
    step_ns: int | None
    base_template_id: str | None
    template_id: str | None
    project_id: str | None


class PassageShape(Shape):
    """A passage in an archive."""

    id: str
    text: str
    archive_id: str | None
    tags: list[str]
    metadata: Json
    embedding: list[float] | None
    embedding_config: Json | None
    source_id: str | None
    file_id: str | None
    file_name: str | None
    is_deleted: bool
    organization_id: str | None
    created_at: datetime
    updated_at: datetime
    created_by_id: str | None
    last_updated_by_id: str | None


class RelevanceShape(Shape):
    """Why something was found: ranks count from 1, null where that kind of search did not find it."""

    search_mode: str
    rrf_score: float
    vector_rank: int | None
    fts_rank: int | None


class PassageHitShape(Shape):
    """A passage that was found."""

    id: str
    timestamp: str
    content: str
    tags: list[str]
    relevance: RelevanceShape


class PassageSearchShape(Shape):
    """What a search of an agent's archives found."""

    results: list[PassageHitShape]
    count: int


class FoundPassageShape(Shape):
    """A passage that a search of several archives found."""

    passage: PassageShape
    score: float
    metadata: RelevanceShape


class ArchiveShape(Shape):
    """An archive of passages."""

    id: str
    name: str
    description: str | None
    metadata: Json
    embedding: str | None
    embedding_config: Json | None
    vector_db_provider: str
    created_at: datetime
    updated_at: datetime
    created_by_id: str | None
    last_updated_by_id: str | None


class ImportedShape(Shape):
    """The ids of imported messages, in the order in which they were sent."""

    message_ids: list[str]


class Note(Shape):
    """That something was done."""

    message: str


class ModelFailureShape(Shape):
    """How a model's provider failed."""

    type: str
    message: str
    detail: str | None


class ConflictShape(Shape):
    """Texts that collide: what both sides began with, what stands there now, and what was to be written; null where gone."""

    proposal_id: str | None
    base: str | None
    ours: str | None
    theirs: str | None
    how: str


class Refusal(Shape):
    """Why a request was refused; a provider's failure stands under `error` alone."""

    detail: str | None = None
    trace_id: str | None = None
    examples: list[str] | None = None
    run_id: str | None = None
    error: ModelFailureShape | None = None
    conflict: ConflictShape | None = None
