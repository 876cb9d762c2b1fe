"""The agents of a file, in the form in which they are created here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ricordo.agents.lifecycle import AgentSpec
from ricordo.api.agents import spec_of
from ricordo.api.models.agents import AgentRequest
from ricordo.domain.text import Json
from ricordo.features.documents.agent_files import export
from ricordo.runtime import Runtime

_LONGEST_NAME = 256
# Fields of an agent that the import sets itself, or that belong to the file's server.
_LEFT_OUT = ("embedding_config", "embedding")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of an import.

    `model` and `embedding` are handles that replace those in the file. `secrets` are the values of
    secrets by name.
    """

    name: str | None = None
    suffix: str = "_copy"
    overrides_tools: bool = True
    strips_messages: bool = False
    model: str | None = None
    embedding: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    takes_schedules: bool = False


def _managers(content: Json) -> set[str | None]:
    """Return the ids of the agents that manage groups in the file."""
    return {
        (group.get("manager_config") or {}).get("manager_agent_id")
        for group in content.get("groups") or ()
    }


def read_spec(runtime: Runtime, agent: Json, content: Json, options: ImportOptions) -> AgentSpec:
    """Return the spec of an agent in the file, with its blocks.

    Args:
        runtime: The server's parts.
        agent: The agent in the file.
        content: The file, for its blocks and groups.
        options: The options of the import, which override the file.

    Raises:
        ValidationError: A field of the agent cannot be used.
        Invalid: A field of the agent is not supported.
    """
    blocks_by_id = {block["id"]: block for block in content.get("blocks") or ()}
    fields = {
        name: agent[name]
        for name in export.AGENT_FIELDS
        if agent.get(name) is not None and name not in _LEFT_OUT
    }
    listed = [blocks_by_id[id] for id in agent.get("block_ids") or () if id in blocks_by_id]
    fields["memory_blocks"] = [{"value": "", **_block_fields(block)} for block in listed]
    if options.model:
        fields["model"] = options.model
    if options.embedding:
        fields["embedding"] = options.embedding
    names = [*(agent.get("secrets") or ()), *(agent.get("tool_exec_environment_variables") or ())]
    fields["secrets"] = {**dict.fromkeys(names, ""), **options.secrets}
    file_name = str(agent["name"])[: _LONGEST_NAME - len(options.suffix)]
    name = options.name or f"{file_name}{options.suffix}"
    body = AgentRequest.model_validate(fields | {"name": name, "include_base_tools": False})
    body.refuse_unsupported()
    has_sleeptime = agent.get("enable_sleeptime") is True and agent.get("id") not in _managers(
        content
    )
    spec = spec_of(runtime, body)
    blocks = [
        replace(block, egress=entry.get(export.EGRESS))
        for block, entry in zip(spec.blocks, listed, strict=True)
    ]
    return replace(
        spec,
        blocks=tuple(blocks),
        # The file lists all rules of the agent, including those of its base tools.
        has_base_rules=False,
        beginning=(),
        has_sleeptime=has_sleeptime,
    )


def _block_fields(block: Json) -> Json:
    return {name: block[name] for name in export.BLOCK_FIELDS if block.get(name) is not None}
