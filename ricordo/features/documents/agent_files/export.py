"""Export an agent as a file.

The file begins with the parts that other servers read (`.af` of the retired Letta V1 server
0.16.8). The part `ricordo` then contains the rest of the agent. Ids are local to the
file, except those of versions, senders and tool calls.
Conversations, passages, blocks, folders and schedules of one user are left out, since files are
passed on to others. Hidden conversations are left out too. The agent's messages are those of the
chosen conversation, or else of the caller's default one. The file contains the names of secrets but
not their values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ricordo.agents.call_context import CallContext
from ricordo.api.call import agent_json
from ricordo.api.models.af_messages import to_af
from ricordo.api.models.base import without_none
from ricordo.api.models.memory import BlockResponse
from ricordo.api.models.tools import ToolResponse
from ricordo.domain.agent import AgentState, Conversation
from ricordo.domain.block import Block
from ricordo.domain.clock import stamp
from ricordo.domain.egress import join
from ricordo.domain.message import Message
from ricordo.domain.text import Json
from ricordo.features.automation.schedules import queries as schedules
from ricordo.features.documents.agent_files import messages as formats
from ricordo.features.documents.agent_files.content import VERSION
from ricordo.features.documents.agent_files.groups import group_json
from ricordo.features.documents.agent_files.local_ids import LocalIds
from ricordo.features.documents.agent_files.memory import detached_blocks, memory_json, own_blocks
from ricordo.features.files.folders import queries as files
from ricordo.features.files.folders.records import Folder
from ricordo.features.groups import queries as groups
from ricordo.features.groups.records import ASLEEP
from ricordo.memory.egress import spans_of
from ricordo.storage import agents, archives, conversations
from ricordo.storage.conversations import ConversationFilter
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

# The field with the label of an egress policy (`domain/egress.py`). Other servers ignore it.
EGRESS = "egress"
_ALL = Page(limit=1_000_000, order="asc")
# Fields of an agent's response that a request for a new agent has too.
AGENT_FIELDS = (
    "name",
    "agent_type",
    "system",
    "description",
    "metadata",
    "tags",
    "timezone",
    "hidden",
    "tool_rules",
    "model",
    "model_settings",
    "llm_config",
    "embedding",
    "embedding_config",
    "compaction_settings",
    "response_format",
    "message_buffer_autoclear",
    "max_files_open",
    "per_file_view_window_char_limit",
    "user_block_policy",
    "model_profile",
    "memory_in_prompt",
)
BLOCK_FIELDS = (
    "label",
    "value",
    "limit",
    "description",
    "metadata",
    "read_only",
    "hidden",
    "tags",
    "policy",
    "shared",
)
TOOL_FIELDS = (
    *(
        "name",
        "tool_type",
        "description",
        "source_type",
        "source_code",
        "json_schema",
        "args_json_schema",
        "tags",
    ),
    *(
        "return_char_limit",
        "default_requires_approval",
        "enable_parallel_execution",
        "pip_requirements",
    ),
    *("npm_requirements", "metadata_"),
)
CONVERSATION_FIELDS = (
    "summary",
    "description",
    "model",
    "model_settings",
    "context_window",
    "hidden",
    "archived_at",
    EGRESS,
)
ARCHIVE_FIELDS = ("name", "description", "metadata")
PASSAGE_FIELDS = ("text", "tags", "metadata", "is_untrusted", "created_at", EGRESS)
# Name of the agent setting that keeps the import file's unknown fields, by path.
UNREAD = "unread"
FOLDER_FIELDS = ("name", "description", "instructions", "metadata")


def export(
    tx: Transaction,
    context: CallContext,
    agent_id: str,
    conversation_id: str | None,
    *,
    scrubs: bool,
) -> Json:
    """Return the agent's file, with the group that it manages and the group's members.

    Args:
        tx: The transaction, or a read.
        context: The caller's context.
        agent_id: The agent.
        conversation_id: The conversation whose messages are exported as the agent's; None for the
            caller's default one.
        scrubs: Leave out messages, other conversations and schedules.

    Raises:
        NotFound: The caller may not use the agent, the conversation or a member of the group.
    """
    ids = LocalIds()
    agents.require(tx, context.scope, agent_id)
    group = groups.of_manager(tx, context.scope.organization_id, agent_id)
    if group:
        # Raises NotFound if the caller may not use a member.
        groups.get(tx, context.scope, group.id)
        ids.of("group", group.id)
    file = _agent_file(tx, context, ids, agent_id, conversation_id, scrubs=scrubs)
    for member_id in group.agent_ids if group else ():
        _add_agent(file, _agent_file(tx, context, ids, member_id, None, scrubs=scrubs))
    if group:
        file["groups"] = [group_json(ids, group)]
        for agent in file["agents"]:
            agent["group_ids"] = [ids.of("group", group.id)]
        if group.manager_type in ASLEEP:
            manager = agents.find(tx, context.scope, agent_id)
            file["agents"][0]["enable_sleeptime"] = manager is not None and manager.has_sleeptime
    return {**file, "created_at": stamp(tx.clock.now())}


def _add_agent(file: Json, other: Json) -> None:
    """Add another agent's file to a file, without entries that the file already has."""
    for name in ("agents", "blocks", "files", "sources", "tools"):
        known_ids = {entry["id"] for entry in file[name]}
        file[name] += [entry for entry in other[name] if entry["id"] not in known_ids]
    file["ricordo"]["agents"] |= other["ricordo"]["agents"]


def _not_in_file(ids: LocalIds, blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks that no earlier agent in the file has."""
    return [block for block in blocks if not ids.knows("block", block.id)]


def _agent_file(
    tx: Transaction,
    context: CallContext,
    ids: LocalIds,
    agent_id: str,
    conversation_id: str | None,
    *,
    scrubs: bool,
) -> Json:
    """Return one agent as a file.

    The history of a block that an earlier agent in `ids` has is left out.
    """
    (state,) = context.runtime.complete(tx, (agents.load_whole(tx, context.scope, agent_id),))
    if conversation_id:
        # Keep the complete state, since the state from `load` lacks tags and additions by plugins.
        thread_state = agents.load(tx, context.scope, agent_id, conversation_id)
        state = replace(state, conversation=thread_state.conversation)
    if scrubs:
        thread = []
    else:
        thread = _thread(tx, context, state.conversation)
    by_id = {message.id: message for message in thread}
    in_window = {id: by_id[id] for id in state.conversation.window if id in by_id}
    folders = [
        folder
        for folder in files.folders_of_agent(tx, context.scope, agent_id)
        if folder.user_id is None
    ]
    sources, text_files = _folders(tx, context, ids, folders)
    attached = own_blocks(tx, context.scope, agent_id)
    new_blocks = _not_in_file(ids, attached)
    detached = _not_in_file(ids, detached_blocks(tx, context.scope, agent_id, attached))
    file = outline(context, ids, state, attached, detached)
    agent = file["agents"][0]
    local_id = agent["id"]
    agent |= {
        "in_context_message_ids": [
            ids.of("message", id) for id in state.conversation.window if id in in_window
        ],
        "messages": [
            _with_local_group(ids, to_af(message, ids.of("message", message.id), local_id))
            for message in in_window.values()
        ],
        "source_ids": [source["id"] for source in sources],
        "folder_ids": [source["id"] for source in sources],
    }
    whole: Json = {
        "messages": [_whole_message(ids, message) for message in thread],
        "archives": _archives(tx, context, ids, state),
        "conversations": [] if scrubs else _conversations(tx, context, ids, state),
        "memory": memory_json(tx, context.scope, agent_id, new_blocks, detached),
        "schedules": [] if scrubs else _schedules(tx, context, agent_id),
    }
    if state.conversation.egress:
        whole[EGRESS] = state.conversation.egress
    if unread := state.agent.settings.get(UNREAD):
        whole["unread"] = unread
    whole["memory"]["detached_block_ids"] = [ids.of("block", block.id) for block in detached]
    return file | {
        "files": text_files,
        "sources": sources,
        "ricordo": {"version": VERSION, "agents": {local_id: whole}},
    }


def _schedules(tx: Transaction, context: CallContext, agent_id: str) -> list[Json]:
    return [
        {**schedule.message, "schedule": schedule.schedule, "callback_url": None}
        for schedule in schedules.page(tx, context.scope, _ALL, agent_id)
        if schedule.user_id is None and schedule.next_at
    ]


def _whole_message(ids: LocalIds, message: Message) -> Json:
    return _with_local_group(ids, formats.whole(message, ids.of("message", message.id)))


def _with_local_group(ids: LocalIds, message: Json) -> Json:
    """Return a message with its group's id replaced by one that is local to the file."""
    if not message.get("group_id"):
        return message
    return {**message, "group_id": ids.of("group", message["group_id"])}


def outline(
    context: CallContext,
    ids: LocalIds,
    state: AgentState,
    blocks: Sequence[Block],
    detached: Sequence[Block] = (),
) -> Json:
    """Return a file with the agent's settings, prompt and tools, and with these blocks.

    Args:
        context: The caller's context.
        ids: The ids of the file. The ids of the agent, its tools and its blocks are added to them.
        state: The agent with all its attachments.
        blocks: The blocks in the agent's prompt.
        detached: Further blocks of the file, which are not linked to the agent.
    """
    fields = agent_json(context, state)
    agent = {
        **{name: fields.get(name) for name in AGENT_FIELDS},
        "id": ids.of("agent", state.agent.id),
        "in_context_message_ids": [],
        "messages": [],
        "tool_ids": [ids.of("tool", tool.id) for tool in state.tools],
        "block_ids": [ids.of("block", block.id) for block in blocks],
        "source_ids": [],
        "folder_ids": [],
        "files_agents": [],
        "group_ids": [],
        "identity_ids": [],
        "include_base_tools": False,
        "secrets": dict.fromkeys(state.agent.secret_names, ""),
        "tool_exec_environment_variables": dict.fromkeys(state.agent.secret_names, ""),
    }
    return {
        "agents": [agent],
        "groups": [],
        "blocks": [_block(context, ids, block) for block in (*blocks, *detached)],
        "files": [],
        "sources": [],
        "tools": [
            {"id": ids.of("tool", tool.id), **_pick_fields(ToolResponse.of(tool), TOOL_FIELDS)}
            for tool in state.tools
        ],
        "mcp_servers": [],
        "skills": [],
        "metadata": {"revision_id": "ricordo"},
    }


def _block(context: CallContext, ids: LocalIds, block: Block) -> Json:
    """Return a block. Its egress policy includes those of its schema's fields.

    The file has no schema, so an import cannot find the lines of these fields.
    """
    spans = spans_of(context.runtime.settings.data_dir, block)
    egress = join(block.egress, *(span.label for span in spans))
    fields = _pick_fields(BlockResponse.of(block), BLOCK_FIELDS)
    return {"id": ids.of("block", block.id), **fields, **without_none(**{EGRESS: egress})}


def _thread(tx: Transaction, context: CallContext, conversation: Conversation) -> list[Message]:
    return conversations.page_of_history(tx, context.scope, conversation, _ALL)


def _conversations(
    tx: Transaction, context: CallContext, ids: LocalIds, state: AgentState
) -> list[Json]:
    of_agent = ConversationFilter(state.agent.id, None, None, "created_at", None)
    exported = []
    for conversation in conversations.page(tx, context.scope, _ALL, of_agent):
        is_default = conversation.id == state.conversation.id
        if is_default or conversation.user_id is not None or conversation.deleted_at is not None:
            continue
        thread = _thread(tx, context, conversation)
        exported.append(
            {
                **_pick_fields(vars_of(conversation), CONVERSATION_FIELDS),
                "in_context_message_ids": [ids.of("message", id) for id in conversation.window],
                "messages": [_whole_message(ids, message) for message in thread],
            }
        )
    return exported


def _archives(
    tx: Transaction, context: CallContext, ids: LocalIds, state: AgentState
) -> list[Json]:
    exported = []
    for archive in state.archives:
        stored_passages = archives.page_of_passages(
            tx, [archive.id], _ALL, search_text=None, scope=context.scope
        )
        passages = [
            _pick_fields(vars_of(passage), PASSAGE_FIELDS)
            for passage in stored_passages
            if passage.user_id is None
        ]
        fields = _pick_fields(vars_of(archive), ARCHIVE_FIELDS)
        exported.append({"id": ids.of("archive", archive.id), **fields, "passages": passages})
    return exported


def _folders(
    tx: Transaction, context: CallContext, ids: LocalIds, folders: Sequence[Folder]
) -> tuple[list[Json], list[Json]]:
    sources = [
        {
            "id": ids.of("source", folder.id),
            **_pick_fields(vars_of(folder), FOLDER_FIELDS),
            **without_none(**{EGRESS: folder.egress}),
        }
        for folder in folders
    ]
    folder_ids = [folder.id for folder in folders]
    if folders:
        stored_files = files.page_of_files(tx, context.scope, folder_ids, _ALL)
    else:
        stored_files = []
    text_files = [
        {
            "id": ids.of("file", file.id),
            "source_id": ids.of("source", file.folder_id),
            "file_name": file.name,
            "original_file_name": file.original_name,
            "file_path": None,
            "file_type": file.type,
            "file_size": file.size,
            "processing_status": file.status,
            "content": files.text_of(tx, file.id) if file.status == "completed" else None,
        }
        for file in stored_files
    ]
    return sources, text_files


def vars_of(record: object) -> Json:
    """Return the fields of a record with slots."""
    return {name: getattr(record, name) for name in type(record).__slots__}  # type: ignore[attr-defined]


def _pick_fields(fields: Json, names: Iterable[str]) -> Json:
    return {
        name: list(fields[name]) if isinstance(fields[name], tuple) else fields[name]
        for name in names
    }
