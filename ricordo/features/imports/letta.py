"""Agents of the retired Letta V1 server, from its database: with memory, messages, archives, tools, folders and users.

Each thing is taken in one transaction that notes it, messages and passages in batches; ids are kept, or made of those there. So
an import that was killed goes on at its next run. What was taken is left alone from then on, since it may have changed here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ricordo.agents.conversations import system_message
from ricordo.agents.lifecycle import AgentSpec, insert_agent, prepare
from ricordo.api.models.base import Json
from ricordo.api.models.tools import read_rule
from ricordo.domain.agent import AgentState, Conversation
from ricordo.domain.block import Chain
from ricordo.domain.clock import to_micros
from ricordo.domain.ids import new_id
from ricordo.domain.job import Report
from ricordo.domain.model import ModelInfo
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound, RicordoError
from ricordo.features.accounts.queries import attach_block
from ricordo.features.agent_files.export import AGENT_FIELDS
from ricordo.features.agent_files.service import ImportOptions, read_spec
from ricordo.features.imports import letta_shared, queries
from ricordo.features.imports.letta_groups import take_groups
from ricordo.features.imports.letta_messages import take_messages
from ricordo.features.imports.letta_run import REFUSALS, SOURCE, LettaRun, reason_of
from ricordo.features.imports.letta_tables import LettaTables, Row, decrypt
from ricordo.features.imports.queries import Outcome
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agent_access, archives, blocks, conversations, tools
from ricordo.storage.engine.store import Transaction

_COUNTED = (
    "identities",
    "tools",
    "sources",
    "files",
    "archives",
    "archival_passages",
    "agents",
    "messages",
)
# Tables of which nothing is taken, and why.
_LEFT_OUT = {
    "mcp_server": "connect MCP servers here, then give agents their tools",
    "providers": "enter keys of providers here",
    "sandbox_configs": "tools run in this server's own sandbox",
    "prompts": "there is no list of prompts here",
    "blocks_conversations": "an agent's blocks are seen in all of its conversations",
    "jobs": "they are records of work that has ended",
    "runs": "they are records of turns; what was said in them is taken",
    "steps": "they are records of turns; what was said in them is taken",
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
    """Take what was not taken yet, with `model` for every agent if given; returns the report. Raises Invalid, Unavailable."""
    run = LettaRun(runtime, scope, letta, report)
    await run.begin(_COUNTED)
    held = sorted(
        {str(row["organization_id"]) for row in await run.rows("agents", "organization_id")}
    )
    if len(held) > 1:
        raise Invalid(
            f"The database has agents of {len(held)} organizations. Name one: --organization {held[0]}"
        )
    await letta_shared.take_users(run)
    await letta_shared.take_tools(run)
    await letta_shared.take_folders(run)
    await letta_shared.take_archives(run)
    await take_agents(run, await letta_shared.take_blocks(run), model=model, key=key)
    await take_groups(run)
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
        block_id, user_id = run.id("block", row["block_id"]), run.users.get(row["identity_id"])

        def attach(
            tx: Transaction, out: Outcome, block_id: str = block_id, user_id: str | None = user_id
        ) -> None:
            if user_id is None:
                raise NotFound("its user was not taken")
            blocks.get(tx, run.scope, block_id)
            attach_block(tx, block_id, user_id)
            out.take("blocks of users")

        await run.once(
            f"{row['identity_id']}/{row['block_id']}", "blocks of users", block_id, attach
        )


_AGENT = (
    "id name agent_type system description metadata_ timezone hidden tool_rules llm_config compaction_settings"
    " response_format message_buffer_autoclear max_files_open per_file_view_window_char_limit message_ids"
)
# What an agent cannot be without; other fields that cannot be read here are left out by themselves.
_NEEDED = ("name", "system")
_CONVERSATION = "id summary model created_at"


async def take_agents(
    run: LettaRun, blocks_of: Mapping[str, Sequence[str]], *, model: str | None, key: str | None
) -> None:
    """Take the agents. `model` takes the place of every agent's; `key` opens what was encrypted there."""
    there = {row["id"]: str(row["name"]) for row in await run.rows("tools", "id name")}
    for row in await run.rows("agents", _AGENT, order="created_at id"):
        threads = await run.rows(
            "conversations", _CONVERSATION, order="created_at id", agent_id=row["id"]
        )
        is_there = row["id"] in run.done
        if not is_there:
            out, linked = Outcome(), await _links(run, row["id"], there)
            try:
                spec, info = await _prepared(run, row, linked, out, model, key)
                spec = replace(spec, id=run.id("agent", row["id"]))
            except (RicordoError, *REFUSALS) as error:
                run.refused.leave("agents", str(row["name"]), reason_of(error))
                continue
            shared = [id for id in blocks_of.get(row["id"], ()) if id in run.done]
            own = await letta_shared.texts_of(
                run, [id for id in blocks_of.get(row["id"], ()) if id not in run.done]
            )
            draft = _Draft(spec, info, linked, own, shared, threads, out)
            is_there = await run.once(
                row["id"], "agents", row["name"], partial(_insert, run=run, draft=draft)
            )
        if is_there:
            await take_messages(run, row, threads)
        run.step()


async def _links(run: LettaRun, theirs: str, tool_names: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what the agent is linked to: tags, names of tools, and ids there."""
    found = {}
    for table, column in (
        ("agents_tags", "tag"),
        ("tools_agents", "tool_id"),
        ("sources_agents", "source_id"),
        ("archives_agents", "archive_id"),
        ("identities_agents", "identity_id"),
    ):
        found[column] = sorted(
            str(one[column]) for one in await run.rows(table, column, agent_id=theirs)
        )
    found["tool"] = [tool_names[id] for id in found["tool_id"] if id in tool_names]
    return found


async def _prepared(
    run: LettaRun,
    row: Row,
    links: Mapping[str, Any],
    out: Outcome,
    model: str | None,
    key: str | None,
) -> tuple[AgentSpec, ModelInfo]:
    """Return the agent as it is to be made, without the fields that cannot be read here, and its model or the default one."""
    name = str(row["name"])
    sent = {one: row.get(one) for one in AGENT_FIELDS} | {
        "metadata": row["metadata_"],
        "tags": links["tag"],
    }
    given: Json = {one: sent[one] for one in _NEEDED} | {"tool_rules": []}
    for rule in sent.pop("tool_rules") or ():  # one by one: some guard what others may do
        try:
            read_rule(rule)
            given["tool_rules"].append(rule)
        except REFUSALS as error:
            out.leave("tool rules", f"{name}: {rule}", reason_of(error))
    for field, value in sent.items():
        if value is not None and field not in _NEEDED:
            try:
                read_spec(
                    run.context.runtime, {**given, field: value}, {}, ImportOptions(suffix="")
                )
                given[field] = value
            except REFUSALS as error:
                out.leave("settings of agents", f"{name}: {field}", reason_of(error))
    secrets = await _secrets(run, row["id"], name, out, key)
    spec = read_spec(
        run.context.runtime, given, {}, ImportOptions(suffix="", model=model, secrets=secrets)
    )
    try:
        return await prepare(run.runtime, run.scope, spec)
    except RicordoError as error:
        if model or not spec.model:
            raise
        spec, info = await prepare(
            run.runtime, run.scope, replace(spec, model=None, context_window=None)
        )
        out.leave(
            "models of agents",
            f"{name}: {given['llm_config'].get('handle')}",
            f"it has {info.handle}. {error}",
        )
        return spec, info


async def _secrets(
    run: LettaRun, theirs: str, name: str, out: Outcome, key: str | None
) -> dict[str, str]:
    """Return the agent's variables; the value of one that cannot be opened is empty."""
    found = {}
    for row in await run.rows(
        "agent_environment_variables", "key value value_enc", order="key", agent_id=theirs
    ):
        value, sealed = row["value"] or "", row["value_enc"]
        if not value and sealed:
            reason = "it is encrypted there: give the LETTA_ENCRYPTION_KEY of that server, or enter it here"
            try:
                value = decrypt(sealed, key) if key else ""
            except RicordoError as error:
                reason = str(error)
            if not value:
                out.leave("values of secrets", f"{name}: {row['key']}", reason)
        found[str(row["key"])] = value
    return found


@dataclass(frozen=True, slots=True)
class _Draft:
    """An agent that is to be made: `links` are names of tools and ids there, `own` and `shared` blocks, `told` what it lacks."""

    spec: AgentSpec
    info: ModelInfo
    links: Mapping[str, Sequence[str]]
    own: Sequence[letta_shared.BlockTexts]
    shared: Sequence[str]
    threads: Sequence[Row]
    told: Outcome


def _insert(tx: Transaction, out: Outcome, run: LettaRun, draft: _Draft) -> None:
    """Store the agent with its blocks, and its conversations without messages."""
    agent_id, links, name = str(draft.spec.id), draft.links, draft.spec.name
    out.left_out += draft.told.left_out
    made = letta_shared.insert_blocks(
        tx, run, Chain(new_id("chain"), run.organization, "agent", agent_id), draft.own, out
    )
    attached_tools = tools.by_names(tx, run.scope, links["tool"])
    for missing in (name for name in links["tool"] if name not in attached_tools):
        out.leave("tools of agents", f"{name}: {missing}", "there is no tool of this name here")
    spec = replace(
        draft.spec,
        block_ids=(*(one.id for one in made), *(run.id("block", id) for id in draft.shared)),
        tool_ids=tuple(one.id for one in attached_tools.values()),
        tool_rules=tuple(
            rule for rule in draft.spec.tool_rules if rule.tool_name in attached_tools
        ),
        folder_ids=tuple(run.id("source", id) for id in links["source_id"] if id in run.done),
    )
    state = insert_agent(tx, run.runtime, run.scope, spec, draft.info)
    for theirs in links["archive_id"]:
        if theirs in run.done:
            archives.attach(tx, agent_id, run.id("archive", theirs))
    for theirs in links["identity_id"]:
        if theirs in run.users:
            agent_access.attach_user(tx, agent_id, run.users[theirs])
        else:
            out.leave(
                "users of agents",
                f"{name}: {theirs}",
                "the user was not taken; see who may use the agent now",
            )
    for thread in draft.threads:
        if thread["model"]:
            out.leave(
                "models of conversations", f"{name}: {thread['model']}", "they have their agents'"
            )
        _insert_thread(tx, run, state, thread)
    out.take("agents")
    if draft.threads:
        out.take("conversations", len(draft.threads))


def _insert_thread(tx: Transaction, run: LettaRun, state: AgentState, thread: Row) -> None:
    at = to_micros(thread["created_at"])
    begun = Conversation(
        run.id("conv", thread["id"]), run.organization, state.agent.id, summary=thread["summary"]
    )
    begun = replace(begun, created_by=run.scope.user_id, created_at=at, updated_at=at)
    prompt, key = system_message(tx, run.runtime, replace(state, conversation=begun))
    conversations.insert_one(
        tx, replace(begun, window=(prompt.id,), prompt_key=key, message_count=1)
    )
    insert_messages(tx, [prompt])
