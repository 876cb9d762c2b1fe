"""Brings the agents of a template to a version, each in one transaction: killed anywhere, the job goes on with those that are left.

Only an agent's own blocks are written. Its history, its archives, and all that belongs to users stay as they are.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, new_block, rules_of
from ricordo.agents.memory_variables import fill_variables
from ricordo.api.models.base import Json
from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.block import Block, Chain
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.model import ModelInfo
from ricordo.domain.scope import Actor, Scope
from ricordo.errors import RicordoError, Unavailable
from ricordo.features.agent_files.service import ImportOptions
from ricordo.features.files import queries as files
from ricordo.features.files.service import TOOLS
from ricordo.features.templates import queries
from ricordo.features.templates.models import TemplateSaveRequest
from ricordo.features.templates.queries import Template, TemplateVersion
from ricordo.features.templates.service import MARK, read
from ricordo.llm.provider_table import with_usual_thinking
from ricordo.memory import submission
from ricordo.memory.proposals import ProposalDraft, Unchanged, expiry_of, propose
from ricordo.memory.submission import Submission
from ricordo.runtime import Runtime
from ricordo.storage import agents, blocks, tools, versions
from ricordo.storage.engine.store import Transaction

MIGRATE = "templates.migrate"
# What of an agent's settings a template sets.
_SETTINGS = (
    "max_files_open",
    "per_file_view_window_char_limit",
    "user_block_policy",
    "model_profile",
    "compaction",
)
# Policies by which the owner of a block decides about a change.
_ASKS = ("propose", "explicit")
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Migration:
    """What agents are brought to: a spec, names of tools, ids of folders; the edit by which that is done, and how."""

    scope: Scope
    spec: AgentSpec
    info: ModelInfo
    tool_names: Sequence[str]
    folder_ids: Sequence[str]
    edit: Submission
    options: TemplateSaveRequest


def job_of(template: Template, author: Actor, options: TemplateSaveRequest) -> Job:
    """Return the job that brings the template's agents to its newest version; those of one template never overlap."""
    named = {"name": template.name, "template_id": template.id, "number": template.version}
    payload = {**named, "author": asdict(author), "options": options.model_dump()}
    return Job(MIGRATE, template.organization_id, payload, key=template.id)


async def migrate(runtime: Runtime, job: Job, report: Report) -> None:
    """Bring every agent of the template to the version, unless it is there or beyond. Raises Unavailable."""
    given, scope, name = job.payload, Scope(job.organization_id), job.payload["name"]

    def find(tx: Transaction) -> tuple[tuple[TemplateVersion, Json] | None, list[str]]:
        template = queries.find(tx, scope, name)
        if template is None or template.id != given["template_id"]:
            return None, []  # it was deleted meanwhile
        number = given["number"]
        return queries.read_version(tx, template.id, number), queries.agents_before(
            tx, template, number
        )

    found, listed = await runtime.store.read(find)
    if found is None:
        return
    version, content = found
    file, info = await read(runtime, scope, content, ImportOptions(suffix=""))
    reason, waits = f"Bring to the template {name}:{version.number}", expiry_of(runtime.settings)
    edit, options = (
        Submission(Actor(**given["author"]), reason, waits),
        TemplateSaveRequest(**given["options"]),
    )
    names, folder_ids = (
        [one["name"] for one in content["tools"]],
        content["agents"][0]["folder_ids"],
    )
    migration = Migration(scope, file.specs[0], info, names, folder_ids, edit, options)
    mark = {
        "template_id": version.id,
        "version": version.number,
        "entity_id": content["agents"][0]["id"],
    }
    failed: list[str] = []
    for place, agent_id in enumerate(listed, 1):
        try:
            await runtime.store.write(
                partial(bring, runtime=runtime, migration=migration, mark=mark, agent_id=agent_id)
            )
        except RicordoError as error:
            failed.append(f"{agent_id}: {error}")
        report(place, len(listed))
    if failed:
        told = f"{len(failed)} of {len(listed)} agents could not be brought to {name}:{version.number}."
        raise Unavailable(" ".join([told, *failed[:_NAMED]]))


HANDLERS = (JobHandler(MIGRATE, migrate),)


def bring(
    tx: Transaction, runtime: Runtime, migration: Migration, mark: Json, agent_id: str
) -> None:
    """Bring one agent to the version that the mark names; done twice it is the same as once."""
    scope = migration.scope
    agents.lock(tx, scope, agent_id)
    if agents.find(tx, scope, agent_id) is None:
        return
    state = agents.load_whole(tx, scope, agent_id)
    held = state.agent.settings[MARK]
    if held["version"] < mark["version"]:
        rework(tx, runtime, migration, state, {MARK: {**held, **mark}}, held["variables"])


def rework(
    tx: Transaction,
    runtime: Runtime,
    migration: Migration,
    state: AgentState,
    settings: Json,
    variables: Mapping[str, str],
) -> None:
    """Make an agent, which is locked, what the migration says, with these settings besides."""
    scope, agent_id = migration.scope, state.agent.id
    _bring_blocks(tx, state.agent, migration, variables)
    offered = tools.by_names(tx, scope, migration.tool_names)
    rules = tuple(rule for rule in migration.spec.tool_rules if rule.tool_name in offered)
    rules = rules_of(replace(migration.spec, tool_rules=rules), [*offered.values()])
    changed = _changed(tx, state.agent, migration)
    changed = replace(changed, tool_rules=rules, settings={**changed.settings, **settings})
    agents.update(tx, changed, sorted({*state.tags, *migration.spec.tags}))
    # Those that read its files come and go with its folders.
    kept = {tool.name: tool for tool in state.tools if tool.name in TOOLS}
    tools.detach_all(tx, agent_id)
    tools.attach(tx, agent_id, [tool.id for tool in (kept | offered).values()])
    _bring_folders(tx, runtime, migration, agent_id)


def _changed(tx: Transaction, agent: Agent, migration: Migration) -> Agent:
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
        settings={**kept, **spec.settings, "secrets": {**named, **stays}},
        updated_by=migration.edit.author.id,
        updated_at=tx.clock.now(),
    )


def _bring_folders(tx: Transaction, runtime: Runtime, migration: Migration, agent_id: str) -> None:
    wanted = [one.id for one in files.folders_by_ids(tx, migration.scope, migration.folder_ids)]
    held = files.folders_of_agent(tx, migration.scope, agent_id)
    stays = [
        one.id for one in held if one.user_id or migration.options.preserve_sources_on_migration
    ]
    if wanted or held:
        runtime.set_folders(tx, migration.scope, agent_id, [*wanted, *stays])


def _bring_blocks(
    tx: Transaction, agent: Agent, migration: Migration, variables: Mapping[str, str]
) -> None:
    attached = {block.shown_label: block for block in blocks.attached(tx, agent.id)}
    own = versions.of_owner(tx, migration.scope, "agent", agent.id)
    if own:
        versions.lock(tx, own.id)
    for wanted in fill_variables(migration.spec.blocks, variables):
        held = attached.pop(wanted.label, None)
        if held is None and own and (detached := blocks.labelled(tx, own.id, wanted.label)):
            blocks.attach(tx, agent.id, [detached])
            held = detached
        if held is None:
            own = _add_block(tx, agent, migration, wanted, own)
        elif own and held.chain_id == own.id:
            _change_block(tx, blocks.get(tx, migration.scope, held.id), wanted, migration)
    if migration.options.block_reconciliation_strategy == "reconcile-all":
        # Without those of users.
        for block in blocks.of_agent(tx, agent.id):
            if block.shown_label in attached:
                _take_block(tx, agent, block, migration, own)


def _add_block(
    tx: Transaction, agent: Agent, migration: Migration, wanted: BlockSpec, own: Chain | None
) -> Chain:
    home = own or Chain(new_id("chain"), agent.organization_id, "agent", agent.id)
    block = new_block(tx, replace(migration.scope, user_id=migration.edit.author.id), wanted, home)
    made = blocks.insert_all(tx, [block], [] if own else [home], migration.edit.metadata(""))
    blocks.attach(tx, agent.id, made)
    return home


def _change_block(tx: Transaction, block: Block, wanted: BlockSpec, migration: Migration) -> None:
    """Write the block. Its policy stays as it is; it may become read-only, and is never opened."""
    text = block.value if migration.options.preserve_core_memories_on_migration else wanted.value
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
    if not _is_proposed(tx, block, text, migration) and changed != block:
        submission.change(tx, block, changed, migration.edit)


def _take_block(
    tx: Transaction, agent: Agent, block: Block, migration: Migration, own: Chain | None
) -> None:
    """Delete the agent's own block; take one that is not its own alone out of its prompt."""
    if own is None or block.chain_id != own.id:
        blocks.detach(tx, agent.id, block.id)
    elif not _is_proposed(tx, block, None, migration):
        submission.remove(tx, block, migration.edit)


def _is_proposed(tx: Transaction, block: Block, text: str | None, migration: Migration) -> bool:
    """Propose the text where the block's policy wants that: people own agents' blocks, but nobody looked at this one."""
    if block.rule in _ASKS and text != block.value:
        draft = ProposalDraft(block.chain_id, block.label, text, block)
        with suppress(Unchanged):
            propose(tx, draft, migration.edit.metadata(""), migration.edit.expires_after)
    return block.rule in _ASKS
