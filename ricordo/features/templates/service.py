"""Templates: made of an agent or a file, saved as versions, rolled back; and agents made from a version.

A template follows the agent that it was made of: what it holds now is that agent as it is, until the agent is deleted, or an update
or a rollback puts something else in its place. Contents are agent files of settings, prompt, tools and blocks alone.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from ricordo.agents.lifecycle import new_block, prepare, require_told_apart
from ricordo.agents.memory_variables import fill_variables, require_variables
from ricordo.api.call import RequestContext
from ricordo.api.messages import new_message
from ricordo.api.models.base import Json
from ricordo.domain.block import Chain
from ricordo.domain.ids import new_id
from ricordo.domain.model import ModelInfo
from ricordo.domain.redaction import redact_values
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.agent_files import service as agent_files
from ricordo.features.agent_files.export import AGENT_FIELDS, BLOCK_FIELDS, TOOL_FIELDS, outline
from ricordo.features.agent_files.local_ids import LocalIds
from ricordo.features.agent_files.memory import own_blocks
from ricordo.features.agent_files.service import AgentImport, ImportOptions
from ricordo.features.files import queries as files
from ricordo.features.templates import queries
from ricordo.features.templates.models import TemplateAgentsRequest
from ricordo.features.templates.queries import Template, TemplateVersion
from ricordo.offload import SMALL, offload
from ricordo.runtime import Runtime
from ricordo.storage import agent_access, agents
from ricordo.storage.engine.store import Transaction

# In the settings of an agent: the template and the version that it was made from, with its variables.
MARK = "template"
_NAME = re.compile(r"\w(?:[\w .-]{0,98}\w)?")
_UNFIT = re.compile(r"[^\w.-]+")


async def read(
    runtime: Runtime, scope: Scope, content: Any, options: ImportOptions
) -> tuple[AgentImport, ModelInfo]:
    """Check an agent file as an import does, before anything is stored; return it with its model. Raises NotFound, Invalid."""
    file = await offload(lambda: agent_files.read(runtime, content, options), SMALL + 1)
    if (count := len(file.specs)) != 1:
        raise Invalid(
            f"A template holds one agent, and this file holds {count}. Make a file and a template of each."
        )
    spec, info = await prepare(runtime, scope, file.specs[0])
    return replace(file, specs=[spec]), info


def take_in(
    tx: Transaction, context: RequestContext, file: AgentImport, *, overrides: bool
) -> Json:
    """Store the tools and folders of a file; return what a template keeps of it. Raises Conflict, Forbidden, Invalid."""
    chain = Chain(new_id("chain"), context.scope.organization_id, "agent", "")
    require_told_apart(
        [new_block(tx, context.scope, block, chain) for block in file.specs[0].blocks]
    )
    made = agent_files.insert_shared(tx, context, file, overrides=overrides)
    (agent,) = file.content["agents"]
    return _kept(file.content, made.known(agent.get("folder_ids") or agent.get("source_ids") or []))


def snapshot(tx: Transaction, context: RequestContext, agent_id: str) -> Json:
    """Return the agent as a content: without what was said, archives, and anything that is a user's. Raises NotFound."""
    state = agents.load_whole(tx, context.scope, agent_id)
    of_agent = files.folders_of_agent(tx, Scope(context.scope.organization_id), agent_id)
    folders = [one.id for one in of_agent if one.user_id is None]
    return _kept(
        outline(context, LocalIds(), state, own_blocks(tx, context.scope, agent_id)), folders
    )


def _kept(file: Json, folder_ids: Sequence[str]) -> Json:
    """Return what a template keeps of a file: no message, no secret, and folders by their ids on this server."""
    agent = file["agents"][0]
    listed = list(agent.get("block_ids") or ())
    names = [*(agent.get("secrets") or ()), *(agent.get("tool_exec_environment_variables") or ())]
    linked = {
        "tool_ids": agent.get("tool_ids") or [],
        "block_ids": listed,
        "folder_ids": list(folder_ids),
    }
    own = [one for one in file.get("blocks") or () if one["id"] in listed]
    return {
        "agents": [{**_given(agent, AGENT_FIELDS), **linked, "secrets": dict.fromkeys(names, "")}],
        "blocks": [redact_values(_given(one, BLOCK_FIELDS)) for one in own],
        "tools": [_given(one, TOOL_FIELDS) for one in file.get("tools") or ()],
    }


def _given(item: Json, names: Sequence[str]) -> Json:
    return {"id": item["id"], **{name: item[name] for name in names if item.get(name) is not None}}


def create(
    tx: Transaction, context: RequestContext, name: str | None, content: Json, agent_id: str | None
) -> Template:
    """Store a template with its first version; it follows the agent, if one is given. Raises Invalid, Conflict."""
    organization_id, by, now = context.scope.organization_id, context.scope.user_id, tx.clock.now()
    name = _free_name(tx, context.scope, name, str(content["agents"][0]["name"]))
    template = Template(
        new_id("template"), organization_id, name, None, agent_id, 0, by, by, now, now
    )
    queries.insert_template(tx, template)
    return save(tx, context, template, content, "Made")


def _free_name(tx: Transaction, scope: Scope, name: str | None, of_agent: str) -> str:
    if name is not None:
        if not _NAME.fullmatch(name):
            told = "Use letters, digits, spaces, and . _ - between them, 100 at most."
            raise Invalid(f'A template cannot be named "{name[:100]}". {told}')
        if queries.find(tx, scope, name):
            raise Conflict(
                f'A template named "{name}" already exists. Choose another name, or save that one anew.'
            )
        return name
    base = _UNFIT.sub("-", of_agent)[:80].strip("-.") or "template"
    free, number = base, 1
    while queries.find(tx, scope, free):
        number += 1
        free = f"{base}-{number}"
    return free


def current(tx: Transaction, context: RequestContext, template: Template) -> Json:
    """Return what the template holds now: the agent that it follows, as long as that is there, else what was put into it."""
    if template.agent_id and agents.find(tx, Scope(template.organization_id), template.agent_id):
        return snapshot(tx, context, template.agent_id)
    return queries.read_content(tx, template.id)


def save(
    tx: Transaction, context: RequestContext, template: Template, content: Json, message: str | None
) -> Template:
    """Save a content as the next version, and as what the template holds now."""
    number, now, id = template.version + 1, tx.clock.now(), new_id("template")
    version = TemplateVersion(
        id, template.id, number, message, _digest(content), context.scope.user_id, now
    )
    queries.insert_version(tx, version, content)
    return _changed(tx, context, replace(template, version=number), content)


def put(
    tx: Transaction,
    context: RequestContext,
    template: Template,
    content: Json,
    *,
    saves: str | None,
) -> Template:
    """Put another content into the template, which follows no agent then; with the message `saves`, save what is new first."""
    if saves:
        held = current(tx, context, template)
        if not queries.is_saved(tx, template.id, _digest(held)):
            template = save(tx, context, template, held, saves)
    return _changed(tx, context, replace(template, agent_id=None), content)


def _changed(
    tx: Transaction, context: RequestContext, template: Template, content: Json
) -> Template:
    told = content["agents"][0].get("description")
    template = replace(
        template, description=told, updated_by=context.scope.user_id, updated_at=tx.clock.now()
    )
    queries.update_template(tx, template, content)
    return template


def _digest(content: Json) -> str:
    return sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def version_of(tx: Transaction, template: Template, version: str) -> tuple[TemplateVersion, Json]:
    """Return the saved version with this number, or "latest". Raises NotFound."""
    number = (
        template.version
        if version == "latest"
        else int(version)
        if re.fullmatch(r"[1-9]\d{0,8}", version)
        else -1
    )
    if found := queries.read_version(tx, template.id, number):
        return found
    known = f'Its versions are 1 to {template.version}; "latest" is the newest of them.'
    raise NotFound(f'The template "{template.name}" has no version "{version[:20]}". {known}')


async def make_agent(
    context: RequestContext, name: str, version: str, asked: TemplateAgentsRequest
) -> tuple[str, str]:
    """Make an agent from a version of the template; return its id and that of its deployment. Raises NotFound, Invalid."""

    def find(tx: Transaction) -> tuple[Template, TemplateVersion | None, Json]:
        template = queries.get(tx, context.scope, name)
        if version in ("current", "dev"):
            return template, None, current(tx, context, template)
        return (template, *version_of(tx, template, version))

    template, saved, content = await context.store.read(find)
    variables, sequence = asked.memory_variables, asked.initial_message_sequence
    options = ImportOptions(
        suffix="", overrides_tools=False, strips_messages=True, secrets=asked.tool_variables
    )
    file, info = await read(context.runtime, context.scope, content, options)
    (spec,), agent = file.specs, content["agents"][0]
    require_variables(spec.blocks, variables, "template")
    mark = {
        "template_id": saved.id if saved else template.id,
        "base_template_id": template.id,
        "deployment_id": new_id("deployment"),
        "entity_id": agent["id"],
        "version": saved.number if saved else 0,
        "variables": variables,
    }
    spec = replace(
        spec,
        name=asked.agent_name,
        blocks=fill_variables(spec.blocks, variables),
        beginning=None if sequence is None else tuple(map(new_message, sequence)),
        tags=(*spec.tags, *asked.tags),
        settings={**spec.settings, MARK: mark},
    )

    def insert(tx: Transaction) -> str:
        now = queries.get(tx, context.scope, name, locks=True)
        # A migration that begins later finds the agent, and the newest version is not an old one by then.
        if now.id != template.id or (version == "latest" and now.version != template.version):
            raise Conflict(f'The template "{name}" was saved a moment ago. Send the request again.')
        folders = files.folders_by_ids(tx, context.scope, agent["folder_ids"])
        made = replace(file, specs=[replace(spec, folder_ids=tuple(one.id for one in folders))])
        (agent_id,) = agent_files.insert(tx, context, made, options, [info])
        if asked.identity_ids:
            agent_access.keep_to(tx, context.scope, agent_id, asked.identity_ids)
        return agent_id

    return await context.store.write(insert), str(mark["deployment_id"])
