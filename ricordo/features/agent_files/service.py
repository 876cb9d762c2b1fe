"""An agent from a file: made whole in one transaction, or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from ricordo.agents.lifecycle import AgentSpec, insert_agent
from ricordo.api.agents import spec_of
from ricordo.api.call import RequestContext
from ricordo.api.models.agents import AgentRequest
from ricordo.api.models.base import Json
from ricordo.domain.agent import AgentState, Conversation
from ricordo.domain.ids import new_id, unique
from ricordo.domain.message import Message
from ricordo.domain.model import ModelInfo, ToolSchema
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.tool import Tool
from ricordo.errors import Conflict, Forbidden, Invalid
from ricordo.features.agent_files import content as parts
from ricordo.features.agent_files import export
from ricordo.features.agent_files import messages as formats
from ricordo.features.agent_files.groups import insert_groups
from ricordo.features.agent_files.memory import ImportedMemory
from ricordo.features.agent_files.mending import mend
from ricordo.features.agent_files.own_part import read_own_part
from ricordo.features.agent_files.tolerance import ImportNotes
from ricordo.features.custom_tools import service as custom_tools
from ricordo.features.custom_tools.models import ToolCreateRequest
from ricordo.features.files import queries as files
from ricordo.features.files import service as folders
from ricordo.features.files.records import Folder
from ricordo.features.files.texts import PARSED
from ricordo.features.schedules import service as schedules
from ricordo.features.schedules.models import OneTime, Recurring, ScheduleRequest
from ricordo.runtime import Runtime
from ricordo.search.index import insert_archive, insert_messages, insert_passages
from ricordo.storage import archives, blocks, conversations, messages, tools
from ricordo.storage.engine.store import Transaction

_LONGEST_NAME = 256
# What of an agent's own fields is brought in otherwise, or belongs to the server it came from.
_LEFT_OUT = ("embedding_config", "embedding")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How a file is taken in. `model` and `embedding` are handles in place of the file's; `secrets` are values by name."""

    name: str | None = None
    suffix: str = "_copy"
    overrides_tools: bool = True
    strips_messages: bool = False
    model: str | None = None
    embedding: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    takes_schedules: bool = False


@dataclass
class MadeIds:
    """What was made of the file so far: ids of this server by local ones."""

    ids: dict[str, str] = field(default_factory=dict)

    def known(self, local: list[Any]) -> list[str]:
        return [self.ids[one] for one in local if one in self.ids]


@dataclass(frozen=True, slots=True)
class AgentImport:
    """A file that was read; `specs` are its agents as they are to be made, in the file's order, each with what more there is."""

    content: Json
    specs: list[AgentSpec]
    tools: list[tuple[str, ToolCreateRequest, ToolSchema]]
    more: list[tuple[parts.FileAgent, ImportedMemory | None]]
    notes: ImportNotes


def read(
    runtime: Runtime, content: Any, options: ImportOptions, notes: ImportNotes | None = None
) -> AgentImport:
    """Check the whole file before anything is stored; mend or leave out what does not fit. Raises Invalid for no agent file."""
    notes = notes or ImportNotes()
    file = mend(content, notes)
    content = file.content
    own = read_own_part(content, file.labels, notes)
    # A name is for the agent that the file is of, which comes first.
    named = [options, *(replace(options, name=None) for _ in content["agents"][1:])]
    specs = [
        read_spec(runtime, one, content, each)
        for one, each in zip(content["agents"], named, strict=True)
    ]
    pairs = [(one, own.get(one["id"], parts.FileAgent())) for one in content["agents"]]
    more = [(each, _memory(runtime, one, content, each.memory, notes)) for one, each in pairs]
    kept = [{**each.unread, **notes.unread} for _, each in pairs]
    specs = [
        replace(spec, settings={**spec.settings, export.UNREAD: unread}) if unread else spec
        for spec, unread in zip(specs, kept, strict=True)
    ]
    return AgentImport(content, specs, file.tools, more, notes)


def _memory(
    runtime: Runtime, agent: Json, content: Json, sent: parts.FileMemory | None, notes: ImportNotes
) -> ImportedMemory | None:
    if sent is None or not (sent.versions or sent.detached_block_ids or sent.proposals):
        return None
    labels = {one["id"]: one["label"] for one in content["blocks"]}
    taken = {labels[id] for id in agent["block_ids"]}
    detached = []
    for id in sent.detached_block_ids:
        if labels.get(id) is None or labels[id] in taken:
            notes.add(
                f'Blocks: "{labels.get(id, id)[:80]}", which is in no prompt, is left out: it is missing, or there twice.'
            )
            continue
        taken.add(labels[id])
        detached.append(id)
    spec = read_spec(runtime, {**agent, "block_ids": detached}, content, ImportOptions())
    return ImportedMemory(sent, spec.blocks, notes).replay()


def read_spec(runtime: Runtime, agent: Json, content: Json, options: ImportOptions) -> AgentSpec:
    """Return the agent that a file tells of, with its blocks. Raises ValidationError, Invalid."""
    blocks = {one["id"]: one for one in content.get("blocks") or ()}
    given = {
        name: agent[name]
        for name in export.AGENT_FIELDS
        if agent.get(name) is not None and name not in _LEFT_OUT
    }
    own = [blocks[id] for id in agent.get("block_ids") or () if id in blocks]
    made = [
        {name: one[name] for name in export.BLOCK_FIELDS if one.get(name) is not None}
        for one in own
    ]
    given["memory_blocks"] = [{"value": "", **one} for one in made]
    given |= {"model": options.model} if options.model else {}
    given |= {"embedding": options.embedding} if options.embedding else {}
    names = [*(agent.get("secrets") or ()), *(agent.get("tool_exec_environment_variables") or ())]
    given["secrets"] = {**dict.fromkeys(names, ""), **options.secrets}
    own_name = str(agent["name"])[: _LONGEST_NAME - len(options.suffix)]
    name = options.name or f"{own_name}{options.suffix}"
    body = AgentRequest.model_validate(given | {"name": name, "include_base_tools": False})
    body.refuse_unsupported()
    managers = {
        (one.get("manager_config") or {}).get("manager_agent_id")
        for one in content.get("groups") or ()
    }
    has_sleeptime = agent.get("enable_sleeptime") is True and agent.get("id") not in managers
    # The rules of the file are all that it had: those of its base tools are among them.
    return replace(
        spec_of(runtime, body), has_base_rules=False, beginning=(), has_sleeptime=has_sleeptime
    )


def insert(
    tx: Transaction,
    context: RequestContext,
    file: AgentImport,
    options: ImportOptions,
    infos: list[ModelInfo],
) -> list[str]:
    """Store all of the file; returns the ids of its agents. Raises Conflict, Forbidden, Invalid."""
    made = insert_shared(tx, context, file, overrides=options.overrides_tools)
    made.ids |= {one["id"]: new_id("group") for one in file.content["groups"]}
    labels = {one["id"]: one["label"] for one in file.content["blocks"]}
    ids = []
    for agent, spec, info, (more, memory) in zip(
        file.content["agents"], file.specs, infos, file.more, strict=True
    ):
        linked = _linked(tx, context, agent, spec, made, file.notes)
        linked = memory.insert(tx, context, linked) if memory else linked
        linked = replace(
            linked, block_ids=(*linked.block_ids, *made.known(agent["shared_block_ids"]))
        )
        state = insert_agent(tx, context.runtime, context.scope, linked, info)
        ids.append(state.agent.id)
        attached = {block.label: block.id for block in blocks.attached(tx, state.agent.id)}
        made.ids |= {
            id: attached[labels[id]] for id in agent["block_ids"] if labels[id] in attached
        }
        made.ids[agent["id"]] = state.agent.id
        _insert_archives(tx, context, state, more.archives, made)
        if not options.strips_messages:
            listed = agent["in_context_message_ids"]
            _fill(tx, state.conversation, more.messages, agent["messages"], listed, made)
            for one in more.conversations:
                _insert_conversation(tx, context, state, one, made)
        if options.takes_schedules:
            _insert_schedules(tx, context, state.agent.id, more.schedules, file.notes)
    insert_groups(tx, context.scope, file.content, made.ids, file.notes)
    return ids


def insert_shared(
    tx: Transaction, context: RequestContext, file: AgentImport, *, overrides: bool
) -> MadeIds:
    """Store the tools and folders of the file. Raises Conflict, Forbidden, Invalid."""
    made = MadeIds()
    _insert_tools(tx, context, file, made, overrides=overrides)
    _insert_folders(tx, context, file.content, made)
    return made


def _linked(
    tx: Transaction,
    context: RequestContext,
    agent: Json,
    spec: AgentSpec,
    made: MadeIds,
    notes: ImportNotes,
) -> AgentSpec:
    """The spec with the tools and folders that were made, or are here already; rules of tools that are not here are left out."""
    named = tools.by_names(tx, context.scope, agent["tool_names"])
    tool_ids = tuple(
        unique([*made.known(agent["tool_ids"]), *(tool.id for tool in named.values())])
    )
    there = {tool.name for tool in tools.by_ids(tx, context.scope, list(tool_ids))}
    rules = tuple(rule for rule in spec.tool_rules if rule.tool_name in there)
    for name in sorted({rule.tool_name for rule in spec.tool_rules} - there):
        notes.add(f"Agent: its rules about {name[:80]} are left out, since it has no such tool.")
    folder_ids = (*spec.folder_ids, *made.known(agent["folder_ids"]))
    return replace(spec, tool_ids=tool_ids, folder_ids=folder_ids, tool_rules=rules)


def _insert_tools(
    tx: Transaction, context: RequestContext, file: AgentImport, made: MadeIds, *, overrides: bool
) -> None:
    listed = {one["id"]: one for one in file.content["tools"]}
    names = [
        *(str(one["name"]) for one in listed.values()),
        *(schema.name for _, _, schema in file.tools),
    ]
    stored = tools.by_names(tx, context.scope, unique(names))
    for id, request, schema in file.tools:
        found: Tool | None = stored.get(schema.name)
        if found is None or (
            overrides and found.tool_type == "custom" and found.source_code != request.source_code
        ):
            if not context.scope.may("tools:write"):
                raise Forbidden(
                    f"The file brings the tool {schema.name}, and your key lacks the scope tools:write."
                )
            found = stored[schema.name] = custom_tools.upsert(tx, context.scope, request, schema)
        elif found.source_code != request.source_code:
            file.notes.add(
                f"Tools: the source of {schema.name} is left out: another tool of this name is here, and is used."
            )
        made.ids[id] = found.id
    for id, one in listed.items():
        # Built-in tools, and those of MCP servers, are linked where this server has them.
        if id in made.ids:
            continue
        if found := stored.get(str(one["name"])):
            made.ids[id] = found.id
        elif one.get("tool_type") not in (None, "custom"):
            file.notes.add(
                f"Tools: {one['name']} is left out, since this server has no tool of this name."
            )


def _insert_folders(tx: Transaction, context: RequestContext, content: Json, made: MadeIds) -> None:
    for one in content["sources"]:
        fields = {name: one.get(name) for name in export.FOLDER_FIELDS}
        name = free_folder_name(tx, context, str(fields["name"]))
        folder = Folder(
            **fields | {"name": name, "metadata": fields["metadata"] or {}},
            id="",
            archive_id="",
            organization_id=context.scope.organization_id,
            user_id=context.scope.subject,
        )
        made.ids[one["id"]] = folders.create_folder(tx, context.scope, folder).id
    for one in content["files"]:
        if one.get("content"):
            name = one["file_name"]
            is_text = PurePosixPath(name).suffix.lower() not in PARSED
            upload = folders.Upload(
                name if is_text else f"{name}.txt", str(one["content"]).encode()
            )
            folders.add_file(tx, context.scope, made.ids[one["source_id"]], upload)


def free_folder_name(tx: Transaction, context: RequestContext, name: str) -> str:
    taken, number = name, 1
    while files.find_folder(tx, context.scope.organization_id, taken, context.scope.subject):
        number += 1
        taken = f"{name} ({number})"
    return taken


def _insert_archives(
    tx: Transaction,
    context: RequestContext,
    state: AgentState,
    listed: list[parts.FileArchive],
    made: MadeIds,
) -> None:
    now, by = tx.clock.now(), context.scope.user_id
    for one in listed:
        if one.id not in made.ids:
            fields = {name: getattr(one, name) for name in export.ARCHIVE_FIELDS} | {
                "embedding": state.agent.embedding
            }
            fields |= {"created_at": now, "updated_at": now, "created_by": by}
            archive = Archive(new_id("archive"), context.scope.organization_id, **fields)
            insert_archive(tx, archive)
            made.ids[one.id] = archive.id
            passages = []
            for item in one.passages:
                fields = {name: getattr(item, name) for name in export.PASSAGE_FIELDS} | {
                    "tags": tuple(item.tags)
                }
                fields |= {"user_id": context.scope.subject, "created_by": by, "updated_at": now}
                passages.append(
                    Passage(new_id("passage"), archive.organization_id, archive.id, **fields)
                )
            insert_passages(tx, archive, archives.redacted(passages))
        archives.attach(tx, state.agent.id, made.ids[one.id])


def _insert_conversation(
    tx: Transaction,
    context: RequestContext,
    state: AgentState,
    one: parts.FileConversation,
    made: MadeIds,
) -> None:
    fields = {name: getattr(one, name) for name in export.CONVERSATION_FIELDS}
    fields |= dict.fromkeys(("created_at", "updated_at"), tx.clock.now())
    fields |= {"user_id": context.scope.subject, "created_by": context.scope.user_id}
    conversation = Conversation(
        new_id("conv"), state.agent.organization_id, state.agent.id, **fields
    )
    conversations.insert_one(tx, conversation)
    _fill(tx, conversation, one.messages, [], one.in_context_message_ids, made)


def _insert_schedules(
    tx: Transaction,
    context: RequestContext,
    agent_id: str,
    listed: list[ScheduleRequest],
    notes: ImportNotes,
) -> None:
    """Store the schedules that are still to come. Raises Forbidden."""
    if listed and not context.scope.may("messages:write"):
        raise Forbidden("The file brings schedules, and your key lacks the scope messages:write.")
    for one in listed:
        is_past = (
            isinstance(one.schedule, OneTime) and one.schedule.scheduled_at * 1000 <= tx.clock.now()
        )
        if is_past:
            notes.add("Schedules: one whose time has passed is left out.")
            continue
        # Where results are sent is a matter of the server that the file came from.
        changes: Json = {"callback_url": None}
        if isinstance(one.schedule, Recurring) and one.schedule.timezone is None:
            # Files of older versions name no time zone: their times are in UTC.
            zone = None if "TZ=" in one.schedule.cron_expression else "UTC"
            changes["schedule"] = one.schedule.model_copy(update={"timezone": zone})
        try:
            schedules.create(tx, context.scope, agent_id, one.model_copy(update=changes))
        except (Invalid, Conflict) as error:
            notes.add(f"Schedules: one is left out. {error}")


def _fill(
    tx: Transaction,
    conversation: Conversation,
    whole: list[parts.FileMessage] | None,
    plain: list[Json],
    listed: list[str],
    made: MadeIds,
) -> None:
    """Put the messages into the conversation, and those that are listed into its window, behind its own system message."""
    home = formats.Home(
        conversation.agent_id, conversation.id, conversation.organization_id, conversation.user_id
    )
    now = tx.clock.now()
    sent = [one["id"] for one in plain] if whole is None else [one.id for one in whole]
    ids = {id: new_id("message") for id in sent}
    found = (
        [formats.from_af(one, ids[one["id"]], home, now) for one in plain]
        if whole is None
        else [formats.from_whole(one, ids[one.id], home) for one in whole]
    )
    found = [
        replace(one, group_id=made.ids.get(one.group_id)) if one.group_id else one for one in found
    ]
    own = conversation.window[:1]
    # A conversation that has a system message of its own keeps it: the other tells of the agent that the file was made of.
    first = next((one.id for one in found if one.role == "system"), None) if own else None
    said: list[Message] = [one for one in found if one.id != first]
    insert_messages(tx, said)
    if own and said:
        system, oldest = messages.by_ids(tx, own)[0], min(one.created_at for one in said)
        messages.rewrite(tx, replace(system, created_at=min(system.created_at, oldest - 1)))
    window = [*own, *(ids[one] for one in listed if one in ids and ids[one] != first)]
    if said:
        conversations.save_window(tx, conversation.id, window, "", added=len(said))
