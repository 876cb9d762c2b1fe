"""Import the agents of a database of the retired Letta V1 server.

Their memory, messages, archives, tools, folders and users are imported too. Each item is imported
and recorded in one transaction; messages and passages are imported in batches. Ids stay the same,
or are computed from ids in that database. So after a kill, the next run continues the import. An
imported item is never changed again, since users may have edited it here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ricordo.agents.conversations import system_message
from ricordo.agents.lifecycle import AgentSpec, insert_agent, prepare
from ricordo.api.models.tools import read_rule
from ricordo.domain.agent import AgentState, Conversation
from ricordo.domain.block import Chain
from ricordo.domain.clock import to_micros
from ricordo.domain.ids import new_id
from ricordo.domain.job import Report
from ricordo.domain.model import ModelInfo
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import Invalid, NotFound, RicordoError
from ricordo.features.documents.agent_files.export import AGENT_FIELDS
from ricordo.features.documents.agent_files.specs import ImportOptions, read_spec
from ricordo.features.documents.imports import letta_shared, queries
from ricordo.features.documents.imports.letta_groups import import_groups
from ricordo.features.documents.imports.letta_messages import import_messages
from ricordo.features.documents.imports.letta_run import REFUSALS, SOURCE, LettaRun, reason_of
from ricordo.features.documents.imports.letta_tables import LettaTables, Row, decrypt
from ricordo.features.documents.imports.queries import Outcome
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agent_access, archives, blocks, conversations, tools
from ricordo.storage.engine.store import Transaction
from ricordo.storage.identity_blocks import attach_block

_COUNTED_TABLES = (
    "identities",
    "tools",
    "sources",
    "files",
    "archives",
    "archival_passages",
    "agents",
    "messages",
)
# Tables that are not imported, with the reason.
_LEFT_OUT = {
    "mcp_server": "connect MCP servers here, then give agents their tools",
    "providers": "enter the keys of providers on this server",
    "sandbox_configs": "tools run in this server's own sandbox",
    "prompts": "this server has no list of prompts",
    "blocks_conversations": "this server shows an agent's blocks in all of its conversations",
    "jobs": "they are records of work that has ended",
    "runs": "they are records of turns, whose messages are imported",
    "steps": "they are records of turns, whose messages are imported",
}


async def import_letta(
    runtime: Runtime,
    scope: Scope,
    letta: LettaTables,
    report: Report,
    *,
    model: str | None = None,
    key: str | None = None,
) -> dict[str, Any]:
    """Import all items that are not imported yet, and return the report.

    Args:
        runtime: The server's parts.
        scope: The caller, whose organization gets the items.
        letta: The opened database. If it has several organizations, its `organization` chooses one.
        report: Gets the number of examined rows, and of all.
        model: The handle of a model that replaces the model of every agent; None keeps their
            models.
        key: The LETTA_ENCRYPTION_KEY of that server, which decrypts secrets. Without it, encrypted
            values are left out.

    Raises:
        Invalid: The database has agents of several organizations.
        Unavailable: The database cannot be read.
    """
    run = LettaRun(runtime, scope, letta, report)
    await run.begin(_COUNTED_TABLES)
    organizations = sorted(
        {str(row["organization_id"]) for row in await run.rows("agents", "organization_id")}
    )
    if len(organizations) > 1:
        raise Invalid(
            f"The database has agents of {len(organizations)} organizations. Name one: "
            f"--organization {organizations[0]}"
        )
    await letta_shared.import_users(run)
    await letta_shared.import_tools(run)
    await letta_shared.import_folders(run)
    await letta_shared.import_archives(run)
    await import_agents(run, await letta_shared.import_blocks(run), model=model, key=key)
    await import_groups(run)
    await _attach_blocks(run)
    for table, reason in _LEFT_OUT.items():
        if count := await run.count(table):
            run.refused.left_out += [(table.replace("_", " "), "", reason)] * count
    await runtime.store.write(lambda tx: queries.note_refused(tx, scope, SOURCE, run.refused))
    return await runtime.store.read(lambda tx: queries.report_of(tx, scope.organization_id, SOURCE))


async def _attach_blocks(run: LettaRun) -> None:
    for row in await run.rows(
        "identities_blocks", "identity_id block_id", order="identity_id block_id"
    ):
        block_id = run.id("block", row["block_id"])
        user_id = run.users.get(row["identity_id"])

        def attach(
            tx: Transaction,
            outcome: Outcome,
            block_id: str = block_id,
            user_id: str | None = user_id,
        ) -> None:
            if user_id is None:
                raise NotFound("its user was not imported")
            blocks.get(tx, run.scope, block_id)
            attach_block(tx, block_id, user_id)
            outcome.take("blocks of users")

        await run.import_once(
            f"{row['identity_id']}/{row['block_id']}", "blocks of users", block_id, attach
        )


_AGENT = (
    "id name agent_type system description metadata_ timezone hidden tool_rules llm_config"
    " compaction_settings response_format message_buffer_autoclear max_files_open"
    " per_file_view_window_char_limit message_ids"
)
# Fields that every agent must have. Any other field is left out if it cannot be read.
_REQUIRED_FIELDS = ("name", "system")
_CONVERSATION = "id summary model created_at"


async def import_agents(
    run: LettaRun, blocks_of: Mapping[str, Sequence[str]], *, model: str | None, key: str | None
) -> None:
    """Import the agents with their conversations and messages.

    Args:
        run: The import.
        blocks_of: The Letta ids of each agent's blocks, by the Letta id of the agent.
        model: The handle of a model that replaces the model of every agent, or None.
        key: The LETTA_ENCRYPTION_KEY of that server, or None.
    """
    tool_names = {row["id"]: str(row["name"]) for row in await run.rows("tools", "id name")}
    for row in await run.rows("agents", _AGENT, order="created_at id"):
        threads = await run.rows(
            "conversations", _CONVERSATION, order="created_at id", agent_id=row["id"]
        )
        is_imported = row["id"] in run.done
        if not is_imported:
            outcome = Outcome()
            links = await _links(run, row["id"], tool_names)
            try:
                spec, info = await _prepare(run, row, links, outcome=outcome, model=model, key=key)
                spec = replace(spec, id=run.id("agent", row["id"]))
            except (RicordoError, *REFUSALS) as error:
                run.refused.leave("agents", str(row["name"]), reason_of(error))
                continue
            shared_ids = [id for id in blocks_of.get(row["id"], ()) if id in run.done]
            own_blocks = await letta_shared.texts_of(
                run, [id for id in blocks_of.get(row["id"], ()) if id not in run.done]
            )
            draft = _Draft(
                spec,
                info,
                links=links,
                own_blocks=own_blocks,
                shared_ids=shared_ids,
                threads=threads,
                outcome=outcome,
            )
            is_imported = await run.import_once(
                row["id"], "agents", row["name"], partial(_insert, run=run, draft=draft)
            )
        if is_imported:
            await import_messages(run, row, threads)
        run.step()


async def _links(
    run: LettaRun, letta_id: str, tool_names: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the agent's links: tags, names of tools, and ids in the Letta database."""
    links = {}
    for table, column in (
        ("agents_tags", "tag"),
        ("tools_agents", "tool_id"),
        ("sources_agents", "source_id"),
        ("archives_agents", "archive_id"),
        ("identities_agents", "identity_id"),
    ):
        links[column] = sorted(
            str(row[column]) for row in await run.rows(table, column, agent_id=letta_id)
        )
    links["tool"] = [tool_names[id] for id in links["tool_id"] if id in tool_names]
    return links


async def _prepare(
    run: LettaRun,
    row: Row,
    links: Mapping[str, Any],
    *,
    outcome: Outcome,
    model: str | None,
    key: str | None,
) -> tuple[AgentSpec, ModelInfo]:
    """Return the agent's spec and model.

    Fields that cannot be read are left out. If its model cannot be used here, the default model
    replaces it.
    """
    agent_name = str(row["name"])
    fields = {name: row.get(name) for name in AGENT_FIELDS} | {
        "metadata": row["metadata_"],
        "tags": links["tag"],
    }
    accepted: Json = {name: fields[name] for name in _REQUIRED_FIELDS} | {"tool_rules": []}
    # Rules are read one by one, so that a broken rule does not remove rules that guard tools.
    for rule in fields.pop("tool_rules") or ():
        try:
            read_rule(rule)
            accepted["tool_rules"].append(rule)
        except REFUSALS as error:
            outcome.leave("tool rules", f"{agent_name}: {rule}", reason_of(error))
    for field, value in fields.items():
        if value is not None and field not in _REQUIRED_FIELDS:
            try:
                read_spec(
                    run.context.runtime, {**accepted, field: value}, {}, ImportOptions(suffix="")
                )
                accepted[field] = value
            except REFUSALS as error:
                outcome.leave("settings of agents", f"{agent_name}: {field}", reason_of(error))
    secrets = await _secrets(run, row["id"], agent_name, outcome=outcome, key=key)
    spec = read_spec(
        run.context.runtime, accepted, {}, ImportOptions(suffix="", model=model, secrets=secrets)
    )
    try:
        return await prepare(run.runtime, run.scope, spec)
    except RicordoError as error:
        if model or not spec.model:
            raise
        spec, info = await prepare(
            run.runtime, run.scope, replace(spec, model=None, context_window=None)
        )
        outcome.leave(
            "models of agents",
            f"{agent_name}: {accepted['llm_config'].get('handle')}",
            f"it has {info.handle}. {error}",
        )
        return spec, info


async def _secrets(
    run: LettaRun, letta_id: str, agent_name: str, *, outcome: Outcome, key: str | None
) -> dict[str, str]:
    """Return the agent's variables; a value that cannot be decrypted is empty."""
    secrets = {}
    for row in await run.rows(
        "agent_environment_variables", "key value value_enc", order="key", agent_id=letta_id
    ):
        value = row["value"] or ""
        encrypted = row["value_enc"]
        if not value and encrypted:
            reason = (
                "it is encrypted: pass the LETTA_ENCRYPTION_KEY of that server, or enter it here"
            )
            try:
                value = decrypt(encrypted, key) if key else ""
            except RicordoError as error:
                reason = str(error)
            if not value:
                outcome.leave("values of secrets", f"{agent_name}: {row['key']}", reason)
        secrets[str(row["key"])] = value
    return secrets


@dataclass(frozen=True, slots=True)
class _Draft:
    """An agent to create.

    `links` are names of tools, and ids in the Letta database. `own_blocks` are blocks that only
    this agent has; `shared_ids` are imported blocks. `outcome` notes the parts that were left out.
    """

    spec: AgentSpec
    info: ModelInfo
    links: Mapping[str, Sequence[str]]
    own_blocks: Sequence[letta_shared.BlockTexts]
    shared_ids: Sequence[str]
    threads: Sequence[Row]
    outcome: Outcome


def _attach_users(tx: Transaction, outcome: Outcome, run: LettaRun, draft: _Draft) -> None:
    for letta_id in draft.links["identity_id"]:
        if letta_id in run.users:
            agent_access.attach_user(tx, str(draft.spec.id), run.users[letta_id])
        else:
            outcome.leave(
                "users of agents",
                f"{draft.spec.name}: {letta_id}",
                "the user was not imported; check who may use the agent now",
            )


def _insert(tx: Transaction, outcome: Outcome, run: LettaRun, draft: _Draft) -> None:
    """Store the agent with its blocks, and its conversations without messages."""
    agent_id = str(draft.spec.id)
    links = draft.links
    agent_name = draft.spec.name
    outcome.left_out += draft.outcome.left_out
    chain = Chain(new_id("chain"), run.organization, "agent", agent_id)
    own_blocks = letta_shared.insert_blocks(tx, run, chain, draft.own_blocks, outcome)
    attached_tools = tools.by_names(tx, run.scope, links["tool"])
    for tool_name in links["tool"]:
        if tool_name not in attached_tools:
            reason = "there is no tool of this name here"
            outcome.leave("tools of agents", f"{agent_name}: {tool_name}", reason)
    spec = replace(
        draft.spec,
        block_ids=(
            *(block.id for block in own_blocks),
            *(run.id("block", id) for id in draft.shared_ids),
        ),
        tool_ids=tuple(tool.id for tool in attached_tools.values()),
        tool_rules=tuple(
            rule for rule in draft.spec.tool_rules if rule.tool_name in attached_tools
        ),
        folder_ids=tuple(run.id("source", id) for id in links["source_id"] if id in run.done),
    )
    state = insert_agent(tx, run.runtime, run.scope, spec, draft.info)
    for letta_id in links["archive_id"]:
        if letta_id in run.done:
            archives.attach(tx, agent_id, run.id("archive", letta_id))
    _attach_users(tx, outcome, run, draft)
    for thread in draft.threads:
        if thread["model"]:
            outcome.leave(
                "models of conversations",
                f"{agent_name}: {thread['model']}",
                "conversations use the models of their agents",
            )
        _insert_thread(tx, run, state, thread)
    outcome.take("agents")
    if draft.threads:
        outcome.take("conversations", len(draft.threads))


def _insert_thread(tx: Transaction, run: LettaRun, state: AgentState, thread: Row) -> None:
    at = to_micros(thread["created_at"])
    conversation = Conversation(
        run.id("conv", thread["id"]), run.organization, state.agent.id, summary=thread["summary"]
    )
    conversation = replace(conversation, created_by=run.scope.user_id, created_at=at, updated_at=at)
    prompt, key = system_message(tx, run.runtime, replace(state, conversation=conversation))
    conversations.insert_one(
        tx, replace(conversation, window=(prompt.id,), prompt_key=key, message_count=1)
    )
    insert_messages(tx, [prompt])
