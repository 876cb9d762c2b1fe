"""Agents on the wire. `llm_config` and `embedding_config` are derived: what is kept is a handle and its settings."""

from dataclasses import asdict
from typing import Any

from ricordo.api.wire.blocks import block_to_wire
from ricordo.api.wire.messages import MessageView, message_to_wire
from ricordo.api.wire.models import embedding_config_to_wire, model_config_to_wire
from ricordo.api.wire.times import stamp
from ricordo.api.wire.tools import rule_to_wire, tool_to_wire
from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.model import EmbeddingInfo, ModelInfo, ModelSettings

Wire = dict[str, Any]


def agent_to_wire(state: AgentState, info: ModelInfo, embedding: EmbeddingInfo | None = None) -> Wire:
    """The whole state of an agent; `info` is its model, `embedding` that of its texts, the default where it names none."""
    agent, thread = state.agent, state.conversation
    blocks = [block_to_wire(block) for block in state.blocks]
    return {
        "id": agent.id,
        "name": agent.name,
        "agent_type": agent.agent_type,
        "system": agent.system,
        "description": agent.description,
        "metadata": agent.metadata,
        "model": agent.model,
        "model_settings": settings_to_wire(agent.model_settings, info.endpoint_type),
        "embedding": embedding and embedding.handle,
        "llm_config": model_config_to_wire(info, agent.context_window, agent.model_settings),
        "embedding_config": embedding and embedding_config_to_wire(embedding),
        "compaction_settings": {
            **asdict(agent.compaction),
            "model_settings": agent.compaction.model_settings or None,
        },
        "response_format": agent.model_settings.response_format,
        "message_ids": list(thread.window),
        "blocks": blocks,
        "memory": memory_to_wire(state),
        "tools": [tool_to_wire(tool) for tool in state.tools],
        "tool_rules": [rule_to_wire(rule) for rule in agent.tool_rules],
        "tags": list(state.tags),
        "sources": [],
        "secrets": [],
        "tool_exec_environment_variables": [],
        "identity_ids": [],
        "identities": [],
        "pending_approval": _pending(state),
        "message_buffer_autoclear": agent.clears_buffer,
        "enable_sleeptime": False,
        "multi_agent_group": None,
        "managed_group": None,
        "last_run_completion": stamp(thread.last_run_ended_at),
        "last_run_duration_ms": thread.last_run_ms,
        "last_stop_reason": thread.last_stop_reason,
        "timezone": agent.timezone,
        "max_files_open": agent.settings.get("max_files_open"),
        "per_file_view_window_char_limit": agent.settings.get("per_file_view_window_char_limit"),
        "hidden": agent.hidden,
        **_stamps(agent),
        **dict.fromkeys(("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")),
    }


def _pending(state: AgentState) -> Wire | None:
    """The request for approval that the agent's own thread waits for an answer to."""
    if state.waiting is None:
        return None
    view = MessageView(types=frozenset({"approval_request_message"}))
    return message_to_wire(state.waiting, view)[0]


def memory_to_wire(state: AgentState) -> Wire:
    """The agent's core memory."""
    return {
        "agent_type": state.agent.agent_type,
        "git_enabled": False,
        "blocks": [block_to_wire(block) for block in state.blocks],
        "file_blocks": [],
        "prompt_template": "",
    }


def settings_to_wire(settings: ModelSettings, endpoint_type: str) -> Wire:
    """Model settings, tagged by provider as clients expect them."""
    wire: Wire = {
        "provider_type": endpoint_type,
        "temperature": settings.temperature,
        "max_output_tokens": settings.max_output_tokens,
        "parallel_tool_calls": settings.parallel_tool_calls,
        "response_format": settings.response_format,
        **settings.extra,
    }
    if settings.reasoning_effort is not None:
        wire["reasoning"] = {"reasoning_effort": settings.reasoning_effort}
    if settings.max_reasoning_tokens is not None:
        wire["thinking"] = {"type": "enabled", "budget_tokens": settings.max_reasoning_tokens}
    return {key: value for key, value in wire.items() if value is not None}


def _stamps(agent: Agent) -> Wire:
    return {
        "created_by_id": agent.created_by,
        "last_updated_by_id": agent.updated_by,
        "created_at": stamp(agent.created_at),
        "updated_at": stamp(agent.updated_at),
    }
