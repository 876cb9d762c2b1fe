"""Agent files made fit for import: what other servers and other versions write otherwise is mended, or left out and noted.

The result holds only what `service` can store: known fields of the right types, ids that lead somewhere, labels that can be.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

from ricordo.api.models.agents import AgentRequest
from ricordo.api.models.base import Json
from ricordo.api.models.memory import BlockRequest, BlockResponse
from ricordo.api.models.models import ModelConfigRequest
from ricordo.api.models.tools import ToolResponse, read_rule
from ricordo.domain.agent import AgentType
from ricordo.domain.block import DEFAULT_LIMIT, require_label
from ricordo.domain.clock import zone
from ricordo.domain.model import ToolSchema
from ricordo.domain.redaction import redact
from ricordo.domain.tool import ToolType
from ricordo.errors import Invalid, RicordoError
from ricordo.features.agent_files import export
from ricordo.features.agent_files import messages as formats
from ricordo.features.agent_files.groups import mend_groups
from ricordo.features.agent_files.tolerance import ImportNotes, fitted, storable, without_unknown
from ricordo.features.custom_tools import service as custom_tools
from ricordo.features.custom_tools.models import SourceType, ToolCreateRequest
from ricordo.features.custom_tools.source import function_name
from ricordo.features.files.service import name_of
from ricordo.memory import rotation

UNREADABLE = "This is no agent file: {}. An agent file is the JSON that GET /v1/agents/{{agent_id}}/export answers."
_LONGEST_NAME = 256
_FILE = "agents groups blocks files sources tools mcp_servers skills metadata created_at ricordo".split()
_LISTS = ("agents", "blocks", "files", "groups", "sources", "tools")
# Parts of a file that are not taken over, with the reason.
_NOT_TAKEN = {
    "mcp_servers": "connect MCP servers here; tools of theirs that are here already are linked",
    "skills": "skills stay with the client that has them",
}
_AGENTS_OWN = (
    "id messages in_context_message_ids memory_blocks tools tool_ids block_ids source_ids folder_ids files_agents"
    " group_ids identity_ids secrets tool_exec_environment_variables include_base_tools context_window_limit"
    " max_tokens max_reasoning_tokens parallel_tool_calls enable_sleeptime reasoning agent_id"
).split()
_NOT_TAKEN_OF_AGENTS = {"identity_ids": "users of another server are not known here"}
# What a request for a new agent may have beside the model's own settings, by its name there.
_OF_THE_MODEL = {
    "context_window_limit": "context_window",
    "max_tokens": "max_tokens",
    "max_reasoning_tokens": "max_reasoning_tokens",
    "parallel_tool_calls": "parallel_tool_calls",
}
_AGENT = {*AgentRequest.model_fields, *AgentRequest.ignored, *_AGENTS_OWN}
_BLOCK = {*BlockRequest.model_fields, *BlockRequest.ignored, *BlockResponse.model_fields}
_TOOL = {*ToolResponse.model_fields, *export.TOOL_FIELDS, "organization_id"}
_SOURCE = {
    *export.FOLDER_FIELDS,
    *(
        "id embedding embedding_config embedding_chunk_size vector_db_provider organization_id created_by_id"
        " last_updated_by_id created_at updated_at"
    ).split(),
}
_TEXT_FILE = set(
    "id source_id file_name original_file_name file_path file_type file_size file_creation_date file_last_modified_date"
    " processing_status error_message total_chunks chunks_embedded content organization_id created_at updated_at"
    " is_deleted".split()
)
_MESSAGE = set(
    "type id agent_id role content name otid sender_id group_id batch_item_id model tool_calls tool_call_id tool_returns"
    " created_at updated_at approve denial_reason approval_request_id approvals is_err step_id run_id conversation_id"
    " organization_id created_by_id last_updated_by_id".split()
)
_PARTS = (
    "text image reasoning redacted_reasoning summarized_reasoning omitted_reasoning tool_call tool_return"
).split()
_PART = set(
    "type text signature source reasoning is_native data summary id name input tool_call_id content is_error"
    " state hidden_reasoning".split()
)
_RULE = set(
    "type tool_name prompt_template id args child_output_mapping default_child require_output_mapping children"
    " child_arg_nodes max_count_limit".split()
)
_CONFIG = {*ModelConfigRequest.model_fields, *ModelConfigRequest.ignored}
_SOURCE_TYPES = get_args(SourceType)
_TOOL_TYPES = get_args(ToolType)
_NOT_IN_LABELS = re.compile(r"[\x00-\x1f\x7f<>\\]+")


@dataclass
class MendedFile:
    """A file that can be imported. `tools` are those with a source; `labels` are mended labels by those of the file."""

    content: Json
    notes: ImportNotes
    tools: list[tuple[str, ToolCreateRequest, ToolSchema]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)


def mend(content: Any, notes: ImportNotes) -> MendedFile:
    """Return the file with what can be stored of it. Raises Invalid where it holds no agent."""
    content = storable(content, notes)
    if not isinstance(content, dict) or not isinstance(content.get("agents"), list):
        raise Invalid(UNREADABLE.format("it has no list of agents"))
    content = without_unknown(content, _FILE, "The file", "file", notes)
    for name in _LISTS:
        content[name] = _listed(content.get(name), name, notes)
    if not content["agents"]:
        raise Invalid(UNREADABLE.format("its list of agents is empty"))
    for name, reason in _NOT_TAKEN.items():
        if held := content.get(name):
            count = len(held) if isinstance(held, list | dict) else 1
            notes.add(f"{name}: {count} left out, since {reason}.")
    file = MendedFile(content, notes)
    content["tools"] = _each(content["tools"], partial(_tool, file=file), "Tools", notes)
    content["sources"] = _each(content["sources"], partial(_source, notes=notes), "Folders", notes)
    known = {one["id"] for one in content["sources"]}
    content["files"] = _each(
        content["files"], partial(_file, known=known, notes=notes), "Files", notes
    )
    content["blocks"] = _each(content["blocks"], partial(_block, file=file), "Blocks", notes)
    _link_alone(content)
    content["agents"] = _each(content["agents"], partial(_agent, file=file), "Agents", notes)
    if not content["agents"]:
        raise Invalid(UNREADABLE.format("none of its agents can be read"))
    for agent in content["agents"]:
        _link_blocks(agent, content["blocks"], notes)
    _share_blocks(content["agents"])
    content["groups"] = mend_groups(content["groups"], content, notes)
    return file


def _each(
    items: list[Json], mend_one: Callable[[Json], Json], kind: str, notes: ImportNotes
) -> list[Json]:
    """Mend the items one by one; one that holds what nobody foresaw is left out by itself."""
    mended = []
    for item in items:
        try:
            mended.append(mend_one(item))
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            notes.add(f"{kind}: one that cannot be read is left out. {_why(error)}")
    return mended


def _listed(value: Any, name: str, notes: ImportNotes) -> list[Json]:
    """Return the objects of a list, each with an id of its own."""
    if value in (None, "", {}):
        return []
    if not isinstance(value, list):
        notes.add(f"{name}: left out, since it is no list.")
        return []
    kind, ids, items = name.removesuffix("s"), set[str](), []
    for number, one in enumerate(value):
        if not isinstance(one, dict):
            notes.add(f"{name}: an entry that is no object is left out.")
            continue
        id = one.get("id")
        if not isinstance(id, str) or not id or id in ids:
            if isinstance(id, str) and id:
                notes.add(
                    f'{name}: two have the id "{id[:80]}"; the first is the one that is linked.'
                )
            id = f"{kind}-without-id-{number}"
        ids.add(id)
        items.append({**one, "id": id})
    return items


def _ids(
    agent: Mapping[str, Any], name: str, known: Iterable[str], notes: ImportNotes
) -> list[str]:
    """Return the ids that an agent lists, of those that are in the file."""
    listed = agent.get(name) or []
    if not isinstance(listed, list):
        notes.add(f"Agent: {name} is left out, since it is no list.")
        return []
    there = set(known)
    for missing in (one for one in listed if not isinstance(one, str) or one not in there):
        notes.add(f'Agent: {name} names "{str(missing)[:80]}", which is not in the file.')
    return [one for one in listed if isinstance(one, str) and one in there]


def _link_alone(content: Json) -> None:
    """Link blocks and tools to the file's only agent where it does not say which are its own."""
    agents = content["agents"]
    if len(agents) == 1:
        for name, listed in (("block_ids", "blocks"), ("tool_ids", "tools")):
            if name not in agents[0]:
                agents[0][name] = [one["id"] for one in content[listed]]


# Agents


def _agent(agent: Json, file: MendedFile) -> Json:
    notes, content = file.notes, file.content
    id, name = agent["id"], agent.get("name")
    agent = without_unknown(agent, _AGENT, "Agent", id, notes)
    for part, reason in _NOT_TAKEN_OF_AGENTS.items():
        if agent.get(part):
            notes.add(f"Agent: {part} is left out, since {reason}.")
    if agent.get("files_agents"):
        notes.add(
            "Agent: which files were open is left out; files of its folders are opened when they are read."
        )
    settings = {one: agent[one] for one in export.AGENT_FIELDS if agent.get(one) is not None}
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
    sources = {one["id"] for one in content["sources"]}
    folders = [
        *_ids(agent, "folder_ids", sources, notes),
        *_ids(agent, "source_ids", sources, notes),
    ]
    messages = [
        _message(one, number, notes) for number, one in enumerate(_listed_messages(agent, notes))
    ]
    inline = _listed(agent.get("memory_blocks"), "memory_blocks", notes)
    return {
        "name": "Imported agent",
        **settings,
        "id": id,
        "tool_rules": [
            one for rule in _items(rules, "tool_rules", notes) if (one := _rule(rule, notes))
        ],
        "tool_ids": _ids(agent, "tool_ids", (one["id"] for one in content["tools"]), notes),
        "tool_names": _texts(agent.get("tools")),
        "block_ids": _ids(agent, "block_ids", (one["id"] for one in content["blocks"]), notes),
        "inline_blocks": [_block(one, file) for one in inline],
        "folder_ids": list(dict.fromkeys(folders)),
        "messages": formats.with_own_otids([one for one in messages if one], notes),
        "in_context_message_ids": _texts(agent.get("in_context_message_ids")),
        "enable_sleeptime": agent.get("enable_sleeptime"),
    }


def _items(value: Any, name: str, notes: ImportNotes) -> list[Any]:
    if isinstance(value, list):
        return value
    notes.add(f"Agent: {name} is left out, since it is no list.")
    return []


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _name(name: Any, notes: ImportNotes) -> str:
    if not isinstance(name, str) or not name.strip():
        notes.add('Agent: it had no name, and is called "Imported agent".')
        return "Imported agent"
    if len(name) > _LONGEST_NAME:
        notes.add(f"Agent: its name was longer than {_LONGEST_NAME} characters, and is cut.")
    return name[:_LONGEST_NAME]


def _agent_type(sent: Any, notes: ImportNotes) -> str:
    if sent in get_args(AgentType):
        return str(sent)
    usual = "letta_v1_agent"
    if sent is not None:
        notes.add(f'Agent: the agent_type "{str(sent)[:80]}" is unknown here; it became {usual}.')
    return usual


def _is_zone(sent: Any, notes: ImportNotes) -> bool:
    if sent is None:
        return False
    try:
        zone(str(sent))
    except Invalid:
        notes.add(
            f'Agent: the time zone "{str(sent)[:80]}" is unknown here; it has the one of this server.'
        )
        return False
    return isinstance(sent, str)


def _secret_names(agent: Mapping[str, Any]) -> list[str]:
    """Return the names of secrets: keys of an object, or of a list of objects with a key each."""
    names = []
    for part in ("secrets", "tool_exec_environment_variables"):
        held = agent.get(part) or ()
        if isinstance(held, dict):
            names += list(held)
        elif isinstance(held, list):
            names += [str(one["key"]) for one in held if isinstance(one, dict) and one.get("key")]
    return names


def _mend_model(settings: Json, agent: Mapping[str, Any], place: str, notes: ImportNotes) -> None:
    """Take what stands beside the model's settings into them, and unknown fields out."""
    for name in ("llm_config", "embedding_config"):
        if isinstance(held := settings.get(name), dict):
            settings[name] = without_unknown(
                held, _CONFIG, f"Agent {name}", f"{place}.{name}", notes
            )
    config = settings.get("llm_config")
    for name, inside in _OF_THE_MODEL.items():
        if (
            agent.get(name) is not None
            and isinstance(config, dict | None)
            and (config or {}).get(inside) is None
        ):
            config = settings["llm_config"] = {**(config or {}), inside: agent[name]}


def _rule(rule: Any, notes: ImportNotes) -> Json | None:
    """Return the rule as it can be; None where it cannot."""
    if not isinstance(rule, dict):
        notes.add("Agent: a tool rule that is no object is left out.")
        return None
    for name in [name for name in rule if name not in _RULE]:
        notes.add_unknown("Tool rule", f"tool_rules.{name}", rule[name])
    known = {name: value for name, value in rule.items() if name in _RULE}
    try:
        read_rule(known)
    except (RicordoError, TypeError, ValueError, KeyError, AttributeError) as error:
        notes.add(f"Agent: a tool rule is left out. {_why(error)}")
        return None
    return known


def _why(error: Exception) -> str:
    return (
        str(error)
        if isinstance(error, RicordoError)
        else f"{type(error).__name__}: {str(error)[:200]}"
    )


# Messages


def _listed_messages(agent: Mapping[str, Any], notes: ImportNotes) -> list[Json]:
    listed = agent.get("messages") or []
    if not isinstance(listed, list):
        notes.add("Messages: left out, since they are no list.")
        return []
    if others := sum(not isinstance(one, dict) for one in listed):
        notes.add(f"Messages: {others} that are no objects are left out.")
    ids, messages = set[str](), []
    for number, one in enumerate(listed):
        if isinstance(one, dict):
            id = one.get("id")
            is_own = isinstance(id, str) and id != "" and id not in ids
            local = str(id) if is_own else f"message-without-id-{number}"
            ids.add(local)
            messages.append({**one, "id": local})
    return messages


def _message(sent: Json, number: int, notes: ImportNotes) -> Json | None:
    """Return the message as it can be stored; None where it cannot be read."""
    sent = without_unknown(sent, _MESSAGE, "Messages", f"messages.{number}", notes)
    for name in ("otid", "name", "sender_id", "group_id", "model", "created_at"):
        if sent.get(name) is not None and not isinstance(sent[name], str):
            notes.add(f"Messages: {name} is left out where it is no text.")
            sent[name] = None
    if isinstance(sent.get("content"), list):
        sent["content"] = [one for one in sent["content"] if _is_part(one, number, notes)]
    try:
        formats.from_af(sent, sent["id"], formats.Home("", "", "", None), 0)
    except Invalid as error:
        if sent.get("created_at") is not None:
            notes.add(f"Messages: created_at is left out where it is no time. {_why(error)}")
            return _message({**sent, "created_at": None}, number, notes)
        notes.add(f"Messages: one that cannot be read is left out. {_why(error)}")
        return None
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        notes.add(f"Messages: one that cannot be read is left out. {_why(error)}")
        return None
    return sent


def _is_part(part: Any, number: int, notes: ImportNotes) -> bool:
    if not isinstance(part, dict):
        notes.add("Messages: a part that is no object is left out.")
        return False
    if part.get("type") not in _PARTS:
        notes.add(
            f'Messages: a part of the type "{str(part.get("type"))[:80]}" is left out, which is unknown here.'
        )
        return False
    without_unknown(part, _PART, "Parts of messages", f"messages.{number}.content", notes)
    return True


# Blocks


def _block(sent: Json, file: MendedFile) -> Json:
    """Return a block that can be stored; its label is made its own among an agent's when it is linked."""
    notes, id = file.notes, sent["id"]
    block = without_unknown(sent, _BLOCK, "Blocks", id, notes)
    given = {name: block[name] for name in export.BLOCK_FIELDS if block.get(name) is not None}
    label, value = given.get("label"), given.get("value")
    mended = mended_label(label if isinstance(label, str) else id)
    if mended != label:
        notes.add(
            f'Blocks: the label "{str(label)[:80]}" cannot be used here, and became "{mended}".'
        )
        if isinstance(label, str):
            file.labels[label] = mended
    if not isinstance(value, str):
        if value is not None:
            notes.add(f'Blocks: the text of "{mended}" is left out, since it is no text.')
        value = ""
    given |= {"label": mended, "value": value}
    given = fitted(BlockRequest, given, "Blocks", id, notes)
    length = max(len(value), len(redact(value).text))
    if length > (limit := given.get("limit", DEFAULT_LIMIT)):
        notes.add(
            f'Blocks: "{mended}" holds {length:,} characters, above its limit of {limit:,}; the limit was raised.'
        )
        given["limit"] = length
    try:
        rotation.read_rotation(given.get("metadata") or {})
    except Invalid as error:
        notes.add(f'Blocks: the rotation of "{mended}" is left out. {error}')
        given["metadata"] = {
            name: one for name, one in given["metadata"].items() if name != rotation.KEY
        }
    return {**given, "id": id}


def mended_label(label: str) -> str:
    """Return the label, or the nearest that can name a block."""
    if _is_label(label):
        return label
    parts = [_NOT_IN_LABELS.sub(" ", part).strip() for part in label.replace("\\", "/").split("/")]
    for reserved in (
        set[str](),
        {part for part in parts if part and not _is_label(part)},
        set(parts),
    ):
        marked = [f"{part}_" if part in reserved else part for part in parts if part]
        plain = "/".join(marked)[:255].rstrip("/ ")
        if _is_label(plain):
            return plain
    letters = "".join(sign if sign.isalnum() else "_" for sign in label).strip("_")[:100]
    plain = f"block_{letters}"
    return (
        plain if letters and _is_label(plain) else "block"
    )  # what looks like a secret is no label


def _is_label(label: str) -> bool:
    try:
        require_label(label)
    except Invalid:
        return False
    return True


def _link_blocks(agent: Json, blocks: list[Json], notes: ImportNotes) -> None:
    """Give each block of the agent a label of its own, and leave out copies."""
    for block in agent.pop("inline_blocks"):
        block["id"] = f"{agent['id']}-{block['id']}"
        blocks.append(block)
        agent["block_ids"].append(block["id"])
    own: dict[str, Json] = {}
    known = {one["id"]: one for one in blocks}
    linked = []
    for id in dict.fromkeys(agent["block_ids"]):
        block, label = known[id], known[id]["label"]
        if (other := own.get(label)) is not None:
            if other["value"] == block["value"]:
                notes.add(
                    f'Blocks: a second one labelled "{label}" with the same text is left out.'
                )
                continue
            number = 2
            while f"{label}_{number}" in own:
                number += 1
            notes.add(
                f'Blocks: a second one was labelled "{label}", and became "{label}_{number}".'
            )
            block["label"] = label = f"{label}_{number}"
        own[label] = block
        linked.append(id)
    agent["block_ids"] = linked


def _share_blocks(agents: list[Json]) -> None:
    """Let the first agent that lists a block have it, and the others share it."""
    taken: set[str] = set()
    for agent in agents:
        agent["shared_block_ids"] = [id for id in agent["block_ids"] if id in taken]
        agent["block_ids"] = [id for id in agent["block_ids"] if id not in taken]
        taken |= {*agent["block_ids"]}


# Tools


def _tool(sent: Json, file: MendedFile) -> Json:
    """Return a tool; one that brings a source that can be run is added to the file's tools."""
    notes, id = file.notes, sent["id"]
    tool = without_unknown(sent, _TOOL, "Tools", id, notes)
    name = str(tool.get("name") or (tool.get("json_schema") or {}).get("name") or id)[:80]
    kind = tool.get("tool_type")
    has_source = isinstance(tool.get("source_code"), str) and tool["source_code"].strip() != ""
    if kind not in _TOOL_TYPES and kind is not None:
        notes.add(
            f'Tools: the tool_type "{str(kind)[:80]}" of {name} is unknown here; it counts as a custom one.'
        )
    if kind in _TOOL_TYPES and kind != "custom":
        return {**tool, "name": name}
    if not has_source:
        notes.add(
            f"Tools: {name} is left out: it has no source. If a client runs it, send it as client_tools."
        )
        return {**tool, "name": name}
    try:
        request, schema = custom_tool(tool, name, notes)
    except (RicordoError, ValueError, TypeError, AttributeError) as error:
        notes.add(
            f"Tools: {name} is left out. {_why(error)} If a client runs it, send it as client_tools with your messages."
        )
        return {**tool, "name": name}
    if tool.get("npm_requirements"):
        notes.add(f"Tools: the packages of npm that {name} names are not installed here.")
    file.tools.append((id, request, schema))
    return {**tool, "name": schema.name}


def custom_tool(
    tool: Mapping[str, Any], name: str, notes: ImportNotes
) -> tuple[ToolCreateRequest, ToolSchema]:
    """Return how the tool is made. Raises Invalid where its source cannot be run here."""
    given = {one: tool[one] for one in ToolCreateRequest.model_fields if tool.get(one)}
    given.pop("npm_requirements", None)
    written = given.get("source_type")
    if written not in (None, *_SOURCE_TYPES):
        function_name(given["source_code"])  # it is Python, or cannot be run
        notes.add(
            f'Tools: the source_type "{str(written)[:80]}" of {name} is unknown; its source is Python.'
        )
        given["source_type"] = "python"
    source = given["source_code"]
    request = ToolCreateRequest.model_validate(
        fitted(ToolCreateRequest, given, f"Tool {name}", name, notes)
    )
    if request.source_code != source:
        raise Invalid("Its source is too long.")
    try:
        return request, custom_tools.schema_for(request)
    except RicordoError as error:
        if request.source_type != "python" or (
            request.json_schema is None and request.args_json_schema is None
        ):
            raise
        plain = request.model_copy(update={"json_schema": None, "args_json_schema": None})
        schema = custom_tools.schema_for(plain)
        notes.add(f"Tools: the schema of {name} is read from its source. {error}")
        return plain, schema


# Folders


def _source(sent: Json, notes: ImportNotes) -> Json:
    source = without_unknown(sent, _SOURCE, "Folders", sent["id"], notes)
    name = source.get("name")
    for part, kind in (("description", str), ("instructions", str), ("metadata", dict)):
        if source.get(part) is not None and not isinstance(source[part], kind):
            notes.add(f"Folders: {part} is left out where it is of another type.")
            source[part] = None
    if not isinstance(name, str) or not name.strip():
        notes.add('Folders: one without a name is called "Folder".')
        name = "Folder"
    return {**source, "name": name[:_LONGEST_NAME]}


def _file(sent: Json, known: set[str], notes: ImportNotes) -> Json:
    file = without_unknown(sent, _TEXT_FILE, "Files", sent["id"], notes)
    name = file.get("original_file_name") if file.get("file_name") is None else file["file_name"]
    try:
        file["file_name"] = name_of(str(name or ""))
    except Invalid:
        file["file_name"] = f"{sent['id'][:80]}.txt"
        notes.add(f'Files: one whose name cannot be used is called "{file["file_name"]}".')
    text = file.get("content")
    if text is not None and not isinstance(text, str):
        notes.add("Files: the content of one is no text, and is left out.")
        file["content"] = text = None
    if not text:
        notes.add(f"Files: {file['file_name']} is left out, since the file has no text of it.")
    elif str(file.get("source_id")) not in known:
        notes.add(f"Files: {file['file_name']} is left out, since its folder is not in the file.")
        file["content"] = None
    return file
