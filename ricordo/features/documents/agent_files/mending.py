"""Mend agent files of other servers and versions, so that they can be imported.

The result has only parts that `service` can store: known fields of the right types, ids that exist,
and valid labels. Parts that are left out or changed are noted, except small repairs such as a cut
folder name.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, get_args

from ricordo.api.models.agents import AgentRequest
from ricordo.api.models.memory import BlockRequest, BlockResponse
from ricordo.api.models.models import ModelConfigRequest
from ricordo.api.models.tools import ToolResponse, read_rule
from ricordo.domain.agent import AgentType
from ricordo.domain.block import DEFAULT_LIMIT, require_label
from ricordo.domain.clock import zone
from ricordo.domain.egress import NOBODY_AT_ALL, read_label
from ricordo.domain.model import ToolSchema
from ricordo.domain.redaction import redact
from ricordo.domain.text import Json
from ricordo.domain.tool import ToolType
from ricordo.errors import Invalid, RicordoError
from ricordo.features.custom_tools.source import service as custom_tools
from ricordo.features.custom_tools.source.models import (
    LONGEST_SOURCE,
    SourceType,
    ToolCreateRequest,
)
from ricordo.features.custom_tools.source.source import function_name
from ricordo.features.documents.agent_files import export
from ricordo.features.documents.agent_files import messages as formats
from ricordo.features.documents.agent_files.groups import mend_groups
from ricordo.features.documents.agent_files.tolerance import (
    ImportNotes,
    fitted,
    is_id_of,
    storable,
    without_unknown,
)
from ricordo.features.files.folders.service import name_of
from ricordo.memory import rotation

UNREADABLE = (
    "This is not an agent file: {}. An agent file is the JSON that GET "
    "/v1/agents/{{agent_id}}/export returns."
)
_LONGEST_NAME = 256
_FILE = (
    "agents groups blocks files sources tools mcp_servers skills metadata created_at ricordo"
).split()
_LISTS = ("agents", "blocks", "files", "groups", "sources", "tools")
# Parts of a file that are not imported, with the reason.
_NOT_TAKEN = {
    "mcp_servers": (
        "a server's address and keys are not imported. Connect MCP servers here; tools of theirs "
        "that this server already has are linked"
    ),
    "skills": "skills belong to the client",
}
_AGENT_FILE_FIELDS = (
    "id messages in_context_message_ids memory_blocks tools tool_ids block_ids source_ids"
    " folder_ids files_agents group_ids identity_ids secrets tool_exec_environment_variables"
    " include_base_tools context_window_limit max_tokens max_reasoning_tokens"
    " parallel_tool_calls enable_sleeptime reasoning agent_id"
).split()
_NOT_TAKEN_OF_AGENTS = {"identity_ids": "users of another server are not known here"}
# Fields of an agent that move into its model's settings, with their names there.
_MODEL_FIELDS = {
    "context_window_limit": "context_window",
    "max_tokens": "max_tokens",
    "max_reasoning_tokens": "max_reasoning_tokens",
    "parallel_tool_calls": "parallel_tool_calls",
}
_AGENT = {*AgentRequest.model_fields, *AgentRequest.ignored, *_AGENT_FILE_FIELDS}
_BLOCK = {
    export.EGRESS,
    *BlockRequest.model_fields,
    *BlockRequest.ignored,
    *BlockResponse.model_fields,
}
_TOOL = {*ToolResponse.model_fields, *export.TOOL_FIELDS, "organization_id"}
_SOURCE = {
    export.EGRESS,
    *export.FOLDER_FIELDS,
    *(
        "id embedding embedding_config embedding_chunk_size vector_db_provider organization_id"
        " created_by_id last_updated_by_id created_at updated_at"
    ).split(),
}
_TEXT_FILE = set(
    "id source_id file_name original_file_name file_path file_type file_size"
    " file_creation_date file_last_modified_date processing_status error_message"
    " total_chunks chunks_embedded content organization_id created_at updated_at is_deleted".split()
)
_MESSAGE = set(
    "type id agent_id role content name otid sender_id group_id batch_item_id model"
    " tool_calls tool_call_id tool_returns created_at updated_at approve denial_reason"
    " approval_request_id approvals is_err step_id run_id conversation_id organization_id"
    " created_by_id last_updated_by_id".split()
)
_PARTS = (
    "text image reasoning redacted_reasoning summarized_reasoning omitted_reasoning"
    " tool_call tool_return"
).split()
_PART = set(
    "type text signature source reasoning is_native data summary id name input tool_call_id"
    " content is_error state hidden_reasoning".split()
)
_RULE = set(
    "type tool_name prompt_template id args child_output_mapping default_child"
    " require_output_mapping children child_arg_nodes max_count_limit".split()
)
_CONFIG = {*ModelConfigRequest.model_fields, *ModelConfigRequest.ignored}
_SOURCE_TYPES = get_args(SourceType)
_TOOL_TYPES = get_args(ToolType)
_LONGEST_LABEL = 255
_NOT_IN_LABELS = re.compile(r"[\x00-\x1f\x7f<>\\]+")


@dataclass
class MendedFile:
    """A file that can be imported.

    `tools` are the custom tools with source code, each with its id in the file, the request that
    creates it, and its schema. `labels` maps invalid labels in the file to the mended labels.
    """

    content: Json
    notes: ImportNotes
    tools: list[tuple[str, ToolCreateRequest, ToolSchema]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)


def mend(content: Any, notes: ImportNotes) -> MendedFile:
    """Return the file without the parts that cannot be stored.

    Args:
        content: The decoded JSON of the file.
        notes: Gets notes on the changes.

    Raises:
        Invalid: The content is no agent file, or has no agent that can be read.
    """
    content = storable(content, notes)
    if not isinstance(content, dict) or not isinstance(content.get("agents"), list):
        raise Invalid(UNREADABLE.format("it has no list of agents"))
    content = without_unknown(content, _FILE, "The file", "file", notes)
    for name in _LISTS:
        content[name] = _with_ids(content.get(name), name, notes)
    if not content["agents"]:
        raise Invalid(UNREADABLE.format("its list of agents is empty"))
    for name, reason in _NOT_TAKEN.items():
        if part := content.get(name):
            parts = len(part) if isinstance(part, list | dict) else 1
            notes.add(f"{name}: {parts} left out, since {reason}.")
    file = MendedFile(content, notes)
    content["tools"] = _mend_each(content["tools"], partial(_tool, file=file), "Tools", notes)
    content["sources"] = _mend_each(
        content["sources"], partial(_source, notes=notes), "Folders", notes
    )
    source_ids = {source["id"] for source in content["sources"]}
    content["files"] = _mend_each(
        content["files"], partial(_file, source_ids=source_ids, notes=notes), "Files", notes
    )
    content["blocks"] = _mend_each(content["blocks"], partial(_block, file=file), "Blocks", notes)
    _link_only_agent(content)
    content["agents"] = _mend_each(content["agents"], partial(_agent, file=file), "Agents", notes)
    if not content["agents"]:
        raise Invalid(UNREADABLE.format("none of its agents can be read"))
    for agent in content["agents"]:
        _add_inline_blocks(agent, content["blocks"])
    labels = _Labels(content["agents"], content["blocks"])
    for agent in content["agents"]:
        labels.link(agent, notes)
    _share_blocks(content["agents"])
    content["groups"] = mend_groups(content["groups"], content, notes)
    return file


def _mend_each(
    entries: list[Json], mend_one: Callable[[Json], Json], kind: str, notes: ImportNotes
) -> list[Json]:
    """Mend each entry; leave out an entry that fails unexpectedly."""
    mended = []
    for entry in entries:
        try:
            mended.append(mend_one(entry))
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            notes.add(f"{kind}: one that cannot be read is left out. {_reason(error)}")
    return mended


def _with_ids(value: Any, name: str, notes: ImportNotes) -> list[Json]:
    """Return the objects in a list, each with a unique id."""
    if value in (None, "", {}):
        return []
    if not isinstance(value, list):
        notes.add(f"{name}: left out, since it is not a list.")
        return []
    kind = name.removesuffix("s")
    ids = set[str]()
    entries = []
    for number, entry in enumerate(value):
        if not isinstance(entry, dict):
            notes.add(f"{name}: an entry that is not an object is left out.")
            continue
        id = entry.get("id")
        if not isinstance(id, str) or not id or id in ids:
            if isinstance(id, str) and id:
                notes.add(
                    f'{name}: two have the id "{id[:80]}"; the first is the one that is linked.'
                )
            id = f"{kind}-without-id-{number}"
        ids.add(id)
        entries.append({**entry, "id": id})
    return entries


def _existing_ids(
    agent: Mapping[str, Any], name: str, file_ids: Iterable[str], notes: ImportNotes
) -> list[str]:
    """Return the ids in this field of the agent that exist in the file."""
    listed = agent.get(name) or []
    if not isinstance(listed, list):
        notes.add(f"Agent: {name} is left out, since it is not a list.")
        return []
    existing = set(file_ids)
    for missing_id in (id for id in listed if not is_id_of(existing, id)):
        notes.add(f'Agent: {name} names "{str(missing_id)[:80]}", which is not in the file.')
    return [id for id in listed if is_id_of(existing, id)]


def _link_only_agent(content: Json) -> None:
    """Link all blocks and tools to the only agent of a file, if it has no field that lists them."""
    agents = content["agents"]
    if len(agents) == 1:
        for name, list_name in (("block_ids", "blocks"), ("tool_ids", "tools")):
            if name not in agents[0]:
                agents[0][name] = [entry["id"] for entry in content[list_name]]


# Agents


def _mended_rules(rules: Any, notes: ImportNotes) -> list[Json]:
    mended_rules = [_rule(rule, notes) for rule in _items(rules, "tool_rules", notes)]
    return [rule for rule in mended_rules if rule]


def _agent(agent: Json, file: MendedFile) -> Json:
    notes = file.notes
    content = file.content
    id = agent["id"]
    name = agent.get("name")
    agent = without_unknown(agent, _AGENT, "Agent", id, notes)
    for part, reason in _NOT_TAKEN_OF_AGENTS.items():
        if agent.get(part):
            notes.add(f"Agent: {part} is left out, since {reason}.")
    if agent.get("files_agents"):
        notes.add(
            "Agent: the list of open files is left out; files of its folders are opened when they "
            "are read."
        )
    settings = {
        setting: agent[setting] for setting in export.AGENT_FIELDS if agent.get(setting) is not None
    }
    settings |= {
        "name": _name(name, notes),
        "agent_type": _agent_type(agent.get("agent_type"), notes),
    }
    if not _is_zone(agent.get("timezone"), notes):
        settings.pop("timezone", None)
    settings["secrets"] = dict.fromkeys(_secret_names(agent), "")
    _mend_model(settings, agent, id, notes)
    rules = settings.pop("tool_rules", None) or []
    settings = fitted(AgentRequest, settings, "Agent", id, notes)
    sources = {source["id"] for source in content["sources"]}
    folders = [
        *_existing_ids(agent, "folder_ids", sources, notes),
        *_existing_ids(agent, "source_ids", sources, notes),
    ]
    messages = [
        _message(message, number, notes)
        for number, message in enumerate(_listed_messages(agent, notes))
    ]
    inline = _with_ids(agent.get("memory_blocks"), "memory_blocks", notes)
    return {
        "name": "Imported agent",
        **settings,
        "id": id,
        "tool_rules": _mended_rules(rules, notes),
        "tool_ids": _existing_ids(
            agent, "tool_ids", (tool["id"] for tool in content["tools"]), notes
        ),
        "tool_names": _texts(agent.get("tools")),
        "block_ids": _existing_ids(
            agent, "block_ids", (block["id"] for block in content["blocks"]), notes
        ),
        "inline_blocks": [_block(block, file) for block in inline],
        "folder_ids": list(dict.fromkeys(folders)),
        "messages": formats.with_own_otids([message for message in messages if message], notes),
        "in_context_message_ids": _texts(agent.get("in_context_message_ids")),
        "enable_sleeptime": agent.get("enable_sleeptime"),
    }


def _items(value: Any, name: str, notes: ImportNotes) -> list[Any]:
    if isinstance(value, list):
        return value
    notes.add(f"Agent: {name} is left out, since it is not a list.")
    return []


def _texts(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for text in value if isinstance(text, str)]
    return []


def _name(name: Any, notes: ImportNotes) -> str:
    if not isinstance(name, str) or not name.strip():
        notes.add('Agent: it had no name, and is called "Imported agent".')
        return "Imported agent"
    if len(name) > _LONGEST_NAME:
        notes.add(f"Agent: its name was longer than {_LONGEST_NAME} characters, and is cut.")
    return name[:_LONGEST_NAME]


def _agent_type(agent_type: Any, notes: ImportNotes) -> str:
    if agent_type in get_args(AgentType):
        return str(agent_type)
    default = "letta_v1_agent"
    if agent_type is not None:
        notes.add(
            f'Agent: the agent_type "{str(agent_type)[:80]}" is unknown here; it became {default}.'
        )
    return default


def _is_zone(name: Any, notes: ImportNotes) -> bool:
    if name is None:
        return False
    try:
        zone(str(name))
    except Invalid:
        notes.add(
            f'Agent: the time zone "{str(name)[:80]}" is unknown here; it has the one of this '
            "server."
        )
        return False
    return isinstance(name, str)


def _secret_names(agent: Mapping[str, Any]) -> list[str]:
    """Return the names of the agent's secrets.

    Files contain them as keys of an object, or as a list of objects with a `key`.
    """
    names = []
    for part in ("secrets", "tool_exec_environment_variables"):
        secrets = agent.get(part) or ()
        if isinstance(secrets, dict):
            names += list(secrets)
        elif isinstance(secrets, list):
            names += [
                str(secret["key"])
                for secret in secrets
                if isinstance(secret, dict) and secret.get("key")
            ]
    return names


def _mend_model(settings: Json, agent: Mapping[str, Any], path: str, notes: ImportNotes) -> None:
    """Move settings of the model from the agent's fields into `llm_config`.

    Unknown fields of `llm_config` and `embedding_config` are left out.
    """
    for name in ("llm_config", "embedding_config"):
        if isinstance(fields := settings.get(name), dict):
            settings[name] = without_unknown(
                fields, _CONFIG, f"Agent {name}", f"{path}.{name}", notes
            )
    config = settings.get("llm_config")
    for name, config_name in _MODEL_FIELDS.items():
        if agent.get(name) is None or not isinstance(config, dict | None):
            continue
        if (config or {}).get(config_name) is None:
            config = settings["llm_config"] = {**(config or {}), config_name: agent[name]}


def _rule(rule: Any, notes: ImportNotes) -> Json | None:
    """Return the rule's known fields; None if the rule is invalid."""
    if not isinstance(rule, dict):
        notes.add("Agent: a tool rule that is not an object is left out.")
        return None
    for name in [name for name in rule if name not in _RULE]:
        notes.add_unknown("Tool rule", f"tool_rules.{name}", rule[name])
    fields = {name: value for name, value in rule.items() if name in _RULE}
    try:
        read_rule(fields)
    except (RicordoError, TypeError, ValueError, KeyError, AttributeError) as error:
        notes.add(f"Agent: a tool rule is left out. {_reason(error)}")
        return None
    return fields


def _reason(error: Exception) -> str:
    if isinstance(error, RicordoError):
        return str(error)
    return f"{type(error).__name__}: {str(error)[:200]}"


# Messages


def _listed_messages(agent: Mapping[str, Any], notes: ImportNotes) -> list[Json]:
    listed = agent.get("messages") or []
    if not isinstance(listed, list):
        notes.add("Messages: left out, since they are not a list.")
        return []
    if invalid_count := sum(not isinstance(message, dict) for message in listed):
        notes.add(f"Messages: {invalid_count} that are no objects are left out.")
    ids = set[str]()
    messages = []
    for number, message in enumerate(listed):
        if isinstance(message, dict):
            id = message.get("id")
            is_unique = isinstance(id, str) and id != "" and id not in ids
            if is_unique:
                local_id = str(id)
            else:
                local_id = f"message-without-id-{number}"
            ids.add(local_id)
            messages.append({**message, "id": local_id})
    return messages


def _message(raw: Json, number: int, notes: ImportNotes) -> Json | None:
    """Return the message in a form that can be stored; None if it cannot be read."""
    raw = without_unknown(raw, _MESSAGE, "Messages", f"messages.{number}", notes)
    for name in ("otid", "name", "sender_id", "group_id", "model", "created_at"):
        if raw.get(name) is not None and not isinstance(raw[name], str):
            notes.add(f"Messages: {name} is left out where it is not text.")
            raw[name] = None
    if isinstance(raw.get("content"), list):
        raw["content"] = [part for part in raw["content"] if _is_part(part, number, notes)]
    problem = _problem_of(raw)
    if problem is None:
        return raw
    without_time = {**raw, "created_at": None}
    if raw.get("created_at") is not None and _problem_of(without_time) is None:
        notes.add(f"Messages: created_at is left out where it is not a time. {problem}")
        return without_time
    notes.add(f"Messages: one that cannot be read is left out. {problem}")
    return None


def _problem_of(raw: Json) -> str | None:
    """Return the reason why a message cannot be read; None if it can."""
    try:
        formats.from_af(raw, raw["id"], formats.Home("", "", "", None), 0)
    except (Invalid, KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        return _reason(error)
    return None


def _is_part(part: Any, number: int, notes: ImportNotes) -> bool:
    if not isinstance(part, dict):
        notes.add("Messages: a part that is not an object is left out.")
        return False
    if part.get("type") not in _PARTS:
        notes.add(
            f'Messages: a part of the type "{str(part.get("type"))[:80]}" is left out, which is '
            "unknown here."
        )
        return False
    without_unknown(part, _PART, "Parts of messages", f"messages.{number}.content", notes)
    return True


# Blocks


def _block(raw: Json, file: MendedFile) -> Json:
    """Return a block that can be stored.

    Its label is made unique within an agent when the block is linked.
    """
    notes = file.notes
    id = raw["id"]
    block = without_unknown(raw, _BLOCK, "Blocks", id, notes)
    fields = {name: block[name] for name in export.BLOCK_FIELDS if block.get(name) is not None}
    label = fields.get("label")
    value = fields.get("value")
    mended = mended_label(label if isinstance(label, str) else id)
    if label is None:
        notes.add(f'Blocks: one without a label is called "{mended}".')
    elif mended != label:
        notes.add(
            f'Blocks: the label "{str(label)[:80]}" cannot be used here, and became "{mended}".'
        )
        if isinstance(label, str):
            file.labels[label] = mended
    if not isinstance(value, str):
        if value is not None:
            notes.add(f'Blocks: the text of "{mended}" is left out, since it is not text.')
        value = ""
    fields |= {"label": mended, "value": value}
    fields = fitted(BlockRequest, fields, "Blocks", id, notes)
    length = max(len(value), len(redact(value).text))
    if length > (limit := fields.get("limit", DEFAULT_LIMIT)):
        notes.add(
            f'Blocks: "{mended}" holds {length:,} characters, above its limit of {limit:,}; the '
            "limit was raised."
        )
        fields["limit"] = length
    try:
        rotation.read_rotation(fields.get("metadata") or {})
    except Invalid as error:
        notes.add(f'Blocks: the rotation of "{mended}" is left out. {error}')
        fields["metadata"] = {
            name: setting for name, setting in fields["metadata"].items() if name != rotation.KEY
        }
    return {**fields, "id": id, **_egress(block, f'Blocks: "{mended}"', notes)}


def _egress(entry: Json, name: str, notes: ImportNotes) -> Json:
    """Return the entry's egress policy; one that cannot be read becomes the strictest."""
    label = read_label(entry.get(export.EGRESS))
    if label == NOBODY_AT_ALL != entry[export.EGRESS]:
        notes.add(f"{name} has an egress policy that cannot be read, so no model may see it.")
    return {export.EGRESS: label} if label else {}


def mended_label(label: str) -> str:
    """Return the label, or else the nearest valid one."""
    if _is_label(label):
        return label
    parts = [_NOT_IN_LABELS.sub(" ", part).strip() for part in label.replace("\\", "/").split("/")]
    invalid_parts = {part for part in parts if part and not _is_label(part)}
    # Try the parts as they are, then with "_" after each invalid part, then with "_" after every
    # part.
    for reserved in (set[str](), invalid_parts, set(parts)):
        marked = [f"{part}_" if part in reserved else part for part in parts if part]
        plain = "/".join(marked)[:_LONGEST_LABEL].rstrip("/ ")
        if _is_label(plain):
            return plain
    letters = "".join(character if character.isalnum() else "_" for character in label).strip("_")[
        :100
    ]
    plain = f"block_{letters}"
    # A text that looks like a secret is not a valid label.
    if letters and _is_label(plain):
        return plain
    return "block"


def _is_label(label: str) -> bool:
    try:
        require_label(label)
    except Invalid:
        return False
    return True


class _Labels:
    """The labels of a file's blocks, which must be unique for each agent that lists them."""

    def __init__(self, agents: list[Json], blocks: list[Json]) -> None:
        self._blocks = {block["id"]: block for block in blocks}
        self._agents: dict[str, list[int]] = {id: [] for id in self._blocks}
        # The labels that each agent has or had.
        self._taken: list[set[str]] = [set() for _ in agents]
        for number, agent in enumerate(agents):
            for id in dict.fromkeys(agent["block_ids"]):
                self._agents[id].append(number)
                self._taken[number].add(self._blocks[id]["label"])

    def link(self, agent: Json, notes: ImportNotes) -> None:
        """Give each block of the agent a unique label, and leave out copies."""
        by_label: dict[str, Json] = {}
        linked = []
        for id in dict.fromkeys(agent["block_ids"]):
            block = self._blocks[id]
            label = block["label"]
            other = by_label.get(label)
            if other is not None and other["value"] == block["value"]:
                notes.add(
                    f'Blocks: a second one labelled "{label}" with the same text is left out.'
                )
                continue
            if other is not None:
                renamed = self._rename_one(other, block)
                by_label[other["label"]] = other
                notes.add(
                    f'Blocks: a second one was labelled "{label}", and became "{renamed["label"]}".'
                )
            by_label[block["label"]] = block
            linked.append(id)
        agent["block_ids"] = linked

    def _rename_one(self, first: Json, second: Json) -> Json:
        """Rename the second block, or the first one if fewer agents list it; return that block."""
        if len(self._agents[first["id"]]) < len(self._agents[second["id"]]):
            block = first
        else:
            block = second
        taken = [self._taken[number] for number in self._agents[block["id"]]]
        for number in count(2):
            ending = f"_{number}"
            label = block["label"][: _LONGEST_LABEL - len(ending)].rstrip("/ ") + ending
            if not any(label in labels for labels in taken):
                break
        block["label"] = label
        for labels in taken:
            labels.add(label)
        return block


def _add_inline_blocks(agent: Json, blocks: list[Json]) -> None:
    """Add the blocks that the agent contains to the file's blocks, and list their ids."""
    for block in agent.pop("inline_blocks"):
        block["id"] = f"{agent['id']}-{block['id']}"
        blocks.append(block)
        agent["block_ids"].append(block["id"])


def _share_blocks(agents: list[Json]) -> None:
    """Give a block to the first agent that lists it; other agents share it."""
    owned_ids: set[str] = set()
    for agent in agents:
        agent["shared_block_ids"] = [id for id in agent["block_ids"] if id in owned_ids]
        agent["block_ids"] = [id for id in agent["block_ids"] if id not in owned_ids]
        owned_ids |= {*agent["block_ids"]}


# Tools


def _tool(raw: Json, file: MendedFile) -> Json:
    """Return a tool; if it is a custom one with source code, add it to the file's tools.

    Source code that cannot be run is left out and noted.
    """
    notes = file.notes
    id = raw["id"]
    tool = without_unknown(raw, _TOOL, "Tools", id, notes)
    name = str(tool.get("name") or (tool.get("json_schema") or {}).get("name") or id)[:80]
    kind = tool.get("tool_type")
    has_source = isinstance(tool.get("source_code"), str) and tool["source_code"].strip() != ""
    if kind not in _TOOL_TYPES and kind is not None:
        notes.add(
            f'Tools: the tool_type "{str(kind)[:80]}" of {name} is unknown here; it counts as a '
            "custom one."
        )
    if kind in _TOOL_TYPES and kind != "custom":
        return {**tool, "name": name}
    if not has_source:
        notes.add(
            f"Tools: {name} is left out: it has no source. If a client runs it, send it as "
            "client_tools."
        )
        return {**tool, "name": name}
    try:
        request, schema = custom_tool(tool, name, notes)
    except (RicordoError, ValueError, TypeError, AttributeError) as error:
        notes.add(
            f"Tools: {name} is left out. {_reason(error)} If a client runs it, send it as "
            "client_tools with your messages."
        )
        return {**tool, "name": name}
    if tool.get("npm_requirements"):
        notes.add(f"Tools: the packages of npm that {name} names are not installed here.")
    file.tools.append((id, request, schema))
    return {**tool, "name": schema.name}


def custom_tool(
    tool: Mapping[str, Any], name: str, notes: ImportNotes
) -> tuple[ToolCreateRequest, ToolSchema]:
    """Return the request and the schema for a tool with source code.

    Args:
        tool: The tool's fields as the file or another database has them, with its `source_code`.
        name: The name of the tool, for the notes.
        notes: Gets notes on the changes.

    Raises:
        Invalid: The source is too long, or cannot be run here.
        ValidationError: The tool's fields do not make a request.
    """
    fields = {
        field_name: tool[field_name]
        for field_name in ToolCreateRequest.model_fields
        if tool.get(field_name)
    }
    fields.pop("npm_requirements", None)
    if len(fields["source_code"]) > LONGEST_SOURCE:
        raise Invalid(f"Its source has more than {LONGEST_SOURCE:,} characters.")
    source_type = fields.get("source_type")
    if source_type not in (None, *_SOURCE_TYPES):
        function_name(fields["source_code"])  # raises Invalid if the source is not Python
        notes.add(
            f'Tools: the source_type "{str(source_type)[:80]}" of {name} is unknown; its source '
            "is Python."
        )
        fields["source_type"] = "python"
    request = ToolCreateRequest.model_validate(
        fitted(ToolCreateRequest, fields, f"Tool {name}", name, notes)
    )
    try:
        return request, custom_tools.schema_for(request)
    except RicordoError as error:
        if request.source_type != "python" or (
            request.json_schema is None and request.args_json_schema is None
        ):
            raise
        without_schemas = request.model_copy(update={"json_schema": None, "args_json_schema": None})
        schema = custom_tools.schema_for(without_schemas)
        notes.add(f"Tools: the schema of {name} is read from its source. {error}")
        return without_schemas, schema


# Folders


def _source(raw: Json, notes: ImportNotes) -> Json:
    source = without_unknown(raw, _SOURCE, "Folders", raw["id"], notes)
    name = source.get("name")
    for part, expected_type in (("description", str), ("instructions", str), ("metadata", dict)):
        if source.get(part) is not None and not isinstance(source[part], expected_type):
            notes.add(f"Folders: {part} is left out where it is of another type.")
            source[part] = None
    if not isinstance(name, str) or not name.strip():
        notes.add('Folders: one without a name is called "Folder".')
        name = "Folder"
    name = name[:_LONGEST_NAME]
    egress = {export.EGRESS: None, **_egress(source, f'Folders: "{name}"', notes)}
    return {**source, "name": name, **egress}


def _file(raw: Json, source_ids: set[str], notes: ImportNotes) -> Json:
    file = without_unknown(raw, _TEXT_FILE, "Files", raw["id"], notes)
    name = file.get("file_name")
    if name is None:
        name = file.get("original_file_name")
    try:
        file["file_name"] = name_of(str(name or ""))
    except Invalid:
        file["file_name"] = f"{raw['id'][:80]}.txt"
        notes.add(f'Files: one whose name cannot be used is called "{file["file_name"]}".')
    text = file.get("content")
    if text is not None and not isinstance(text, str):
        notes.add("Files: the content of one is not text, and is left out.")
        file["content"] = text = None
    if not text:
        notes.add(
            f"Files: {file['file_name']} is left out, since the agent file has no text of it."
        )
    elif not is_id_of(source_ids, file.get("source_id")):
        notes.add(f"Files: {file['file_name']} is left out, since its folder is not in the file.")
        file["content"] = None
    return file
