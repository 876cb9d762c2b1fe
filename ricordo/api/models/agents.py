"""Request and response models of agents and of their context windows.

`llm_config` and `embedding_config` are derived, since an agent stores a handle and settings.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ricordo.api.models.base import (
    IN_ONE_PROJECT,
    MAX_COUNT,
    AuthorFields,
    EmptyList,
    From,
    HostedFields,
    Items,
    ResponseModel,
    Tags,
    Timestamp,
    or_none,
)
from ricordo.api.models.compaction import CompactionSettingsRequest, CompactionSettingsResponse
from ricordo.api.models.folders import AttachedFolderResponse, FileBlockResponse, file_blocks
from ricordo.api.models.memory import BlockRequest, BlockResponse
from ricordo.api.models.messages import MessageFormat, StoredMessageFields, message_responses
from ricordo.api.models.models import (
    EmbeddingConfigResponse,
    EmbeddingFields,
    ModelConfigRequest,
    ModelConfigResponse,
    ModelSettingsRequest,
    whole_settings_response,
)
from ricordo.api.models.tools import ToolResponse, rule_response
from ricordo.api.models.turns import MessageRequest
from ricordo.domain.agent import ENABLE_SLEEPTIME, AgentState, AgentType
from ricordo.domain.block import Policy
from ricordo.domain.message import (
    ApprovalPart,
    ImagePart,
    Message,
    ReasoningPart,
    Role,
    TextPart,
    ToolReturnPart,
)
from ricordo.domain.model import (
    EmbeddingInfo,
    MemoryInPromptChoice,
    ModelInfo,
    ProfileChoice,
    ToolSchema,
)
from ricordo.domain.run import StopReason
from ricordo.domain.text import Json
from ricordo.llm.tokens import text_tokens, tool_tokens, transcript_tokens
from ricordo.prompt.system_prompt import sections

_MOST_IN_CONTEXT = 10_000  # ids of a context window
# The names by which clients know the sections of a system message.
_SECTIONS = {
    "system_prompt": "base",
    "core_memory": "memory_blocks",
    "external_memory_summary": "memory_metadata",
    "tool_usage_rules": "tool_usage_rules",
    "directories": "directories",
}


SecretName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Secrets = Annotated[
    dict[SecretName, Annotated[str, Field(max_length=20_000)]], Field(max_length=100)
]


def _without_shown(secrets: Any) -> Any:
    """Return the sent secrets; None for the list from an answer, which contains no values."""
    if isinstance(secrets, list):
        return None
    return secrets


def _name_of(tool: Any) -> Any:
    """Return a tool's name; clients may send the whole tool instead."""
    if isinstance(tool, dict) and "name" in tool:
        return tool["name"]
    return tool


class AgentFields(EmbeddingFields):
    """The fields of both a new agent and a change of one."""

    ignored: ClassVar = IN_ONE_PROJECT | {
        "from_template": "Agents are made from templates with POST /v1/templates/{template_version}/agents.",
        "embedding_chunk_size": "The server decides how long texts are divided.",
    }

    name: str | None = Field(None, max_length=256)
    description: str | None = None
    metadata: dict[str, Any] | None = None
    model: str | None = None
    model_settings: ModelSettingsRequest | None = None
    llm_config: ModelConfigRequest | None = None
    context_window_limit: int | None = Field(None, ge=1000, le=MAX_COUNT)
    system: str | None = None
    tool_ids: Items[str] | None = None
    block_ids: Items[str] | None = None
    tags: Tags | None = None
    timezone: str | None = None
    hidden: bool | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    max_reasoning_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)
    enable_reasoner: bool | None = None
    reasoning: bool | None = Field(
        None, description="Newer name of `enable_reasoner`, which it overrides."
    )
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    max_files_open: int | None = Field(None, ge=1, le=100)
    per_file_view_window_char_limit: int | None = Field(None, ge=1, le=MAX_COUNT)
    enable_sleeptime: bool | None = Field(
        None,
        description="Add a sleep-time agent, which works on this agent's memory after its turns.",
    )
    tool_rules: Items[dict[str, Any]] | None = None
    compaction_settings: CompactionSettingsRequest | None = None
    message_buffer_autoclear: bool | None = None
    user_block_policy: Literal["direct", "guarded", "explicit", "propose"] | None = Field(
        None,
        description="The policy of blocks that the agent makes for the user it talks with; `propose` by default.",
    )
    model_profile: ProfileChoice | None = Field(
        None,
        description="The profile of prompt and tools. By default the server's; without one `auto`, "
        "which depends on the model's size.",
    )
    memory_in_prompt: MemoryInPromptChoice | None = Field(
        None,
        description="When memory changes enter the prompt. By default as the server's setting says.",
    )
    source_ids: Items[str] | None = Field(None, description="The older name of `folder_ids`.")
    folder_ids: Items[str] | None = None
    identity_ids: Items[str] | None = None
    secrets: Annotated[Secrets | None, BeforeValidator(_without_shown)] = Field(
        None,
        description="Environment variables for the agent's custom tools. They are stored encrypted.",
    )
    tool_exec_environment_variables: Annotated[Secrets | None, BeforeValidator(_without_shown)] = (
        Field(None, description="The older name of `secrets`.")
    )

    @property
    def thinks(self) -> bool | None:
        """Return whether the model should reason, under either field name.

        Returns None if both fields are missing.
        """
        if self.reasoning is None:
            return self.enable_reasoner
        return self.reasoning

    @property
    def all_secrets(self) -> dict[str, str] | None:
        """Return the secrets of both fields.

        None, for no change, if both fields are missing.
        """
        if self.secrets is None and self.tool_exec_environment_variables is None:
            return None
        return {**(self.tool_exec_environment_variables or {}), **(self.secrets or {})}

    @property
    def all_folder_ids(self) -> list[str] | None:
        """Return the folders of both fields.

        None, for no change, if both fields are missing.
        """
        if self.folder_ids is None and self.source_ids is None:
            return None
        return [*(self.folder_ids or ()), *(self.source_ids or ())]

    @property
    def model_handle(self) -> str | None:
        """Return the model's handle; older clients send it in a whole `llm_config`.

        Returns None if no model was sent.
        """
        if self.model or self.llm_config is None:
            return self.model or None
        return self.llm_config.full_handle

    @property
    def window(self) -> int | None:
        """Return the context window in tokens; older clients send it in a whole `llm_config`.

        Returns None if no window was sent.
        """
        if self.context_window_limit or self.llm_config is None:
            return self.context_window_limit
        return self.llm_config.context_window


class AgentRequest(AgentFields):
    """An agent to create."""

    agent_type: AgentType = "letta_v1_agent"
    memory_blocks: Items[BlockRequest] | None = None
    memory_variables: dict[str, str] | None = Field(
        None, description="Values for `{{name}}` in the values of `memory_blocks`."
    )
    tools: Items[Annotated[str, BeforeValidator(_name_of)]] | None = None
    include_base_tools: bool | None = None
    include_base_tool_rules: bool | None = None
    include_default_source: bool | None = Field(
        None, description="Create an empty folder and attach it."
    )
    include_multi_agent_tools: bool | None = Field(
        None, description="Attach the tools with which the agent sends messages to other agents."
    )
    initial_message_sequence: Items[MessageRequest] | None = None
    user_id: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="The user whose memory its default conversation sees.",
    )


class AgentUpdate(AgentFields):
    """The changes of an agent. An omitted field keeps its value."""

    ignored: ClassVar = AgentFields.ignored | {
        "include_default_source": "The folder is created with the agent. Create another folder "
        "and attach it.",
        "include_multi_agent_tools": "They are attached when an agent is created. Attach tools "
        "by their names or ids.",
        "memory_variables": "They are filled in when an agent is created. Change the values of "
        "its blocks.",
        **dict.fromkeys(
            ("last_run_completion", "last_run_duration_ms", "last_stop_reason"),
            "The server writes it at the end of a run.",
        ),
    }

    message_ids: Annotated[list[str], Field(max_length=_MOST_IN_CONTEXT)] | None = None


def _identity_ids(user_ids: Sequence[str]) -> list[str]:
    return [id.replace("user-", "identity-", 1) for id in user_ids]


class CoreMemoryResponse(ResponseModel):
    """An agent's core memory."""

    agent_type: Annotated[AgentType, From("agent.agent_type")]
    git_enabled: bool = False
    blocks: list[BlockResponse]
    file_blocks: Annotated[list[FileBlockResponse], From("directories", file_blocks)]
    prompt_template: str = ""


class SecretResponse(ResponseModel):
    """The name of an agent's secret. The value is never shown."""

    agent_id: str
    key: str
    value: Literal[""] = ""


class AgentResponse(HostedFields, AuthorFields):
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
    llm_config: ModelConfigResponse
    embedding_config: EmbeddingConfigResponse | None
    compaction_settings: Annotated[CompactionSettingsResponse | None, From("compaction")]
    response_format: Annotated[Json | None, From("model_settings.response_format")]
    message_ids: list[str]
    blocks: list[BlockResponse]
    memory: CoreMemoryResponse
    tools: list[ToolResponse]
    tool_rules: list[Json]
    tags: list[str]
    sources: list[AttachedFolderResponse]
    secrets: list[SecretResponse]
    tool_exec_environment_variables: list[SecretResponse]
    identity_ids: Annotated[list[str], From("user_ids", _identity_ids)]
    identities: EmptyList
    pending_approval: Json | None
    message_buffer_autoclear: Annotated[bool, From("clears_buffer")]
    enable_sleeptime: Annotated[
        bool | None, From("settings", lambda settings: settings.get(ENABLE_SLEEPTIME, False))
    ]
    multi_agent_group: Json | None
    managed_group: Json | None
    last_run_completion: Timestamp | None
    last_run_duration_ms: int | None
    last_stop_reason: StopReason | None
    timezone: str
    max_files_open: int | None
    per_file_view_window_char_limit: int | None
    user_block_policy: Policy
    model_profile: ProfileChoice | None
    memory_in_prompt: MemoryInPromptChoice | None
    hidden: bool
    created_at: Timestamp
    updated_at: Timestamp

    @classmethod
    def from_state(
        cls, state: AgentState, info: ModelInfo, embedding: EmbeddingInfo | None = None
    ) -> Json:
        """Return the whole agent.

        Args:
            state: The agent with all its attachments.
            info: The description of its model.
            embedding: The model that embeds the agent's texts, or None. It is shown as the agent's
                only if the agent names one.
        """
        agent = state.agent
        conversation = state.conversation
        blocks = [BlockResponse.of(block) for block in state.blocks]
        own_embedding = embedding if agent.embedding else None
        secrets = [
            SecretResponse.of(agent, agent_id=agent.id, key=name) for name in agent.secret_names
        ]
        return cls.of(
            agent,
            **{
                name: agent.settings.get("template", {}).get(name)
                for name in HostedFields.model_fields
            },
            secrets=secrets,
            tool_exec_environment_variables=secrets,
            model_settings=whole_settings_response(agent.model_settings, info),
            embedding=own_embedding and own_embedding.handle,
            llm_config=ModelConfigResponse.from_model(
                info, agent.model_settings, agent.context_window
            ),
            embedding_config=own_embedding,
            message_ids=conversation.window,
            blocks=blocks,
            memory=CoreMemoryResponse.of(state, blocks=blocks),
            sources=[
                AttachedFolderResponse.of(directory, embedding_config=embedding)
                for directory in state.directories
            ],
            tools=state.tools,
            tool_rules=[rule_response(rule) for rule in agent.tool_rules],
            tags=state.tags,
            multi_agent_group=state.group,
            managed_group=state.group,
            identity_ids=state.user_ids,
            pending_approval=_pending(state),
            last_run_completion=conversation.last_run_ended_at,
            last_run_duration_ms=conversation.last_run_ms,
            last_stop_reason=conversation.last_stop_reason,
            max_files_open=agent.settings.get("max_files_open"),
            model_profile=agent.settings.get("model_profile"),
            memory_in_prompt=agent.settings.get("memory_in_prompt"),
            per_file_view_window_char_limit=agent.settings.get("per_file_view_window_char_limit"),
        )


AgentFields.take_back(AgentResponse)


def _pending(state: AgentState) -> Json | None:
    if state.waiting is None:
        return None
    view = MessageFormat(types=frozenset({"approval_request_message"}))
    return message_responses([state.waiting], view)[0]


class ContextMessageResponse(StoredMessageFields):
    """A message of the window, as one piece.

    Other routes show a message in several pieces.
    """

    role: str
    tool_calls: list[Json] | None
    tool_call_id: str | None
    approvals: list[Json] | None

    @classmethod
    def of(cls, message: Any, /, **_fields: Any) -> Json:
        """Return the message."""
        returns = message.tool_returns
        calls = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
        approvals = [
            {
                "type": "approval",
                "tool_call_id": part.call_id,
                "approve": part.approves,
                "reason": part.reason,
            }
            for part in message.parts
            if isinstance(part, ApprovalPart)
        ]
        return super().of(
            message,
            content=[content for part in message.parts if (content := _shown_part(part))],
            tool_calls=calls or None,
            tool_call_id=returns[0].call_id if len(returns) == 1 else None,
            tool_returns=[_return(part) for part in returns],
            approvals=approvals or None,
        )


def _first_of_role(messages: Sequence[Message], role: Role) -> Message | None:
    """Return the first message if it has the role."""
    if messages and messages[0].role == role:
        return messages[0]
    return None


class ContextResponse(ResponseModel):
    """The content of a context window in tokens, by section.

    A section that does not exist has 0 tokens, and null or "" as clients expect.
    """

    context_window_size_max: int
    context_window_size_current: int
    num_messages: int
    num_archival_memory: int
    num_recall_memory: int
    num_tokens_external_memory_summary: int
    external_memory_summary: str
    num_tokens_system: int
    system_prompt: str
    num_tokens_core_memory: int
    core_memory: str
    # Only agents whose memory is a tree of files have this. Agents of this server have blocks.
    num_tokens_memory_filesystem: int = 0
    memory_filesystem: str | None = None
    num_tokens_tool_usage_rules: int
    tool_usage_rules: Annotated[str | None, From(convert=or_none)]
    num_tokens_directories: int
    directories: Annotated[str | None, From(convert=or_none)]
    num_tokens_summary_memory: int
    summary_memory: str | None
    num_tokens_functions_definitions: int
    functions_definitions: list[Json]
    num_tokens_messages: int
    messages: list[ContextMessageResponse]

    @classmethod
    def from_window(
        cls, state: AgentState, window: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Json:
        """Return the context window of the state's conversation.

        Counts are our estimate, corrected by the provider's last count, as in compaction.

        Args:
            state: The agent with the conversation.
            window: The messages of the conversation's window.
            tools: The tools that the model is offered.
        """
        conversation = state.conversation
        system = _first_of_role(window, "system")
        rest = window[1:] if system else window
        summary = _first_of_role(rest, "summary")
        if system:
            parts = sections(system.text)
        else:
            parts = {"base": state.agent.system}
        texts = {name: parts.get(part, "") for name, part in _SECTIONS.items()}
        tokens = {name: text_tokens(text) for name, text in texts.items()}
        tokens["system"] = tokens.pop("system_prompt")
        if summary:
            tokens["summary_memory"] = transcript_tokens([summary])
        else:
            tokens["summary_memory"] = 0
        tokens["functions_definitions"] = tool_tokens(tools)
        tokens["messages"] = transcript_tokens(rest[1:] if summary else rest)
        scaled = {
            f"num_tokens_{name}": -(-count * (conversation.token_percent or 100) // 100)
            for name, count in tokens.items()
        }
        return cls.of(
            None,
            context_window_size_max=conversation.context_window or state.agent.context_window,
            context_window_size_current=sum(scaled.values()),
            num_messages=len(window),
            num_archival_memory=sum(archive.passage_count for archive in state.archives),
            num_recall_memory=conversation.message_count,
            summary_memory=summary and summary.text,
            functions_definitions=[
                {"type": "function", "function": asdict(tool)} for tool in tools
            ],
            messages=window,
            **texts,
            **scaled,
        )


def _return(part: ToolReturnPart) -> Json:
    return {
        "tool_call_id": part.call_id,
        "status": part.status,
        "func_response": part.content,
        "stdout": list(part.stdout) or None,
        "stderr": list(part.stderr) or None,
    }


def _shown_part(part: object) -> Json | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            # A picture may have megabytes, so the answer shows only its address.
            if part.url:
                source = {"type": "url", "url": part.short_url}
            else:
                source = {"type": "base64"}
            return {"type": "image", "source": source}
        case ReasoningPart() if part.redacted is not None:
            return {"type": "redacted_reasoning", "data": part.redacted}
        case ReasoningPart():
            return {
                "type": "reasoning",
                "reasoning": part.text,
                "is_native": part.native,
                "signature": part.signature,
            }
        case ToolReturnPart():
            return {"type": "text", "text": part.content}
    return None
