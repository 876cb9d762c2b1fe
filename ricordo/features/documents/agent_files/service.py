"""Import agent files: all of a file in one transaction, or nothing."""

from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from ricordo.agents.call_context import CallContext
from ricordo.agents.lifecycle import AgentSpec, insert_agent
from ricordo.domain.agent import AgentState, Conversation
from ricordo.domain.ids import new_id, unique
from ricordo.domain.message import Message
from ricordo.domain.model import ModelInfo, ToolSchema
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.text import Json
from ricordo.domain.tool import Tool
from ricordo.errors import Conflict, Forbidden, Invalid
from ricordo.features.automation.schedules import service as schedules
from ricordo.features.automation.schedules.models import OneTime, Recurring, ScheduleRequest
from ricordo.features.custom_tools.source import service as custom_tools
from ricordo.features.custom_tools.source.models import ToolCreateRequest
from ricordo.features.documents.agent_files import content as parts
from ricordo.features.documents.agent_files import export
from ricordo.features.documents.agent_files import messages as formats
from ricordo.features.documents.agent_files.groups import insert_groups
from ricordo.features.documents.agent_files.memory import ImportedMemory
from ricordo.features.documents.agent_files.mending import mend
from ricordo.features.documents.agent_files.own_part import read_own_part
from ricordo.features.documents.agent_files.specs import ImportOptions, read_spec
from ricordo.features.documents.agent_files.tolerance import ImportNotes
from ricordo.features.files.folders import queries as files
from ricordo.features.files.folders import service as folders
from ricordo.features.files.folders.records import Folder
from ricordo.features.files.folders.texts import PARSED
from ricordo.runtime import Runtime
from ricordo.search.index import insert_archive, insert_messages, insert_passages
from ricordo.storage import archives, blocks, conversations, egress, messages, tools
from ricordo.storage.engine.store import Transaction


@dataclass
class ImportedIds:
    """Ids on this server by the file's local ids.

    They are added as parts are stored.
    """

    ids: dict[str, str] = field(default_factory=dict)

    def translate(self, local_ids: list[Any]) -> list[str]:
        """Return the new ids for those local ids whose objects are stored."""
        return [self.ids[id] for id in local_ids if id in self.ids]


@dataclass(frozen=True, slots=True)
class AgentImport:
    """A file that was read and checked.

    `specs` are the agents to create, in the file's order. `own_parts` are the agents' parts from
    `ricordo`, each with its replayed memory. `notes` are about the reading of the file, and
    `insert_notes` about the last run of `insert` or `insert_shared`.
    """

    content: Json
    specs: list[AgentSpec]
    tools: list[tuple[str, ToolCreateRequest, ToolSchema]]
    own_parts: list[tuple[parts.FileAgent, ImportedMemory | None]]
    notes: ImportNotes
    insert_notes: ImportNotes = field(default_factory=ImportNotes)

    def note_lines(self) -> list[str]:
        """Return the sentences of all notes."""
        return self.notes.merged(self.insert_notes).lines()


def read(
    runtime: Runtime, content: Any, options: ImportOptions, notes: ImportNotes | None = None
) -> AgentImport:
    """Check and mend the whole file before anything is stored.

    Args:
        runtime: The server's parts.
        content: The decoded JSON of the file.
        options: The options of the import. Its `name` is only for the first agent that can be
            read; an export writes the chosen agent first.
        notes: Gets notes on the changes; None makes new ones, which the result has.

    Raises:
        Invalid: It is not an agent file, or an agent in it cannot be created.
        ValidationError: An option, such as the name, cannot be used.
    """
    notes = notes or ImportNotes()
    file = mend(content, notes)
    content = file.content
    parts_by_id = read_own_part(content, file.labels, notes)
    # An export writes its agent first; the name in the options is only for the first agent.
    specs = [
        read_spec(runtime, agent, content, replace(options, name=None) if index else options)
        for index, agent in enumerate(content["agents"])
    ]
    own_parts = []
    for agent in content["agents"]:
        part = parts_by_id.get(agent["id"], parts.FileAgent())
        own_parts.append((part, _memory(runtime, agent, content, part.memory, notes)))
    for index, (part, _) in enumerate(own_parts):
        if unread := {**part.unread, **notes.unread}:
            settings = {**specs[index].settings, export.UNREAD: unread}
            specs[index] = replace(specs[index], settings=settings)
    return AgentImport(content, specs, file.tools, own_parts, notes)


def _memory(
    runtime: Runtime,
    agent: Json,
    content: Json,
    memory: parts.FileMemory | None,
    notes: ImportNotes,
) -> ImportedMemory | None:
    if memory is None or not (memory.versions or memory.detached_block_ids or memory.proposals):
        return None
    labels = {block["id"]: block["label"] for block in content["blocks"]}
    used_labels = {labels[id] for id in agent["block_ids"]}
    detached = []
    for id in memory.detached_block_ids:
        if labels.get(id) is None or labels[id] in used_labels:
            notes.add(
                f'Blocks: the detached "{labels.get(id, id)[:80]}" is left out: it is '
                "missing, or there twice."
            )
            continue
        used_labels.add(labels[id])
        detached.append(id)
    spec = read_spec(runtime, {**agent, "block_ids": detached}, content, ImportOptions())
    return ImportedMemory(memory, spec.blocks, notes).replay()


def insert(
    tx: Transaction,
    context: CallContext,
    file: AgentImport,
    options: ImportOptions,
    infos: list[ModelInfo],
) -> list[str]:
    """Store everything in the file, and return the ids of its agents.

    Args:
        tx: The transaction, which stores all of it.
        context: The caller's context.
        file: The file that `read` returned; its `insert_notes` are replaced.
        options: The options that `read` got.
        infos: The descriptions of the agents' models, in the file's order.

    Raises:
        Conflict: A name or a label exists already.
        Forbidden: The caller may not create tools or schedules, which the file contains.
        Invalid: A part cannot be stored, for example because it is too large.
    """
    imported = insert_shared(tx, context, file, overrides=options.overrides_tools)
    imported.ids |= {group["id"]: new_id("group") for group in file.content["groups"]}
    labels = {block["id"]: block["label"] for block in file.content["blocks"]}
    ids = []
    for agent, spec, info, (part, memory) in zip(
        file.content["agents"], file.specs, infos, file.own_parts, strict=True
    ):
        linked = _link_tools(tx, context, agent, spec, imported=imported, notes=file.insert_notes)
        if memory:
            linked = memory.insert(tx, context, linked, file.insert_notes)
        linked = replace(
            linked, block_ids=(*linked.block_ids, *imported.translate(agent["shared_block_ids"]))
        )
        state = insert_agent(tx, context.runtime, context.scope, linked, info)
        ids.append(state.agent.id)
        attached = {block.label: block.id for block in blocks.attached(tx, state.agent.id)}
        imported.ids |= {
            id: attached[labels[id]] for id in agent["block_ids"] if labels[id] in attached
        }
        imported.ids[agent["id"]] = state.agent.id
        _insert_archives(tx, context, state, part.archives, imported)
        if not options.strips_messages:
            _insert_messages(
                tx,
                state.conversation,
                part.messages,
                agent["messages"],
                window_ids=agent["in_context_message_ids"],
                imported=imported,
            )
            for conversation in part.conversations:
                _insert_conversation(tx, context, state, conversation, imported)
        if part.egress:
            egress.label_conversation(tx, state.conversation.id, None, part.egress)
        if options.takes_schedules:
            _insert_schedules(tx, context, state.agent.id, part.schedules, file.insert_notes)
    insert_groups(tx, context.scope, file.content, imported.ids, file.insert_notes)
    return ids


def insert_shared(
    tx: Transaction, context: CallContext, file: AgentImport, *, overrides: bool
) -> ImportedIds:
    """Store the tools and folders of the file.

    Args:
        tx: The transaction.
        context: The caller's context.
        file: The file that `read` returned; its `insert_notes` are replaced.
        overrides: A custom tool in the file replaces the stored one of the same name. Otherwise the
            stored one is used.

    Returns:
        The new ids of tools and folders.

    Raises:
        Forbidden: The caller may not create the file's tools.
        Invalid: A file of a folder cannot be stored.
    """
    file.insert_notes.clear()
    imported = ImportedIds()
    _insert_tools(tx, context, file, imported, overrides=overrides)
    _insert_folders(tx, context, file.content, imported)
    return imported


def _link_tools(
    tx: Transaction,
    context: CallContext,
    agent: Json,
    spec: AgentSpec,
    *,
    imported: ImportedIds,
    notes: ImportNotes,
) -> AgentSpec:
    """Return the spec with the tools and folders that this server stores.

    Rules about other tools are left out and noted.
    """
    named = tools.by_names(tx, context.scope, agent["tool_names"])
    tool_ids = tuple(
        unique([*imported.translate(agent["tool_ids"]), *(tool.id for tool in named.values())])
    )
    tool_names = {tool.name for tool in tools.by_ids(tx, context.scope, list(tool_ids))}
    rules = tuple(rule for rule in spec.tool_rules if rule.tool_name in tool_names)
    for name in sorted({rule.tool_name for rule in spec.tool_rules} - tool_names):
        notes.add(f"Agent: its rules about {name[:80]} are left out, since it has no such tool.")
    folder_ids = (*spec.folder_ids, *imported.translate(agent["folder_ids"]))
    return replace(spec, tool_ids=tool_ids, folder_ids=folder_ids, tool_rules=rules)


def _insert_tools(
    tx: Transaction,
    context: CallContext,
    file: AgentImport,
    imported: ImportedIds,
    *,
    overrides: bool,
) -> None:
    listed = {entry["id"]: entry for entry in file.content["tools"]}
    names = [
        *(str(entry["name"]) for entry in listed.values()),
        *(schema.name for _, _, schema in file.tools),
    ]
    stored = tools.by_names(tx, context.scope, unique(names))
    for id, request, schema in file.tools:
        stored_tool: Tool | None = stored.get(schema.name)
        if stored_tool is None or (
            overrides
            and stored_tool.tool_type == "custom"
            and stored_tool.source_code != request.source_code
        ):
            if not context.scope.may("tools:write"):
                raise Forbidden(
                    f"The file contains the tool {schema.name}, but your key lacks the scope "
                    "tools:write."
                )
            stored_tool = stored[schema.name] = custom_tools.upsert(
                tx, context.scope, request, schema
            )
        elif stored_tool.source_code != request.source_code:
            file.insert_notes.add(
                f"Tools: the source of {schema.name} is left out: this server has another tool of "
                "this name, which is used."
            )
        imported.ids[id] = stored_tool.id
    for id, entry in listed.items():
        # Built-in tools and tools of MCP servers are linked if this server has them.
        if id in imported.ids:
            continue
        if stored_tool := stored.get(str(entry["name"])):
            imported.ids[id] = stored_tool.id
        elif entry.get("tool_type") not in (None, "custom"):
            file.insert_notes.add(
                f"Tools: {entry['name']} is left out, since this server has no tool of this name."
            )


def _insert_folders(
    tx: Transaction, context: CallContext, content: Json, imported: ImportedIds
) -> None:
    for folder_entry in content["sources"]:
        fields = {name: folder_entry.get(name) for name in export.FOLDER_FIELDS}
        name = free_folder_name(tx, context, str(fields["name"]))
        folder = Folder(
            **fields | {"name": name, "metadata": fields["metadata"] or {}},
            id="",
            archive_id="",
            organization_id=context.scope.organization_id,
            user_id=context.scope.subject,
            egress=folder_entry[export.EGRESS],
        )
        imported.ids[folder_entry["id"]] = folders.create_folder(tx, context.scope, folder).id
    for file_entry in content["files"]:
        if file_entry.get("content"):
            name = file_entry["file_name"]
            is_text = PurePosixPath(name).suffix.lower() not in PARSED
            upload = folders.Upload(
                name if is_text else f"{name}.txt", str(file_entry["content"]).encode()
            )
            folders.add_file(tx, context.scope, imported.ids[file_entry["source_id"]], upload)


def free_folder_name(tx: Transaction, context: CallContext, name: str) -> str:
    """Return the name; if the caller has a folder of that name, add a number."""
    free_name = name
    number = 1
    while files.find_folder(tx, context.scope.organization_id, free_name, context.scope.subject):
        number += 1
        free_name = f"{name} ({number})"
    return free_name


def _insert_archives(
    tx: Transaction,
    context: CallContext,
    state: AgentState,
    file_archives: list[parts.FileArchive],
    imported: ImportedIds,
) -> None:
    for file_archive in file_archives:
        if file_archive.id not in imported.ids:
            archive = _insert_archive(tx, context, state, file_archive)
            imported.ids[file_archive.id] = archive.id
        archives.attach(tx, state.agent.id, imported.ids[file_archive.id])


def _insert_archive(
    tx: Transaction, context: CallContext, state: AgentState, file_archive: parts.FileArchive
) -> Archive:
    scope = context.scope
    now = tx.clock.now()
    archive = Archive(
        new_id("archive"),
        scope.organization_id,
        **{name: getattr(file_archive, name) for name in export.ARCHIVE_FIELDS},
        embedding=state.agent.embedding,
        created_at=now,
        updated_at=now,
        created_by=scope.user_id,
    )
    insert_archive(tx, archive)
    passages = []
    for file_passage in file_archive.passages:
        fields = {name: getattr(file_passage, name) for name in export.PASSAGE_FIELDS}
        fields |= {
            "tags": tuple(file_passage.tags),
            "user_id": scope.subject,
            "created_by": scope.user_id,
            "updated_at": now,
        }
        passages.append(Passage(new_id("passage"), scope.organization_id, archive.id, **fields))
    insert_passages(tx, archive, archives.redacted(passages))
    return archive


def _insert_conversation(
    tx: Transaction,
    context: CallContext,
    state: AgentState,
    file_conversation: parts.FileConversation,
    imported: ImportedIds,
) -> None:
    fields = {name: getattr(file_conversation, name) for name in export.CONVERSATION_FIELDS}
    fields["model_settings"] = file_conversation.model_settings.model_dump(exclude_unset=True)
    fields |= dict.fromkeys(("created_at", "updated_at"), tx.clock.now())
    fields |= {"user_id": context.scope.subject, "created_by": context.scope.user_id}
    conversation = Conversation(
        new_id("conv"), state.agent.organization_id, state.agent.id, **fields
    )
    conversations.insert_one(tx, conversation)
    _insert_messages(
        tx,
        conversation,
        file_conversation.messages,
        [],
        window_ids=file_conversation.in_context_message_ids,
        imported=imported,
    )


def _insert_schedules(
    tx: Transaction,
    context: CallContext,
    agent_id: str,
    requests: list[ScheduleRequest],
    notes: ImportNotes,
) -> None:
    """Store the schedules whose time has not passed yet. Raises Forbidden."""
    if requests and not context.scope.may("messages:write"):
        raise Forbidden("The file contains schedules, but your key lacks the scope messages:write.")
    for request in requests:
        schedule = request.schedule
        if isinstance(schedule, OneTime) and schedule.scheduled_at * 1000 <= tx.clock.now():
            notes.add("Schedules: one whose time has passed is left out.")
            continue
        # The callback belongs to the server that the file comes from.
        changes: Json = {"callback_url": None}
        if isinstance(schedule, Recurring) and schedule.timezone is None:
            # Files of older versions name no time zone; their times are in UTC.
            if "TZ=" in schedule.cron_expression:
                zone = None
            else:
                zone = "UTC"
            changes["schedule"] = schedule.model_copy(update={"timezone": zone})
        try:
            schedules.create(tx, context.scope, agent_id, request.model_copy(update=changes))
        except (Invalid, Conflict) as error:
            notes.add(f"Schedules: one is left out. {error}")


def _insert_messages(
    tx: Transaction,
    conversation: Conversation,
    whole: list[parts.FileMessage] | None,
    plain: list[Json],
    *,
    window_ids: list[str],
    imported: ImportedIds,
) -> None:
    """Store the messages in the conversation, and fill its window.

    The window gets the messages of `window_ids`, after the conversation's system message.
    """
    home = formats.Home(
        conversation.agent_id, conversation.id, conversation.organization_id, conversation.user_id
    )
    now = tx.clock.now()
    ids: dict[str, str] = {}
    read_messages: list[Message] = []
    if whole is None:
        for raw in plain:
            ids[raw["id"]] = new_id("message")
            read_messages.append(formats.from_af(raw, ids[raw["id"]], home, now))
    else:
        for file_message in whole:
            ids[file_message.id] = new_id("message")
            read_messages.append(formats.from_whole(file_message, ids[file_message.id], home))
    own_window = conversation.window[:1]
    # The conversation keeps its system message, since the one in the file describes the exported
    # agent.
    system_ids = [message.id for message in read_messages if message.role == "system"]
    if own_window and system_ids:
        skipped_id = system_ids[0]
    else:
        skipped_id = None
    new_messages = [
        replace(message, group_id=imported.ids.get(message.group_id))
        if message.group_id
        else message
        for message in read_messages
        if message.id != skipped_id
    ]
    insert_messages(tx, new_messages)
    if own_window and new_messages:
        system = messages.by_ids(tx, own_window)[0]
        oldest = min(message.created_at for message in new_messages)
        messages.rewrite(tx, replace(system, created_at=min(system.created_at, oldest - 1)))
    in_window = [ids[id] for id in window_ids if id in ids and ids[id] != skipped_id]
    if new_messages:
        window = [*own_window, *in_window]
        conversations.save_window(tx, conversation.id, window, "", added=len(new_messages))
