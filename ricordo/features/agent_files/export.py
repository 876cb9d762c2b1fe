"""An agent as a file: first what other servers read (`.af` of the retired Letta V1 server 0.16.8), then all of it under `ricordo`.

Ids are local to the file. What belongs to one user (conversations, passages, blocks, folders) is not in it, since a file is passed
on; the thread that it holds is the caller's own. Secrets are there by name alone.
"""

from collections.abc import Iterable, Sequence

from ricordo.api.call import RequestContext, agent_json
from ricordo.api.models.base import Json, stamp
from ricordo.api.models.memory import BlockResponse
from ricordo.api.models.tools import ToolResponse
from ricordo.domain.agent import AgentState, Conversation
from ricordo.domain.block import Block
from ricordo.domain.message import Message
from ricordo.features.agent_files import messages as formats
from ricordo.features.agent_files.content import VERSION
from ricordo.features.agent_files.groups import group_json
from ricordo.features.agent_files.local_ids import LocalIds
from ricordo.features.agent_files.memory import detached_blocks, memory_json, own_blocks
from ricordo.features.files import queries as files
from ricordo.features.files.records import Folder
from ricordo.features.groups import queries as groups
from ricordo.features.groups.records import ASLEEP
from ricordo.features.schedules import queries as schedules
from ricordo.storage import agents, archives, conversations
from ricordo.storage.conversations import ConversationFilter
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_ALL = Page(limit=1_000_000, order="asc")
# Of an agent's answer: what makes it again. The names are those of a request for a new agent.
AGENT_FIELDS = (
    *(
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
    ),
    *(
        "model_settings",
        "llm_config",
        "embedding",
        "embedding_config",
        "compaction_settings",
        "response_format",
    ),
    *(
        "message_buffer_autoclear",
        "max_files_open",
        "per_file_view_window_char_limit",
        "user_block_policy",
        "model_profile",
    ),
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
)
ARCHIVE_FIELDS = ("name", "description", "metadata")
PASSAGE_FIELDS = ("text", "tags", "metadata", "is_untrusted", "created_at")
# Of an agent's settings: fields of the file it came from that are unknown here, by their place.
UNREAD = "unread"
FOLDER_FIELDS = ("name", "description", "instructions", "metadata")


def export(
    tx: Transaction,
    context: RequestContext,
    agent_id: str,
    conversation_id: str | None,
    *,
    scrubs: bool,
) -> Json:
    """Return the file, with the group that the agent manages and its members. Raises NotFound.

    Its thread is this conversation (None: the caller's own), or with `scrubs` none.
    """
    ids = LocalIds()
    agents.require(tx, context.scope, agent_id)
    group = groups.of_manager(tx, context.scope.organization_id, agent_id)
    if group:
        groups.get(tx, context.scope, group.id)  # whoever may not use a member gets no file with it
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
    """Add another agent's file to one; what both have comes once."""
    for name in ("agents", "blocks", "files", "sources", "tools"):
        known = {one["id"] for one in file[name]}
        file[name] += [one for one in other[name] if one["id"] not in known]
    file["ricordo"]["agents"] |= other["ricordo"]["agents"]


def _agent_file(
    tx: Transaction,
    context: RequestContext,
    ids: LocalIds,
    agent_id: str,
    conversation_id: str | None,
    *,
    scrubs: bool,
) -> Json:
    """Return one agent as a file. Of a block that an earlier agent of these ids has, only the link is in it."""
    state = context.runtime.complete(tx, agents.load_whole(tx, context.scope, agent_id))
    if conversation_id:
        state = agents.load(tx, context.scope, agent_id, conversation_id)
    thread = [] if scrubs else _thread(tx, context, state.conversation)
    window = [] if scrubs else list(state.conversation.window)
    in_window = {id: message for id in window for message in thread if message.id == id}
    folders = [
        one for one in files.folders_of_agent(tx, context.scope, agent_id) if one.user_id is None
    ]
    sources, texts = _folders(tx, context, ids, folders)
    attached = own_blocks(tx, context.scope, agent_id)
    own = [block for block in attached if not ids.knows("block", block.id)]
    detached = [
        block
        for block in detached_blocks(tx, context.scope, agent_id, attached)
        if not ids.knows("block", block.id)
    ]
    file = outline(context, ids, state, attached, detached)
    agent = file["agents"][0]
    local = agent["id"]
    agent |= {
        "in_context_message_ids": [ids.of("message", id) for id in window if id in in_window],
        "messages": [
            _in_file(ids, formats.to_af(one, ids.of("message", one.id), local))
            for one in in_window.values()
        ],
        "source_ids": [one["id"] for one in sources],
        "folder_ids": [one["id"] for one in sources],
    }
    due = [] if scrubs else schedules.page(tx, context.scope, _ALL, agent_id)
    due = [one for one in due if one.user_id is None and one.next_at]
    whole: Json = {
        "messages": [_whole(ids, one) for one in thread],
        "archives": _archives(tx, context, ids, state),
        "conversations": [] if scrubs else _conversations(tx, context, ids, state),
        "memory": memory_json(tx, context.scope, agent_id, own, detached),
        "schedules": [
            {**one.message, "schedule": one.schedule, "callback_url": None} for one in due
        ],
    }
    if unread := state.agent.settings.get(UNREAD):
        whole["unread"] = unread
    whole["memory"]["detached_block_ids"] = [ids.of("block", one.id) for one in detached]
    return file | {
        "files": texts,
        "sources": sources,
        "ricordo": {"version": VERSION, "agents": {local: whole}},
    }


def _whole(ids: LocalIds, message: Message) -> Json:
    return _in_file(ids, formats.whole(message, ids.of("message", message.id)))


def _in_file(ids: LocalIds, message: Json) -> Json:
    """Return a message with the file's own id of the group that it was said in."""
    return (
        {**message, "group_id": ids.of("group", message["group_id"])}
        if message.get("group_id")
        else message
    )


def outline(
    context: RequestContext,
    ids: LocalIds,
    state: AgentState,
    blocks: Sequence[Block],
    detached: Sequence[Block] = (),
) -> Json:
    """Return the agent's settings, prompt and tools, with these blocks of its own, as a file."""
    shown = agent_json(context, state)
    agent = {
        **{name: shown.get(name) for name in AGENT_FIELDS},
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
        "blocks": [_block(ids, one) for one in (*blocks, *detached)],
        "files": [],
        "sources": [],
        "tools": [
            {"id": ids.of("tool", one.id), **_picked(ToolResponse.of(one), TOOL_FIELDS)}
            for one in state.tools
        ],
        "mcp_servers": [],
        "skills": [],
        "metadata": {"revision_id": "ricordo"},
    }


def _block(ids: LocalIds, block: Block) -> Json:
    return {"id": ids.of("block", block.id), **_picked(BlockResponse.of(block), BLOCK_FIELDS)}


def _thread(tx: Transaction, context: RequestContext, conversation: Conversation) -> list[Message]:
    return conversations.page_of_history(tx, context.scope, conversation, _ALL)


def _conversations(
    tx: Transaction, context: RequestContext, ids: LocalIds, state: AgentState
) -> list[Json]:
    which = ConversationFilter(state.agent.id, None, None, "created_at", None)
    found = [
        one
        for one in conversations.page(tx, context.scope, _ALL, which)
        if one.user_id is None and one.id != state.conversation.id and one.deleted_at is None
    ]
    made = []
    for one in found:
        said = _thread(tx, context, one)
        made.append(
            {
                **_picked(vars_of(one), CONVERSATION_FIELDS),
                "in_context_message_ids": [ids.of("message", id) for id in one.window],
                "messages": [_whole(ids, message) for message in said],
            }
        )
    return made


def _archives(
    tx: Transaction, context: RequestContext, ids: LocalIds, state: AgentState
) -> list[Json]:
    made = []
    for archive in state.archives:
        found = archives.page_of_passages(
            tx, [archive.id], _ALL, search_text=None, scope=context.scope
        )
        passages = [_picked(vars_of(one), PASSAGE_FIELDS) for one in found if one.user_id is None]
        fields = _picked(vars_of(archive), ARCHIVE_FIELDS)
        made.append({"id": ids.of("archive", archive.id), **fields, "passages": passages})
    return made


def _folders(
    tx: Transaction, context: RequestContext, ids: LocalIds, folders: Sequence[Folder]
) -> tuple[list[Json], list[Json]]:
    sources = [
        {"id": ids.of("source", one.id), **_picked(vars_of(one), FOLDER_FIELDS)} for one in folders
    ]
    texts = [
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
        for file in (
            files.page_of_files(tx, context.scope, [one.id for one in folders], _ALL)
            if folders
            else ()
        )
    ]
    return sources, texts


def vars_of(item: object) -> Json:
    return {name: getattr(item, name) for name in type(item).__slots__}  # type: ignore[attr-defined]


def _picked(item: Json, names: Iterable[str]) -> Json:
    return {
        name: list(item[name]) if isinstance(item[name], tuple) else item[name] for name in names
    }
