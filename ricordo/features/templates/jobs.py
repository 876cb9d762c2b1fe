"""Brings the agents of a template to a version, each in one transaction: killed anywhere, the job goes on with those that are left.

Only an agent's own blocks are written. Its history, its archives, and all that belongs to users stay as they are.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, new_block, prepare
from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.block import Block, Chain
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.model import ModelInfo
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import RicordoError, Unavailable
from ricordo.features.agent_files import service as agent_files
from ricordo.features.agent_files.service import ImportOptions
from ricordo.features.files import queries as files
from ricordo.features.files import service as folders
from ricordo.features.templates import queries
from ricordo.features.templates.models import TemplateSaveRequest
from ricordo.features.templates.queries import Template
from ricordo.features.templates.service import MARK, filled, present_folders
from ricordo.llm.provider_table import with_usual_thinking
from ricordo.memory import submission
from ricordo.memory.proposals import ProposalDraft, Unchanged, expiry_of, propose
from ricordo.memory.submission import Submission
from ricordo.runtime import Runtime
from ricordo.storage import agents, blocks, tools, versions
from ricordo.storage.engine.store import Transaction

MIGRATE = "templates.migrate"
# What of an agent's settings a template sets.
_SETTINGS = ("max_files_open", "per_file_view_window_char_limit", "user_block_policy", "compaction")
# Policies by which the owner of a block decides about a change.
_ASKS = ("propose", "explicit")
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Migration:
    """One version of a template, and how agents are brought to it."""

    template: Template
    version_id: str
    number: int
    agent: Mapping[str, Any]
    spec: AgentSpec
    info: ModelInfo
    author: Actor
    options: TemplateSaveRequest
    proposals_expire_after: int | None

    @property
    def scope(self) -> Scope:
        return Scope(self.template.organization_id)

    @property
    def submission(self) -> Submission:
        reason = f"Bring to the template {self.template.name}:{self.number}"
        return Submission(self.author, reason, self.proposals_expire_after)


def job_of(template: Template, author: Actor, options: TemplateSaveRequest) -> Job:
    """Return the job that brings the template's agents to its newest version; those of one template never overlap."""
    payload = {"name": template.name, "template_id": template.id, "number": template.version, "author": asdict(author)}
    return Job(MIGRATE, template.organization_id, {**payload, "options": options.model_dump()}, key=template.id)


async def migrate(runtime: Runtime, job: Job, report: Report) -> None:
    """Bring every agent of the template to the version, unless it is there or beyond. Raises Unavailable."""
    given = job.payload
    scope = Scope(job.organization_id)

    def find(tx: Transaction) -> Any:
        template = queries.find(tx, scope, given["name"])
        if template is None or template.id != given["template_id"]:
            return None  # it was deleted meanwhile
        listed = queries.agents_before(tx, template, given["number"])
        return template, queries.read_version(tx, template.id, given["number"]), listed

    if (found := await runtime.store.read(find)) is None:
        return
    template, (version, content), listed = found
    file = agent_files.read(runtime, content, ImportOptions(suffix="", strips_messages=True))
    spec, info = await prepare(runtime, scope, file.specs[0])
    migration = Migration(
        template,
        version.id,
        version.number,
        {**content["agents"][0], "tool_names": [one["name"] for one in content["tools"]]},
        spec,
        info,
        Actor(**given["author"]),
        TemplateSaveRequest(**given["options"]),
        expiry_of(runtime.settings),
    )
    failed: list[str] = []
    for place, agent_id in enumerate(listed, 1):
        try:
            await runtime.store.write(partial(bring, runtime=runtime, migration=migration, agent_id=agent_id))
        except RicordoError as error:
            failed.append(f"{agent_id}: {error}")
        report(place, len(listed))
    if failed:
        raise Unavailable(
            f"{len(failed)} of {len(listed)} agents could not be brought to {template.name}:{version.number}. "
            + " ".join(failed[:_NAMED])
        )


HANDLERS = (JobHandler(MIGRATE, migrate),)


def bring(tx: Transaction, runtime: Runtime, migration: Migration, agent_id: str) -> None:
    """Bring one agent to the version; done twice it is the same as once."""
    scope = migration.scope
    agents.lock(tx, scope, agent_id)
    if agents.find(tx, scope, agent_id) is None:
        return
    state = agents.load_whole(tx, scope, agent_id)
    mark = state.agent.settings.get(MARK, {})
    if mark.get("base_template_id") != migration.template.id or mark["version"] >= migration.number:
        return
    _bring_blocks(tx, state.agent, migration, mark["variables"])
    offered = tools.by_names(tx, scope, migration.agent["tool_names"])
    rules = tuple(rule for rule in migration.spec.tool_rules if rule.tool_name in offered)
    mark = {
        **mark,
        "template_id": migration.version_id,
        "version": migration.number,
        "entity_id": migration.agent["id"],
    }
    changed = replace(_changed(tx, state.agent, migration, mark), tool_rules=rules)
    agents.update(tx, changed, sorted({*state.tags, *migration.spec.tags}))
    _bring_tools(tx, state, [tool.id for tool in offered.values()])
    _bring_folders(tx, runtime, migration, agent_id)


def _changed(tx: Transaction, agent: Agent, migration: Migration, mark: dict[str, Any]) -> Agent:
    spec, info = migration.spec, migration.info
    kept = {name: value for name, value in agent.settings.items() if name not in _SETTINGS}
    named, secrets = spec.settings.get("secrets", {}), agent.settings.get("secrets", {})
    keeps_all = migration.options.preserve_environment_variables_on_migration
    stays = {name: value for name, value in secrets.items() if keeps_all or name in named}
    return replace(
        agent,
        system=spec.system or "",
        description=spec.description,
        metadata={**agent.metadata, **spec.metadata},
        model=info.handle,
        context_window=spec.context_window or info.context_window,
        model_settings=with_usual_thinking(spec.model_settings, info),
        clears_buffer=agent.clears_buffer if spec.clears_buffer is None else spec.clears_buffer,
        settings={**kept, **spec.settings, "secrets": {**named, **stays}, MARK: mark},
        updated_by=migration.author.id,
        updated_at=tx.clock.now(),
    )


def _bring_tools(tx: Transaction, state: AgentState, wanted: list[str]) -> None:
    """Give the agent these tools and no others, but for those that read its files."""
    kept = [tool.id for tool in state.tools if tool.name in folders.TOOLS and tool.id not in wanted]
    tools.detach_all(tx, state.agent.id)
    tools.attach(tx, state.agent.id, [*wanted, *kept])


def _bring_folders(tx: Transaction, runtime: Runtime, migration: Migration, agent_id: str) -> None:
    wanted = list(present_folders(tx, migration.scope, migration.agent.get("folder_ids") or ()))
    held = files.folders_of_agent(tx, migration.scope, agent_id)
    stays = [one.id for one in held if one.user_id or migration.options.preserve_sources_on_migration]
    if wanted or held:
        runtime.set_folders(tx, migration.scope, agent_id, list(dict.fromkeys([*wanted, *stays])))


def _bring_blocks(tx: Transaction, agent: Agent, migration: Migration, variables: Mapping[str, str]) -> None:
    scope = migration.scope
    attached = {block.shown_label: block for block in blocks.attached(tx, agent.id)}
    chain = versions.of_owner(tx, scope, "agent", agent.id)
    if chain:
        versions.lock(tx, chain.id)
    for wanted in (filled(block, variables) for block in migration.spec.blocks):
        held = attached.pop(wanted.label, None)
        if held is None and chain and (detached := blocks.labelled(tx, chain.id, wanted.label)):
            blocks.attach(tx, agent.id, [detached])
            held = detached
        if held is None:
            chain = _add_block(tx, agent, migration, wanted, chain)
        elif chain and held.chain_id == chain.id:
            _change_block(tx, blocks.get(tx, scope, held.id), wanted, migration)
    if migration.options.block_reconciliation_strategy == "reconcile-all":
        for block in attached.values():
            _take_block(tx, agent, blocks.get(tx, scope, block.id), migration, chain)


def _add_block(tx: Transaction, agent: Agent, migration: Migration, wanted: BlockSpec, chain: Chain | None) -> Chain:
    home = chain or Chain(new_id("chain"), agent.organization_id, "agent", agent.id)
    metadata = migration.submission.metadata("")
    made = new_block(tx, replace(migration.scope, user_id=migration.author.id), wanted, home)
    blocks.attach(tx, agent.id, blocks.insert_all(tx, [made], [] if chain else [home], metadata))
    return versions.of_owner(tx, migration.scope, "agent", agent.id) or home


def _change_block(tx: Transaction, block: Block, wanted: BlockSpec, migration: Migration) -> None:
    """Write the block, or propose its text where its policy asks for that. Policies stay as they are, but for more protection."""
    text = block.value if migration.options.preserve_core_memories_on_migration else wanted.value
    if block.rule in _ASKS:
        _propose(tx, block, text, migration)
        return
    changed = replace(
        block,
        value=text,
        description=wanted.description,
        limit=max(wanted.limit, len(text)),
        metadata={**block.metadata, **wanted.metadata},
        hidden=wanted.hidden,
        read_only=block.read_only or wanted.read_only,
        tags=tuple(sorted({*block.tags, *wanted.tags})),
    )
    if changed != block:
        submission.change(tx, block, changed, migration.submission)


def _take_block(tx: Transaction, agent: Agent, block: Block, migration: Migration, chain: Chain | None) -> None:
    """Delete the agent's own block, or propose that; take one that others have too out of its prompt. Users' stay."""
    if chain and block.chain_id == chain.id:
        if block.rule in _ASKS:
            _propose(tx, block, None, migration)
        else:
            submission.remove(tx, block, migration.submission)
    elif (home := versions.lock(tx, block.chain_id)) and home.owner_kind != "user":
        blocks.detach(tx, agent.id, block.id)


def _propose(tx: Transaction, block: Block, text: str | None, migration: Migration) -> None:
    if text != block.value:
        edit = migration.submission
        draft = ProposalDraft(block.chain_id, block.label, text, block)
        with suppress(Unchanged):
            propose(tx, draft, ChangeMetadata(edit.author, edit.reason or ""), edit.expires_after)
