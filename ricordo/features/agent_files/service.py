"""An agent from a file: made whole in one transaction, or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from ricordo.agents.lifecycle import AgentSpec, insert_agent
from ricordo.api.agents import spec_of
from ricordo.api.call import RequestContext
from ricordo.api.models.agents import AgentRequest
from ricordo.api.models.base import Json
from ricordo.domain.agent import AgentState, Conversation
from ricordo.domain.ids import new_id, unique
from ricordo.domain.message import Message
from ricordo.domain.model import ModelInfo
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.tool import Tool
from ricordo.errors import Forbidden, Invalid
from ricordo.features.agent_files import content as parts
from ricordo.features.agent_files import export
from ricordo.features.agent_files import messages as formats
from ricordo.features.agent_files.memory import ImportedMemory
from ricordo.features.custom_tools import service as custom_tools
from ricordo.features.custom_tools.models import ToolCreateRequest
from ricordo.features.files import queries as files
from ricordo.features.files import service as folders
from ricordo.features.files.records import Folder
from ricordo.features.files.texts import PARSED
from ricordo.features.schedules import service as schedules
from ricordo.features.schedules.models import OneTime, ScheduleRequest
from ricordo.runtime import Runtime
from ricordo.search.index import insert_archive, insert_messages, insert_passages
from ricordo.storage import archives, conversations, messages, tools
from ricordo.storage.engine.store import Transaction

_UNREADABLE = "This is no agent file: {}. An agent file is the JSON that GET /v1/agents/{{agent_id}}/export answers."
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
    tools: list[tuple[str, ToolCreateRequest]]
    more: list[tuple[parts.FileAgent, ImportedMemory | None]]


def read(runtime: Runtime, content: Any, options: ImportOptions) -> AgentImport:
    """Check the whole file before anything is stored. Raises Invalid."""
    if not isinstance(content, dict) or not isinstance(content.get("agents"), list):
        raise Invalid(_UNREADABLE.format("it has no list of agents"))
    extra = content.get("ricordo")
    if extra is not None and (not isinstance(extra, dict) or extra.get("version") != parts.VERSION):
        raise Invalid(f"This agent file is of another version of Ricordo; this one reads version {parts.VERSION}.")
    if not content["agents"]:
        raise Invalid(_UNREADABLE.format("its list of agents is empty"))
    try:
        specs = [read_spec(runtime, one, content, options) for one in content["agents"]]
        sources = [
            (one["id"], read_tool(one))
            for one in content.get("tools") or ()
            if one.get("tool_type") == "custom" and one.get("source_code")
        ]
        known = parts.FileContent.model_validate(extra or {"version": parts.VERSION}).agents
        pairs = [(one, known.get(one["id"], parts.FileAgent())) for one in content["agents"]]
        more = [(each, _memory(runtime, one, content, each.memory)) for one, each in pairs]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Invalid(_UNREADABLE.format(f"{where}: {first['msg']}")) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise Invalid(_UNREADABLE.format(f"{type(error).__name__}: {error}")) from error
    return AgentImport(content, specs, sources, more)


def _memory(runtime: Runtime, agent: Json, content: Json, sent: parts.FileMemory | None) -> ImportedMemory | None:
    if sent is None or not (sent.versions or sent.detached_block_ids or sent.proposals):
        return None
    detached = read_spec(runtime, {**agent, "block_ids": sent.detached_block_ids}, content, ImportOptions())
    return ImportedMemory(sent, detached.blocks).replay()


def read_tool(tool: Mapping[str, Any]) -> ToolCreateRequest:
    """Return the custom tool that a file tells of. Raises ValidationError."""
    given = {name: tool[name] for name in ToolCreateRequest.model_fields if tool.get(name)}
    return ToolCreateRequest.model_validate(given)


def read_spec(runtime: Runtime, agent: Json, content: Json, options: ImportOptions) -> AgentSpec:
    """Return the agent that a file tells of, with its blocks. Raises ValidationError, Invalid."""
    blocks = {one["id"]: one for one in content.get("blocks") or ()}
    given = {name: agent[name] for name in export.AGENT_FIELDS if agent.get(name) is not None and name not in _LEFT_OUT}
    own = [blocks[id] for id in agent.get("block_ids") or () if id in blocks]
    made = [{name: one[name] for name in export.BLOCK_FIELDS if one.get(name) is not None} for one in own]
    given["memory_blocks"] = [{"value": "", **one} for one in made]
    given |= {"model": options.model} if options.model else {}
    given |= {"embedding": options.embedding} if options.embedding else {}
    names = [*(agent.get("secrets") or ()), *(agent.get("tool_exec_environment_variables") or ())]
    given["secrets"] = {**dict.fromkeys(names, ""), **options.secrets}
    body = AgentRequest.model_validate(
        given | {"name": options.name or f"{agent['name']}{options.suffix}", "include_base_tools": False}
    )
    body.refuse_unsupported()
    # The rules of the file are all that it had: those of its base tools are among them.
    return replace(spec_of(runtime, body), has_base_rules=False, beginning=())


def insert(
    tx: Transaction, here: RequestContext, file: AgentImport, options: ImportOptions, infos: list[ModelInfo]
) -> list[str]:
    """Store all of the file; returns the ids of its agents. Raises Conflict, Forbidden, Invalid."""
    made = insert_shared(tx, here, file, overrides=options.overrides_tools)
    ids = []
    for agent, spec, info, (more, memory) in zip(file.content["agents"], file.specs, infos, file.more, strict=True):
        linked = _linked(tx, here, agent, spec, made)
        linked = memory.insert(tx, here, linked) if memory else linked
        state = insert_agent(tx, here.runtime, here.scope, linked, info)
        ids.append(state.agent.id)
        _insert_archives(tx, here, state, more.archives, made)
        if not options.strips_messages:
            listed = agent.get("in_context_message_ids") or []
            _fill(tx, state.conversation, more.messages, agent.get("messages") or [], listed)
            for one in more.conversations:
                _insert_conversation(tx, here, state, one)
        if options.takes_schedules:
            _insert_schedules(tx, here, state.agent.id, more.schedules)
    return ids


def insert_shared(tx: Transaction, here: RequestContext, file: AgentImport, *, overrides: bool) -> MadeIds:
    """Store the tools and folders of the file. Raises Conflict, Forbidden, Invalid."""
    made = MadeIds()
    _insert_tools(tx, here, file, made, overrides=overrides)
    _insert_folders(tx, here, file.content, made)
    return made


def _linked(tx: Transaction, here: RequestContext, agent: Json, spec: AgentSpec, made: MadeIds) -> AgentSpec:
    """The spec with the tools and folders that were made, or are here already; rules of tools that are not here are left out."""
    tool_ids = tuple(unique(made.known(agent.get("tool_ids") or [])))
    there = {tool.name for tool in tools.by_ids(tx, here.scope, list(tool_ids))}
    rules = tuple(rule for rule in spec.tool_rules if rule.tool_name in there)
    folder_ids = (*spec.folder_ids, *made.known(agent.get("folder_ids") or agent.get("source_ids") or []))
    return replace(spec, tool_ids=tool_ids, folder_ids=folder_ids, tool_rules=rules)


def _insert_tools(tx: Transaction, here: RequestContext, file: AgentImport, made: MadeIds, *, overrides: bool) -> None:
    listed = {one["id"]: one for one in file.content.get("tools") or ()}
    stored = tools.by_names(tx, here.scope, [str(one.get("name")) for one in listed.values()])
    for id, request in file.tools:
        schema = custom_tools.schema_for(request)
        found: Tool | None = stored.get(schema.name)
        if found is None or (overrides and found.tool_type == "custom" and found.source_code != request.source_code):
            if not here.scope.may("tools:write"):
                raise Forbidden(f"The file brings the tool {schema.name}, and your key lacks the scope tools:write.")
            found = custom_tools.upsert(tx, here.scope, request, schema)
        made.ids[id] = found.id
    for id, one in listed.items():
        # Built-in tools, and those of MCP servers, are linked where this server has them.
        if id not in made.ids and (found := stored.get(str(one.get("name")))):
            made.ids[id] = found.id


def _insert_folders(tx: Transaction, here: RequestContext, content: Json, made: MadeIds) -> None:
    for one in content.get("sources") or ():
        fields = {name: one.get(name) for name in export.FOLDER_FIELDS}
        name = free_folder_name(tx, here, str(fields["name"]))
        folder = Folder(
            **fields | {"name": name, "metadata": fields["metadata"] or {}},
            id="",
            archive_id="",
            organization_id=here.scope.organization_id,
            user_id=here.scope.subject,
        )
        made.ids[one["id"]] = folders.create_folder(tx, here.scope, folder).id
    for one in content.get("files") or ():
        if one.get("content") and one.get("source_id") in made.ids:
            name = str(one.get("file_name") or "file")
            is_text = PurePosixPath(name).suffix.lower() not in PARSED
            upload = folders.Upload(name if is_text else f"{name}.txt", str(one["content"]).encode())
            folders.add_file(tx, here.scope, made.ids[one["source_id"]], upload)


def free_folder_name(tx: Transaction, here: RequestContext, name: str) -> str:
    taken, number = name, 1
    while files.find_folder(tx, here.scope.organization_id, taken, here.scope.subject):
        number += 1
        taken = f"{name} ({number})"
    return taken


def _insert_archives(
    tx: Transaction, here: RequestContext, state: AgentState, listed: list[parts.FileArchive], made: MadeIds
) -> None:
    now, by = tx.clock.now(), here.scope.user_id
    for one in listed:
        if one.id not in made.ids:
            fields = {name: getattr(one, name) for name in export.ARCHIVE_FIELDS} | {"embedding": state.agent.embedding}
            fields |= {"created_at": now, "updated_at": now, "created_by": by}
            archive = Archive(new_id("archive"), here.scope.organization_id, **fields)
            insert_archive(tx, archive)
            made.ids[one.id] = archive.id
            passages = []
            for item in one.passages:
                fields = {name: getattr(item, name) for name in export.PASSAGE_FIELDS} | {"tags": tuple(item.tags)}
                fields |= {"user_id": here.scope.subject, "created_by": by, "updated_at": now}
                passages.append(Passage(new_id("passage"), archive.organization_id, archive.id, **fields))
            insert_passages(tx, archive, archives.redacted(passages))
        archives.attach(tx, state.agent.id, made.ids[one.id])


def _insert_conversation(tx: Transaction, here: RequestContext, state: AgentState, one: parts.FileConversation) -> None:
    fields = {name: getattr(one, name) for name in export.CONVERSATION_FIELDS}
    fields |= dict.fromkeys(("created_at", "updated_at"), tx.clock.now())
    fields |= {"user_id": here.scope.subject, "created_by": here.scope.user_id}
    conversation = Conversation(new_id("conv"), state.agent.organization_id, state.agent.id, **fields)
    conversations.insert_one(tx, conversation)
    _fill(tx, conversation, one.messages, [], one.in_context_message_ids)


def _insert_schedules(tx: Transaction, here: RequestContext, agent_id: str, listed: list[ScheduleRequest]) -> None:
    """Store the schedules that are still to come. Raises Forbidden, Invalid, Conflict."""
    if listed and not here.scope.may("messages:write"):
        raise Forbidden("The file brings schedules, and your key lacks the scope messages:write.")
    for one in listed:
        is_past = isinstance(one.schedule, OneTime) and one.schedule.scheduled_at * 1000 <= tx.clock.now()
        if not is_past:
            # Where results are sent is a matter of the server that the file came from.
            schedules.create(tx, here.scope, agent_id, one.model_copy(update={"callback_url": None}))


def _fill(
    tx: Transaction,
    conversation: Conversation,
    whole: list[parts.FileMessage] | None,
    plain: list[Json],
    listed: list[str],
) -> None:
    """Put the messages into the conversation, and those that are listed into its window, behind its own system message."""
    home = formats.Home(conversation.agent_id, conversation.id, conversation.organization_id, conversation.user_id)
    now = tx.clock.now()
    sent = [one["id"] for one in plain] if whole is None else [one.id for one in whole]
    ids = {id: new_id("message") for id in sent}
    found = (
        [formats.from_af(one, ids[one["id"]], home, now) for one in plain]
        if whole is None
        else [formats.from_whole(one, ids[one.id], home) for one in whole]
    )
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


def require_readable(file: AgentImport) -> None:
    """Raise Invalid for a file with a message that no import would store."""
    home = formats.Home("", "", "", None)
    try:
        for agent, (more, _) in zip(file.content["agents"], file.more, strict=True):
            for one in (agent.get("messages") or ()) if more.messages is None else ():
                formats.from_af(one, one["id"], home, 0)
            others = [message for one in more.conversations for message in one.messages]
            for message in (*(more.messages or ()), *others):
                formats.from_whole(message, message.id, home)
    except (KeyError, TypeError, AttributeError) as error:
        raise Invalid(_UNREADABLE.format(f"{type(error).__name__}: {error}")) from error
