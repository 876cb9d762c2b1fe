"""Takes in what a database of the retired Letta V1 server 0.16.8 holds: each thing in one transaction, under the id it had.

What is here already is passed over, so an import that was killed is run again, and one of a server that went on brings what is new.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, insert_agent, new_block
from ricordo.api.agents import spec_of
from ricordo.api.call import RequestContext
from ricordo.api.models.agents import AgentRequest
from ricordo.api.models.memory import BlockRequest
from ricordo.domain.agent import Conversation
from ricordo.domain.block import Chain
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.domain.model import ModelInfo
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import NotFound, RicordoError
from ricordo.features.agent_files import messages as formats
from ricordo.features.custom_tools import service as custom_tools
from ricordo.features.custom_tools.models import ToolCreateRequest
from ricordo.features.files import queries as files
from ricordo.features.files import service as folders
from ricordo.features.files.texts import PARSED
from ricordo.features.imports.source import LettaDatabase, Row, as_file, decrypted, id_here, portions, time_of
from ricordo.search.index import insert_archive, insert_messages, insert_passages
from ricordo.storage import agent_access, agents, archives, blocks, conversations, messages, tools, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.users import UserDraft

_AGENT_FIELDS = (
    *("name", "agent_type", "system", "description", "timezone", "hidden", "tool_rules", "llm_config"),
    *("compaction_settings", "response_format", "message_buffer_autoclear"),
    *("max_files_open", "per_file_view_window_char_limit"),
)
_BLOCK_FIELDS = ("label", "value", "limit", "description", "read_only", "hidden")
_TOOL_FIELDS = (
    "source_code",
    "description",
    "tags",
    "source_type",
    "json_schema",
    "args_json_schema",
    "return_char_limit",
)
# What stays behind whole, with the reason.
_LEFT = {
    "groups": "groups of agents are not there in this version",
    "mcp_server": "add MCP servers again: their keys stay behind",
    "providers": "configure providers again: their keys stay behind",
    "runs": "runs and steps tell how that server worked; what was said is in the messages",
    "jobs": "jobs of that server",
    "sandbox_configs": "the sandbox is this server's own",
}


@dataclass
class ImportReport:
    """What was taken, what was here already, and what was left out, with the reason."""

    taken: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    left: list[dict[str, str]] = field(default_factory=list)

    def leave(self, kind: str, name: object, why: object) -> None:
        self.left.append({"kind": kind, "name": str(name), "why": str(why)})

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"taken": dict(self.taken), "known": dict(self.known), "left": self.left}


@dataclass(frozen=True, slots=True)
class LettaOptions:
    """How it is taken in. `model` is the handle for all agents, in place of their own; `encryption_key` opens secrets."""

    model: str | None = None
    encryption_key: str | None = None


class LettaImport:
    """One import. `report` grows while it runs."""

    def __init__(self, here: RequestContext, source: LettaDatabase, options: LettaOptions) -> None:
        self.report = ImportReport()
        self._here, self._source, self._options = here, source, options
        self._scope = here.scope
        self._tools: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._users: dict[str, str] = {}
        self._blocks_of = source.links("blocks_agents", "agent_id", "block_id")
        self._uses = Counter(id for ids in self._blocks_of.values() for id in set(ids))
        self._blocks = {row["id"]: row for row in source.table("block") if not row.get("is_template")}

    async def run(self, progress: Callable[[str, int, int], None]) -> ImportReport:
        """Take in everything. Raises Unavailable where the other database stops answering; all that is stored stays."""
        steps: list[tuple[str, list[Row], Callable[[Transaction, Row], None]]] = [
            ("tools", self._source.table("tools"), self._tool),
            ("users", self._source.table("identities"), self._user),
            ("blocks", [row for id, row in self._blocks.items() if self._uses[id] != 1], self._shared_block),
            ("folders", self._source.table("sources"), self._folder),
            ("archives", self._source.table("archives"), self._archive),
            ("agents", self._source.table("agents"), self._agent),
        ]
        for kind, rows, take in steps:
            for number, row in enumerate(rows):
                progress(kind, number, len(rows))
                before = self.report.taken.copy(), self.report.known.copy()
                try:
                    await self._here.store.write(lambda tx, take=take, row=row: take(tx, row))  # type: ignore[misc]
                except (RicordoError, ValidationError) as error:
                    self.report.taken, self.report.known = before  # nothing of it was stored
                    said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
                    self.report.leave(kind, row.get("name") or row.get("label") or row["id"], said)
            progress(kind, len(rows), len(rows))
        for table, why in _LEFT.items():
            if count := self._source.count(table):
                self.report.leave(table, f"{count:,}", why)
        return self.report

    def _tool(self, tx: Transaction, row: Row) -> None:
        found = tools.by_names(tx, self._scope, [row["name"]]).get(row["name"])
        if found is not None:
            self._tools[row["id"]] = found.id
            self.report.known["tools"] += 1
        elif row["tool_type"] == "custom" and row.get("source_code"):
            request = ToolCreateRequest.model_validate({name: row[name] for name in _TOOL_FIELDS if row.get(name)})
            made = custom_tools.upsert(tx, self._scope, request, custom_tools.schema_for(request))
            self._tools[row["id"]] = made.id
            self.report.taken["tools"] += 1
        else:
            self.report.leave("tools", row["name"], f"a tool of the type {row['tool_type']} that is not here")

    def _user(self, tx: Transaction, row: Row) -> None:
        found = users.named(tx, self._scope.organization_id, row["identifier_key"])
        self._count("users", found)
        if found is None:
            kept = tuple(one for one in row.get("properties") or () if isinstance(one, dict))
            draft = UserDraft(row["name"], row["identifier_key"], None, row["identity_type"], kept)
            found = users.create(tx, self._scope, draft)
        self._users[row["id"]] = found.id

    def _shared_block(self, tx: Transaction, row: Row) -> None:
        id = id_here("block", row["id"])
        if self._count("blocks", blocks.is_there(tx, id)):
            return
        chain = Chain(new_id("chain"), self._scope.organization_id, "block", id)
        block = new_block(tx, self._scope, self._block(row), chain)
        blocks.insert_all(tx, [block], [chain], ChangeMetadata(self._scope.actor, f"Import {block.label}"))

    def _block(self, row: Row) -> BlockSpec:
        given = {name: row[name] for name in _BLOCK_FIELDS if row.get(name) is not None}
        given["metadata"] = row.get("metadata_") or {}
        given["limit"] = max(int(given.get("limit") or 0), len(given.get("value") or ""), 1)
        spec = BlockRequest.model_validate(given).spec(self._here.runtime.settings.data_dir)
        return replace(spec, id=id_here("block", row["id"]))

    def _folder(self, tx: Transaction, row: Row) -> None:
        name, organization = row["name"], self._scope.organization_id
        found = files.find_folder(tx, organization, name, None)
        if found is not None and found.metadata.get("imported_from") != row["id"]:
            name = f"{name} ({row['id'][-12:]})"
            found = files.find_folder(tx, organization, name, None)
        self._count("folders", found)
        if found is None:
            metadata = {**(row.get("metadata_") or {}), "imported_from": row["id"]}
            texts: dict[str, Any] = {"description": row.get("description"), "instructions": row.get("instructions")}
            made = files.Folder(
                id="", archive_id="", name=name, organization_id=organization, metadata=metadata, **texts
            )
            found = folders.create_folder(tx, self._scope, made)
        self._folders[row["id"]] = found.id
        for file in self._source.table("files"):
            if file["source_id"] == row["id"]:
                self._file(tx, found.id, file)

    def _file(self, tx: Transaction, folder_id: str, row: Row) -> None:
        name = row.get("original_file_name") or row.get("file_name") or row["id"]
        text = self._source.text_of_file(row["id"])
        if text is None:
            self.report.leave("files", name, "its text was not kept")
            return
        name = folders.name_of(name)
        is_text = PurePosixPath(name).suffix.lower() not in PARSED
        upload = folders.Upload(name if is_text else f"{name}.txt", text.encode(), duplicates="skip")
        self._count("files", files.find_by_name(tx, folder_id, upload.name))
        folders.add_file(tx, self._scope, folder_id, upload)

    def _archive(self, tx: Transaction, row: Row) -> None:
        id, now = id_here("archive", row["id"]), tx.clock.now()
        if self._count("archives", archives.ROWS.find(tx, self._scope, id)):
            return
        archive = Archive(
            id,
            self._scope.organization_id,
            row["name"],
            row.get("description"),
            metadata=row.get("metadata_") or {},
            created_by=self._scope.user_id,
            created_at=time_of(row),
            updated_at=now,
        )
        insert_archive(tx, archive)
        for some in portions(self._source.passages(row["id"])):
            passages = [
                Passage(
                    id=id_here("passage", one["id"]),
                    organization_id=archive.organization_id,
                    archive_id=archive.id,
                    text=one["text"],
                    tags=tuple(map(str, one.get("tags") or ())),
                    metadata=one.get("metadata_") or {},
                    created_by=self._scope.user_id,
                    created_at=time_of(one),
                    updated_at=now,
                )
                for one in some
                if one["text"]
            ]
            insert_passages(tx, archive, archives.redacted(passages))
            self.report.taken["passages"] += len(passages)

    def _agent(self, tx: Transaction, row: Row) -> None:
        id = id_here("agent", row["id"])
        if self._count("agents", agents.find(tx, self._scope, id)):
            return
        spec = self._spec(tx, row)
        info = self._model(spec, row)
        state = insert_agent(tx, self._here.runtime, self._scope, replace(spec, id=id, model=info.handle), info)
        for archive in self._source.links("archives_agents", "agent_id", "archive_id").get(row["id"], []):
            if archives.ROWS.find(tx, self._scope, id_here("archive", archive)):
                archives.attach(tx, id, id_here("archive", archive))
        for identity in self._source.links("identities_agents", "agent_id", "identity_id").get(row["id"], []):
            if identity in self._users:
                agent_access.attach_user(tx, id, self._users[identity])
        threads = {
            one["id"]: self._conversation(tx, id, one)
            for one in self._source.table("conversations")
            if one["agent_id"] == row["id"]
        }
        stored = self._messages(tx, row, {**threads, None: state.conversation})
        listed = [id_here("message", one) for one in row.get("message_ids") or ()]
        window = [*state.conversation.window, *(one for one in listed[1:] if one in stored[state.conversation.id])]
        conversations.save_window(tx, state.conversation.id, window, "", added=len(stored[state.conversation.id]))
        for source_id, thread in threads.items():
            in_context = [
                id_here("message", one["message_id"]) for one in self._source.window(source_id) if one["in_context"]
            ]
            own = stored[thread.id]
            conversations.save_window(tx, thread.id, [one for one in in_context if one in own], "", added=len(own))

    def _spec(self, tx: Transaction, row: Row) -> AgentSpec:
        own = [id for id in self._blocks_of.get(row["id"], []) if id in self._blocks]
        given = {name: row[name] for name in _AGENT_FIELDS if row.get(name) is not None}
        tool_ids = [
            self._tools[id]
            for id in self._source.links("tools_agents", "agent_id", "tool_id").get(row["id"], [])
            if id in self._tools
        ]
        names = {tool.name for tool in tools.by_ids(tx, self._scope, tool_ids)}
        given["tool_rules"] = [rule for rule in given.get("tool_rules") or () if rule.get("tool_name") in names]
        given |= {"tool_ids": tool_ids, "include_base_tools": False, "metadata": row.get("metadata_") or {}}
        given["tags"] = self._source.links("agents_tags", "agent_id", "tag").get(row["id"], [])
        given["secrets"] = self._secrets(row)
        given |= {"model": self._options.model} if self._options.model else {}
        body = AgentRequest.model_validate(given)
        spec = replace(spec_of(self._here.runtime, body), has_base_rules=False, beginning=())
        shared = tuple(
            id_here("block", id) for id in own if self._uses[id] > 1 and blocks.is_there(tx, id_here("block", id))
        )
        attached = self._source.links("sources_agents", "agent_id", "source_id").get(row["id"], [])
        return replace(
            spec,
            system=body.system or "",
            blocks=tuple(self._block(self._blocks[id]) for id in own if self._uses[id] == 1),
            block_ids=shared,
            folder_ids=tuple(self._folders[id] for id in attached if id in self._folders),
        )

    def _secrets(self, row: Row) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in self._source.table("agent_environment_variables"):
            if one["agent_id"] == row["id"]:
                value, key = one.get("value") or "", self._options.encryption_key
                if not value and one.get("value_enc"):
                    value = (decrypted(one["value_enc"], key) if key else None) or ""
                    if not value:
                        self.report.leave(
                            "secrets", f"{row['name']}: {one['key']}", "encrypted with another key, or none was given"
                        )
                found[one["key"]] = value
        return found

    def _model(self, spec: AgentSpec, row: Row) -> ModelInfo:
        """What is known of the agent's model here, or else what that server knew: the agent can be read, and answers later."""
        config = row.get("llm_config") or {}
        handle = spec.model or config.get("handle") or f"{config.get('model_endpoint_type')}/{config.get('model')}"
        try:
            return self._here.runtime.organization_providers.known(self._scope.organization_id).get(handle).info
        except NotFound:
            why = f"its model {handle} is not configured here: configure it, or choose another, before you talk with it"
            self.report.leave("models", row["name"], why)
            provider, _, name = handle.partition("/")
            return ModelInfo(handle, provider, name, "openai", int(config.get("context_window") or 32_000))

    def _conversation(self, tx: Transaction, agent_id: str, row: Row) -> Conversation:
        conversation = Conversation(
            id=id_here("conv", row["id"]),
            organization_id=self._scope.organization_id,
            agent_id=agent_id,
            summary=row.get("summary"),
            created_by=self._scope.user_id,
            created_at=time_of(row),
            updated_at=tx.clock.now(),
        )
        conversations.insert_one(tx, conversation)
        self.report.taken["conversations"] += 1
        return conversation

    def _messages(self, tx: Transaction, row: Row, homes: dict[str | None, Conversation]) -> dict[str, set[str]]:
        """Store the agent's messages; returns their ids by conversation. The system message of its own thread is made anew."""
        stored: dict[str, set[str]] = {home.id: set() for home in homes.values()}
        first = (row.get("message_ids") or [None])[0]
        oldest: int | None = None
        for some in portions(one for one in self._source.messages(row["id"]) if one["id"] != first):
            made: list[Message] = []
            for one in some:
                home = homes.get(one.get("conversation_id")) or homes[None]
                place = formats.Home(home.agent_id, home.id, home.organization_id, None)
                try:
                    message = formats.from_af(as_file(one), id_here("message", one["id"]), place, time_of(one))
                except RicordoError as error:
                    self.report.leave("messages", one["id"], error)
                    continue
                made.append(message)
                stored[home.id].add(message.id)
                if home.is_default:
                    oldest = min(oldest or message.created_at, message.created_at)
            insert_messages(tx, made)
            self.report.taken["messages"] += len(made)
        if oldest is not None:
            system = messages.by_ids(tx, homes[None].window[:1])[0]
            messages.rewrite(tx, replace(system, created_at=min(system.created_at, oldest - 1)))
        return stored

    def _count(self, kind: str, found: object) -> bool:
        (self.report.known if found else self.report.taken)[kind] += 1
        return bool(found)
