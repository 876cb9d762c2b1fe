"""The job that brings the agents of a template to a version.

Each agent is changed in one transaction. If the job is killed, it continues with the remaining
agents. Only blocks of the agent itself are written. Its messages, its archives and all data of
users are not changed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, model_fields, new_block, rules_of
from ricordo.agents.memory_variables import fill_variables
from ricordo.domain.agent import Agent, AgentState
from ricordo.domain.block import Block, Chain
from ricordo.domain.egress import join
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.model import ModelInfo
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.text import Json
from ricordo.errors import RicordoError, Unavailable
from ricordo.features.documents.agent_files.specs import ImportOptions
from ricordo.features.documents.templates import queries
from ricordo.features.documents.templates.models import TemplateSaveRequest
from ricordo.features.documents.templates.queries import Template, TemplateVersion
from ricordo.features.documents.templates.service import MARK, read
from ricordo.features.files.folders import queries as files
from ricordo.features.files.folders.service import TOOLS
from ricordo.memory import submission
from ricordo.memory.proposals import ProposalDraft, Unchanged, expiry_of, propose
from ricordo.memory.submission import Submission
from ricordo.runtime import Runtime
from ricordo.storage import agents, blocks, tools, versions
from ricordo.storage.engine.store import Transaction

MIGRATE = "templates.migrate"
# The agent settings that a template sets.
_SETTINGS = (
    "max_files_open",
    "per_file_view_window_char_limit",
    "user_block_policy",
    "model_profile",
    "memory_in_prompt",
    "compaction",
)
# The policies that let the owner of a block decide on a change.
_ASKS = ("propose", "explicit")
# The most failed agents that an error names.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Migration:
    """The target of a migration, and the edit that carries it out."""

    scope: Scope
    spec: AgentSpec
    info: ModelInfo
    tool_names: Sequence[str]
    folder_ids: Sequence[str]
    edit: Submission
    options: TemplateSaveRequest


def job_of(template: Template, author: Actor, options: TemplateSaveRequest) -> Job:
    """Return the job that brings the template's agents to its newest version.

    Jobs of one template never overlap.

    Args:
        template: The template after its newest version was saved.
        author: The author of the changes in the agents' memory.
        options: The parts of the agents that the migration replaces or leaves.
    """
    version_fields = {"name": template.name, "template_id": template.id, "number": template.version}
    payload = {**version_fields, "author": asdict(author), "options": options.model_dump()}
    return Job(MIGRATE, template.organization_id, payload, key=template.id)


async def migrate(runtime: Runtime, job: Job, report: Report) -> None:
    """Bring the template's older agents to the version of the job.

    A deleted template ends the job without an error.

    Args:
        runtime: The running server.
        job: A job of `job_of`.
        report: Counts the agents.

    Raises:
        NotFound, Invalid: if the version's model or agent file can no longer be used.
        Unavailable: if some agents could not be changed. The others have the new version.
    """
    payload = job.payload
    scope = Scope(job.organization_id)
    name = payload["name"]

    def find(tx: Transaction) -> tuple[tuple[TemplateVersion, Json] | None, list[str]]:
        template = queries.find(tx, scope, name)
        if template is None or template.id != payload["template_id"]:
            return None, []  # the template was deleted meanwhile
        number = payload["number"]
        agent_ids = queries.agents_before(tx, template, number)
        return queries.read_version(tx, template.id, number), agent_ids

    saved, agent_ids = await runtime.store.read(find)
    if saved is None:
        return
    version, content = saved
    file, info = await read(runtime, scope, content, ImportOptions(suffix=""))
    migration = Migration(
        scope=scope,
        spec=file.specs[0],
        info=info,
        tool_names=[tool["name"] for tool in content["tools"]],
        folder_ids=content["agents"][0]["folder_ids"],
        edit=Submission(
            Actor(**payload["author"]),
            f"Bring to the template {name}:{version.number}",
            expiry_of(runtime.settings),
        ),
        options=TemplateSaveRequest(**payload["options"]),
    )
    mark = {
        "template_id": version.id,
        "version": version.number,
        "entity_id": content["agents"][0]["id"],
    }
    failed: list[str] = []
    for count, agent_id in enumerate(agent_ids, 1):
        try:
            await runtime.store.write(
                partial(bring, runtime=runtime, migration=migration, mark=mark, agent_id=agent_id)
            )
        except RicordoError as error:
            failed.append(f"{agent_id}: {error}")
        report(count, len(agent_ids))
    if failed:
        summary = (
            f"{len(failed)} of {len(agent_ids)} agents could not be brought to "
            f"{name}:{version.number}."
        )
        raise Unavailable(" ".join([summary, *failed[:_MOST_NAMED]]))


HANDLERS = (JobHandler(MIGRATE, migrate),)


def bring(
    tx: Transaction, runtime: Runtime, migration: Migration, mark: Json, agent_id: str
) -> None:
    """Bring one agent to the version that the mark names.

    A second call changes nothing; neither does a call for a deleted agent.

    Args:
        tx: The transaction of this one agent.
        runtime: The running server.
        migration: The version's content and the options.
        mark: The agent setting `MARK` without its variables and deployment: `template_id` (of the
            version), `version` (its number) and `entity_id`.
        agent_id: The agent to change.

    Raises:
        RicordoError: if one of the changes is refused.
    """
    scope = migration.scope
    agents.lock(tx, scope, agent_id)
    if agents.find(tx, scope, agent_id) is None:
        return
    state = agents.load_whole(tx, scope, agent_id)
    old_mark = state.agent.settings[MARK]
    if old_mark["version"] < mark["version"]:
        rework(
            tx,
            runtime,
            migration,
            state,
            settings={MARK: {**old_mark, **mark}},
            variables=old_mark["variables"],
        )


def rework(
    tx: Transaction,
    runtime: Runtime,
    migration: Migration,
    state: AgentState,
    *,
    settings: Json,
    variables: Mapping[str, str],
) -> None:
    """Apply the migration to a locked agent, and also store these settings.

    Args:
        tx: The transaction that locked the agent.
        runtime: The running server.
        migration: The version's content and the options.
        state: The agent before the change, from `agents.load_whole`.
        settings: Agent settings that replace those of the same names.
        variables: The values of `{{name}}` in the texts of the template's blocks, by name.

    Raises:
        RicordoError: if one of the changes is refused.
    """
    scope = migration.scope
    agent_id = state.agent.id
    _migrate_blocks(tx, state.agent, migration, variables)
    new_tools = tools.by_names(tx, scope, migration.tool_names)
    rules = tuple(rule for rule in migration.spec.tool_rules if rule.tool_name in new_tools)
    rules = rules_of(replace(migration.spec, tool_rules=rules), [*new_tools.values()])
    changed = _changed_agent(tx, state.agent, migration)
    changed = replace(changed, tool_rules=rules, settings={**changed.settings, **settings})
    agents.update(tx, changed, sorted({*state.tags, *migration.spec.tags}))
    # The tools that read files are attached and detached together with the agent's folders.
    file_tools = {tool.name: tool for tool in state.tools if tool.name in TOOLS}
    tools.detach_all(tx, agent_id)
    tools.attach(tx, agent_id, [tool.id for tool in (file_tools | new_tools).values()])
    _migrate_folders(tx, runtime, migration, agent_id)


def _changed_agent(tx: Transaction, agent: Agent, migration: Migration) -> Agent:
    spec = migration.spec
    info = migration.info
    old_settings = {name: value for name, value in agent.settings.items() if name not in _SETTINGS}
    template_secrets = spec.settings.get("secrets", {})
    keeps_all = migration.options.preserve_environment_variables_on_migration
    agent_secrets = {
        name: value
        for name, value in agent.settings.get("secrets", {}).items()
        if keeps_all or name in template_secrets
    }
    secrets = {**template_secrets, **agent_secrets}
    return replace(
        agent,
        system=spec.system or "",
        description=spec.description,
        metadata={**agent.metadata, **spec.metadata},
        **model_fields(spec, info),
        clears_buffer=agent.clears_buffer if spec.clears_buffer is None else spec.clears_buffer,
        settings={**old_settings, **spec.settings, "secrets": secrets},
        updated_by=migration.edit.author.id,
        updated_at=tx.clock.now(),
    )


def _migrate_folders(
    tx: Transaction, runtime: Runtime, migration: Migration, agent_id: str
) -> None:
    scope = migration.scope
    template_ids = [folder.id for folder in files.folders_by_ids(tx, scope, migration.folder_ids)]
    attached = files.folders_of_agent(tx, scope, agent_id)
    keeps_all = migration.options.preserve_sources_on_migration
    remaining_ids = [folder.id for folder in attached if folder.user_id or keeps_all]
    if template_ids or attached:
        runtime.set_folders(tx, scope, agent_id, [*template_ids, *remaining_ids])


def _migrate_blocks(
    tx: Transaction, agent: Agent, migration: Migration, variables: Mapping[str, str]
) -> None:
    attached = {block.shown_label: block for block in blocks.attached(tx, agent.id)}
    chain = versions.of_owner(tx, migration.scope, "agent", agent.id)
    if chain:
        versions.lock(tx, chain.id)
    for spec in fill_variables(migration.spec.blocks, variables):
        block = attached.pop(spec.label, None)
        if block is None and chain and (detached := blocks.labelled(tx, chain.id, spec.label)):
            blocks.attach(tx, agent.id, [detached])
            block = detached
        if block is None:
            chain = _add_block(tx, agent, migration, spec, chain)
        elif chain and block.chain_id == chain.id:
            _change_block(tx, blocks.get(tx, migration.scope, block.id), spec, migration)
    if migration.options.block_reconciliation_strategy == "reconcile-all":
        # This list contains no blocks of users.
        for block in blocks.of_agent(tx, agent.id):
            if block.shown_label in attached:
                _remove_block(tx, agent, block, migration, chain)


def _add_block(
    tx: Transaction, agent: Agent, migration: Migration, spec: BlockSpec, chain: Chain | None
) -> Chain:
    block_chain = chain or Chain(new_id("chain"), agent.organization_id, "agent", agent.id)
    block = new_block(
        tx, replace(migration.scope, user_id=migration.edit.author.id), spec, block_chain
    )
    added = blocks.insert_all(
        tx, [block], [] if chain else [block_chain], migration.edit.metadata("")
    )
    blocks.attach(tx, agent.id, added)
    return block_chain


def _change_block(tx: Transaction, block: Block, spec: BlockSpec, migration: Migration) -> None:
    """Give the block the template's text and settings.

    Its policy stays. The block may become read-only, but never writable, and its egress policy may
    become stricter. If its policy leaves changes to its owner, the text is only proposed, and the
    settings stay, except for the egress policy.
    """
    if (label := join(block.egress, spec.egress)) != block.egress:
        # A stricter policy reveals nothing, so the owner is not asked.
        stricter = replace(block, egress=label)
        block = blocks.update(tx, block, stricter, migration.edit.metadata(""))
    if migration.options.preserve_core_memories_on_migration:
        value = block.value
    else:
        value = spec.value
    changed = replace(
        block,
        value=value,
        description=spec.description,
        limit=max(spec.limit, len(value)),
        metadata={**block.metadata, **spec.metadata},
        hidden=spec.hidden,
        read_only=block.read_only or spec.read_only,
        tags=tuple(sorted({*block.tags, *spec.tags})),
    )
    if not _asks_owner(tx, block, value, migration) and changed != block:
        submission.change(tx, block, changed, migration.edit)


def _remove_block(
    tx: Transaction, agent: Agent, block: Block, migration: Migration, chain: Chain | None
) -> None:
    """Delete the block if it belongs to the agent; detach it if it is shared.

    If its policy leaves changes to its owner, the deletion is only proposed.
    """
    if chain is None or block.chain_id != chain.id:
        blocks.detach(tx, agent.id, block.id)
    elif not _asks_owner(tx, block, None, migration):
        submission.remove(tx, block, migration.edit)


def _asks_owner(tx: Transaction, block: Block, text: str | None, migration: Migration) -> bool:
    """Propose the text if the block's policy leaves changes to its owner.

    Returns True if the policy does, even if the text is not new, so that nothing was proposed.
    """
    if block.rule in _ASKS and text != block.value:
        draft = ProposalDraft(block.chain_id, block.label, text, block)
        with suppress(Unchanged):
            propose(tx, draft, migration.edit.metadata(""), migration.edit.expires_after)
    return block.rule in _ASKS
