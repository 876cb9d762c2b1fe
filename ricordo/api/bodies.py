"""What callers send: the request bodies of agents, blocks and messages. Unknown fields are let through, since newer clients send
some; known ones that this version cannot honour are refused by name.
"""

import re
from typing import Annotated, Any, Literal

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from ricordo.agents.lifecycle import BlockSpec
from ricordo.api.compaction_bodies import CompactionSettingsBody
from ricordo.domain.agent import AgentType
from ricordo.domain.block import DEFAULT_LIMIT, Policy
from ricordo.errors import Unsupported

# More than any model reads or any block needs, and little enough for every database.
MAX_COUNT = 1_000_000_000
# As JSON writes it; behind an even number of backslashes, else it is text that only looks like one.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


_PLAIN_SETTINGS = ("temperature", "max_output_tokens", "parallel_tool_calls", "response_format", "thinks_in_arguments")
# Ours to tell: the retired Letta V1 server keeps it in `llm_config` alone.
_THINKS = "put_inner_thoughts_in_kwargs"


class Body(BaseModel):
    """The base of request bodies and of their parts."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), defer_build=True)


class WholeBody(Body):
    """The base of what is a request by itself: it is looked through once, with all that is in it."""

    # Its parts are worked out with it, and not each by itself before.
    model_config = ConfigDict(defer_build=False)

    @model_validator(mode="before")
    @classmethod
    def _require_storable(cls, value: Any) -> Any:
        """Refuse what JSON may say and no database keeps: halves of characters, NUL, integers beyond 64 bits, endless nesting."""
        try:
            text = orjson.dumps(value if isinstance(value, dict) else None)
        except TypeError as error:
            raise ValueError(f"cannot be stored: {error}") from error
        if b"u0000" in text and _NUL.search(text):
            raise ValueError("cannot be stored: it holds a NUL character. Leave it out.")
        return value


class Text(Body):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class ImageSource(Body):
    """Where a picture is: in the request as base64, or at an address."""

    type: Literal["base64", "url"] = "base64"
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"] = "image/png"
    data: str | None = None
    url: str | None = None
    detail: str | None = None


class Image(Body):
    """A picture."""

    type: Literal["image"]
    source: ImageSource


class NewMessageBody(Body):
    """A message to send."""

    type: Literal["message"] | None = "message"
    role: Literal["user", "system", "assistant"]
    content: str | list[Annotated[Text | Image, Field(discriminator="type")]]
    otid: str | None = Field(None, min_length=1, max_length=200)
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None


class ApprovalItem(Body):
    """What was decided about one call that waits; with the type `tool`, what the client's own tool gave."""

    type: Literal["approval", "tool"] | None = None
    tool_call_id: str
    approve: bool | None = None
    reason: str | None = None
    tool_return: str | list[Annotated[Text | Image, Field(discriminator="type")]] | None = None
    status: Literal["success", "error"] = "success"
    stdout: list[str] | None = None
    stderr: list[str] | None = None

    @property
    def is_result(self) -> bool:
        """Whether it holds a result, also where an older client does not say so."""
        return self.type == "tool" or (self.type is None and self.tool_return is not None)


class ApprovalBody(Body):
    """An answer to calls that wait: one item for each of them, or `approve` for all."""

    type: Literal["approval"] | None = "approval"
    approvals: list[ApprovalItem] | None = None
    approve: bool | None = None
    approval_request_id: str | None = None
    reason: str | None = None
    otid: str | None = Field(None, min_length=1, max_length=200)
    sender_id: str | None = None
    group_id: str | None = None


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        kind = value.get("type") or ("approval" if {"approve", "approval_request_id"} & value.keys() else "message")
    else:
        kind = getattr(value, "type", None) or "message"
    return str(kind)


AnyMessageBody = Annotated[
    Annotated[NewMessageBody, Tag("message")] | Annotated[ApprovalBody, Tag("approval")], Discriminator(_kind)
]


class SendBody(WholeBody):
    """Messages for an agent, and how the answer is wanted."""

    messages: list[AnyMessageBody] | None = None
    input: str | list[Annotated[Text | Image, Field(discriminator="type")]] | None = None
    max_steps: int = Field(50, ge=1, le=1000)
    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    include_return_message_types: list[str] | None = None
    streaming: bool = False
    stream_tokens: bool = False
    include_pings: bool = True
    background: bool = False
    client_tools: list[dict[str, Any]] | None = None
    client_skills: list[dict[str, Any]] | None = None
    override_model: str | None = None
    override_system: str | None = Field(None, validation_alias=AliasChoices("override_system", "system"))
    return_logprobs: bool = False
    return_token_ids: bool = False
    include_compaction_messages: bool = False


class AsyncBody(SendBody):
    """Messages for an agent whose answer nobody waits for."""

    callback_url: str | None = Field(
        None, max_length=2000, description="Told with a signed POST when the run has ended."
    )


class BlockBody(WholeBody):
    """A block to be made."""

    label: str
    value: str
    description: str | None = None
    limit: int = Field(DEFAULT_LIMIT, ge=0, le=MAX_COUNT)
    read_only: bool = False
    hidden: bool | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    policy: Policy | None = Field(None, description="What becomes of an agent's edit; `direct` where it is left out.")

    def spec(self) -> BlockSpec:
        """The block to be made."""
        return BlockSpec(
            label=self.label,
            value=self.value,
            description=self.description,
            limit=self.limit,
            read_only=self.read_only,
            hidden=bool(self.hidden),
            metadata=self.metadata or {},
            tags=tuple(self.tags or ()),
            policy=self.policy or "direct",
        )


class BlockChange(WholeBody):
    """What shall change of a block; a field that is left out stays."""

    label: str | None = None
    value: str | None = None
    description: str | None = None
    limit: int | None = Field(None, ge=0, le=MAX_COUNT)
    read_only: bool | None = None
    hidden: bool | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    policy: Policy | None = Field(None, description="What becomes of an agent's edit.")


class ReasoningBody(Body):
    """How hard a model thinks."""

    reasoning_effort: str | None = None


class ThinkingBody(Body):
    """How long a model may think."""

    budget_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)


class ModelSettingsBody(Body):
    """How to ask a model; a setting that is not named here is passed on to its provider."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    provider_type: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningBody | None = None
    thinking: ThinkingBody | None = None
    response_format: dict[str, Any] | None = None
    strict: bool | None = None

    def changes(self) -> dict[str, Any]:
        """What was sent, by the names of our ModelSettings; null takes a setting back. Raises Unsupported."""
        given = self.model_dump(exclude_unset=True)
        if given.pop("effort", None):
            raise Unsupported("model_settings.effort is not supported by this version of Ricordo. Leave it out.")
        given.pop("provider_type", None)
        if _THINKS in given:
            given["thinks_in_arguments"] = given.pop(_THINKS)
        changes: dict[str, Any] = {name: given.pop(name) for name in _PLAIN_SETTINGS if name in given}
        if "reasoning" in given:
            changes["reasoning_effort"] = (given.pop("reasoning") or {}).get("reasoning_effort")
        if "thinking" in given:
            thinking = given.pop("thinking") or {}
            is_off = thinking.get("type") == "disabled"
            changes["max_reasoning_tokens"] = None if is_off else thinking.get("budget_tokens")
        if given:
            changes["extra"] = {name: value for name, value in given.items() if value is not None}
        return changes


class ConfigBody(Body):
    """What an older client says of a model or an embedding model; the handle is what counts."""

    handle: str | None = None
    model: str | None = None
    embedding_model: str | None = None
    embedding_endpoint_type: str | None = None
    provider_name: str | None = None
    put_inner_thoughts_in_kwargs: bool | None = None

    @property
    def full_handle(self) -> str | None:
        """`provider/model`, made from its parts where the handle itself is not given."""
        name = self.model or self.embedding_model
        provider = self.provider_name or self.embedding_endpoint_type or "openai"
        return self.handle or (f"{provider}/{name}" if name else None)


class AgentFields(WholeBody):
    """What both a new agent and a change of one may say."""

    name: str | None = Field(None, max_length=256)
    description: str | None = None
    metadata: dict[str, Any] | None = None
    model: str | None = None
    embedding: str | None = None
    model_settings: ModelSettingsBody | None = None
    llm_config: ConfigBody | None = None
    embedding_config: ConfigBody | None = None
    context_window_limit: int | None = Field(None, ge=4096, le=MAX_COUNT)
    system: str | None = None
    tool_ids: list[str] | None = None
    block_ids: list[str] | None = None
    tags: list[str] | None = None
    timezone: str | None = None
    hidden: bool | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    max_reasoning_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)
    enable_reasoner: bool | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    tool_rules: list[dict[str, Any]] | None = None
    compaction_settings: CompactionSettingsBody | None = None
    enable_sleeptime: bool | None = None
    message_buffer_autoclear: bool | None = None
    source_ids: list[str] | None = None
    folder_ids: list[str] | None = None
    identity_ids: list[str] | None = None
    secrets: dict[str, str] | None = None
    tool_exec_environment_variables: dict[str, str] | None = None


class AgentBody(AgentFields):
    """An agent to be made."""

    agent_type: AgentType = "letta_v1_agent"
    memory_blocks: list[BlockBody] | None = None
    tools: list[str] | None = None
    include_base_tools: bool | None = None
    include_base_tool_rules: bool | None = None
    include_default_source: bool | None = None
    initial_message_sequence: list[NewMessageBody] | None = None
    memory_variables: dict[str, str] | None = None
    from_template: str | None = None
    user_id: str | None = Field(None, min_length=1, max_length=255, description="Whose memory its thread sees.")


class AgentChange(AgentFields):
    """What shall change of an agent; a field that is left out stays."""

    message_ids: list[str] | None = None


_AGENT_LATER = (
    *("enable_sleeptime", "source_ids", "folder_ids", "identity_ids", "secrets", "tool_exec_environment_variables"),
    *("include_default_source", "memory_variables", "from_template", "message_ids"),
)
_SEND_LATER = ("client_skills", "return_logprobs", "return_token_ids")


def refuse_unsupported(body: AgentFields | SendBody) -> None:
    """Raise Unsupported where the body asks for something this version does not do."""
    for name in _SEND_LATER if isinstance(body, SendBody) else _AGENT_LATER:
        if getattr(body, name, None):
            raise Unsupported(f"{name} is not supported by this version of Ricordo. Leave it out.")
