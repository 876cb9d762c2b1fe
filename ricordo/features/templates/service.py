"""Templates: made of an agent or a file, saved as versions, rolled back; and agents made from a version.

A template follows the agent that it was made of: what it holds now is that agent as it is, until the agent is deleted, or an update
or a rollback puts something else in its place. Contents are agent files of settings, prompt, tools and blocks alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import orjson

from ricordo.agents.lifecycle import AgentSpec, BlockSpec, new_block, prepare, require_told_apart
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
from ricordo.features.agent_files.export import AGENT_FIELDS, BLOCK_FIELDS, TOOL_FIELDS, LocalIds, outline
from ricordo.features.agent_files.service import AgentImport, ImportOptions
from ricordo.features.files import queries as files
from ricordo.features.templates import queries
from ricordo.features.templates.models import TemplateAgentsRequest
from ricordo.features.templates.queries import CURRENT, Template, TemplateVersion
from ricordo.offload import SMALL, offload
from ricordo.runtime import Runtime
from ricordo.storage import agent_access, agents, blocks, users
from ricordo.storage.engine.store import Transaction

# In the settings of an agent: the template and the version that it was made from, with its variables.
MARK = "template"
_NAME = re.compile(r"\w(?:[\w .-]{0,98}\w)?")
_UNFIT = re.compile(r"[^\w.-]+")
_VARIABLE = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class ReadFile:
    """An agent file that was checked, with what its agent is made of."""

    file: AgentImport
    spec: AgentSpec
    info: ModelInfo


async def read(runtime: Runtime, scope: Scope, content: Any, options: ImportOptions) -> ReadFile:
    """Check an agent file as an import does, before anything is stored. Raises NotFound, Invalid."""

    def check() -> AgentImport:
        file = agent_files.read(runtime, content, options)
        agent_files.require_readable(file.content)
        return file

    file = await offload(check, SMALL + 1)
    if (count := len(file.specs)) != 1:
        raise Invalid(f"A template holds one agent, and this file holds {count}. Make a file and a template of each.")
    spec, info = await prepare(runtime, scope, file.specs[0])
    return ReadFile(replace(file, specs=[spec]), spec, info)


def take_in(tx: Transaction, here: RequestContext, read: ReadFile, *, overrides: bool) -> Json:
    """Store the tools and folders of a file; return what a template keeps of it. Raises Conflict, Forbidden, Invalid."""
    chain = Chain(new_id("chain"), here.scope.organization_id, "agent", "")
    require_told_apart([new_block(tx, here.scope, block, chain) for block in read.spec.blocks])
    made = agent_files.insert_shared(tx, here, read.file, overrides=overrides)
    (agent,) = read.file.content["agents"]
    return _kept(read.file.content, made.known(agent.get("folder_ids") or agent.get("source_ids") or []))


def snapshot(tx: Transaction, here: RequestContext, agent_id: str) -> Json:
    """Return the agent as a content: without what was said, archives, and anything that is a user's. Raises NotFound."""
    everything = Scope(here.scope.organization_id)
    state = agents.load_whole(tx, here.scope, agent_id)
    # Those of a user may stand in the place of the agent's own.
    own = blocks.by_ids(tx, everything, [block.id for block in blocks.of_agent(tx, agent_id)])
    folders = [one.id for one in files.folders_of_agent(tx, everything, agent_id) if one.user_id is None]
    return _kept(outline(here, LocalIds(), replace(state, blocks=tuple(own))), folders)


def _kept(file: Json, folder_ids: Sequence[str]) -> Json:
    """Return what a template keeps of a file: no message, no secret, and folders by their ids on this server."""
    agent = file["agents"][0]
    listed = agent.get("block_ids") or ()
    made = {
        **_given(agent, AGENT_FIELDS),
        "id": agent["id"],
        "tool_ids": agent.get("tool_ids") or [],
        "block_ids": list(listed),
        "folder_ids": list(folder_ids),
        "secrets": dict.fromkeys(
            [*(agent.get("secrets") or ()), *(agent.get("tool_exec_environment_variables") or ())], ""
        ),
    }
    own = [one for one in file.get("blocks") or () if one["id"] in listed]
    return {
        "agents": [made],
        "blocks": [{"id": one["id"], **redact_values(_given(one, BLOCK_FIELDS))} for one in own],
        "tools": [{"id": one["id"], **_given(one, TOOL_FIELDS)} for one in file.get("tools") or ()],
    }


def _given(item: Json, names: Sequence[str]) -> Json:
    return {name: item[name] for name in names if item.get(name) is not None}


def create(tx: Transaction, here: RequestContext, name: str | None, content: Json, agent_id: str | None) -> Template:
    """Store a template with its first version; it follows the agent, if one is given. Raises Invalid, Conflict."""
    scope, now = here.scope, tx.clock.now()
    template = Template(
        id=new_id("template"),
        organization_id=scope.organization_id,
        name=_free_name(tx, scope, name, str(content["agents"][0]["name"])),
        description=content["agents"][0].get("description"),
        agent_id=agent_id,
        version=CURRENT,
        created_by=scope.user_id,
        updated_by=scope.user_id,
        created_at=now,
        updated_at=now,
    )
    queries.insert_template(tx, template)
    queries.insert_version(tx, _new_version(tx, here, template, content, None), content)
    return _save(tx, here, template, content, "Made")


def _free_name(tx: Transaction, scope: Scope, name: str | None, of_agent: str) -> str:
    if name is not None:
        if not _NAME.fullmatch(name):
            raise Invalid(
                f'A template cannot be named "{name[:100]}". Use letters, digits, spaces, and . _ - between them, 100 at most.'
            )
        if queries.find(tx, scope, name):
            raise Conflict(f'There is a template named "{name}" already. Choose another name, or save that one anew.')
        return name
    base = _UNFIT.sub("-", of_agent)[:80].strip("-.") or "template"
    free, number = base, 1
    while queries.find(tx, scope, free):
        number += 1
        free = f"{base}-{number}"
    return free


def current(tx: Transaction, here: RequestContext, template: Template) -> Json:
    """Return what the template holds now: the agent that it follows, as long as that is there, else what was put into it."""
    if template.agent_id and agents.find(tx, Scope(template.organization_id), template.agent_id):
        return snapshot(tx, here, template.agent_id)
    return queries.read_current(tx, template.id)


def save(tx: Transaction, here: RequestContext, template: Template, message: str | None) -> Template:
    """Save what the template holds now as its next version."""
    return _save(tx, here, template, current(tx, here, template), message)


def put(tx: Transaction, here: RequestContext, template: Template, content: Json, *, saves: str | None) -> Template:
    """Put another content into the template, which follows no agent then; with the message `saves`, save what is new first."""
    if saves:
        held = current(tx, here, template)
        if not queries.is_saved(tx, template.id, _digest(held)):
            template = _save(tx, here, template, held, saves)
    queries.replace_current(tx, template.id, content)
    return _changed(tx, here, replace(template, agent_id=None), content)


def version_of(tx: Transaction, template: Template, version: str) -> tuple[TemplateVersion, Json]:
    """Return the saved version with this number, or "latest". Raises NotFound."""
    number = template.version if version == "latest" else int(version) if re.fullmatch(r"[1-9]\d{0,8}", version) else -1
    if found := queries.read_version(tx, template.id, number):
        return found
    raise NotFound(
        f'The template "{template.name}" has no version "{version[:20]}". Its versions are 1 to {template.version}; '
        '"latest" is the newest of them.'
    )


def _save(tx: Transaction, here: RequestContext, template: Template, content: Json, message: str | None) -> Template:
    template = replace(template, version=template.version + 1)
    queries.insert_version(tx, _new_version(tx, here, template, content, message), content)
    queries.replace_current(tx, template.id, content)
    return _changed(tx, here, template, content)


def _new_version(
    tx: Transaction, here: RequestContext, template: Template, content: Json, message: str | None
) -> TemplateVersion:
    id, now = new_id("template"), tx.clock.now()
    return TemplateVersion(id, template.id, template.version, message, _digest(content), here.scope.user_id, now)


def _digest(content: Json) -> str:
    return sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _changed(tx: Transaction, here: RequestContext, template: Template, content: Json) -> Template:
    told = content["agents"][0].get("description")
    template = replace(template, description=told, updated_by=here.scope.user_id, updated_at=tx.clock.now())
    queries.update_template(tx, template)
    return template


async def make_agent(here: RequestContext, name: str, version: str, asked: TemplateAgentsRequest) -> tuple[str, str]:
    """Make an agent from a version of the template; return its id and that of its deployment. Raises NotFound, Invalid."""

    def find(tx: Transaction) -> tuple[Template, TemplateVersion | None, Json]:
        template = queries.get(tx, here.scope, name)
        if version in ("current", "dev"):
            return template, None, current(tx, here, template)
        return (template, *version_of(tx, template, version))

    template, saved, content = await here.store.read(find)
    read_file = await read(here.runtime, here.scope, content, _options(asked.tool_variables))
    sequence = asked.initial_message_sequence
    deployment_id = new_id("deployment")
    mark = {
        "template_id": saved.id if saved else template.id,
        "base_template_id": template.id,
        "deployment_id": deployment_id,
        "entity_id": content["agents"][0]["id"],
        "version": saved.number if saved else CURRENT,
        "variables": asked.memory_variables,
    }
    spec = read_file.spec
    _require_known(spec.blocks, asked.memory_variables)
    spec = replace(
        spec,
        name=asked.agent_name,
        blocks=tuple(filled(block, asked.memory_variables) for block in spec.blocks),
        beginning=None if sequence is None else tuple(map(new_message, sequence)),
        tags=tuple(dict.fromkeys([*spec.tags, *asked.tags])),
        settings={**spec.settings, MARK: mark},
    )
    made = replace(read_file, file=replace(read_file.file, specs=[spec]))

    def insert(tx: Transaction) -> str:
        # A migration that begins later finds the agent, and one that has begun does not miss it.
        if queries.get_locked(tx, here.scope, name).version != template.version:
            raise Conflict(f'The template "{name}" was saved a moment ago. Send the request again.')
        return _insert(tx, here, made, asked)

    return await here.store.write(insert), deployment_id


def _options(secrets: Mapping[str, str]) -> ImportOptions:
    return ImportOptions(suffix="", overrides_tools=False, strips_messages=True, secrets=secrets)


def _insert(tx: Transaction, here: RequestContext, read: ReadFile, asked: TemplateAgentsRequest) -> str:
    (spec,) = read.file.specs
    kept = read.file.content["agents"][0].get("folder_ids") or ()
    file = replace(read.file, specs=[replace(spec, folder_ids=present_folders(tx, here.scope, kept))])
    (agent_id,) = agent_files.insert(tx, here, file, _options(asked.tool_variables), [read.info])
    if asked.identity_ids:
        users.require_all_users(here.scope)
    for identity_id in dict.fromkeys(asked.identity_ids):
        user = users.require(tx, here.scope, users.user_id_of(identity_id))
        agent_access.attach_user(tx, agent_id, user.id)
    return agent_id


def present_folders(tx: Transaction, scope: Scope, ids: Sequence[str]) -> tuple[str, ...]:
    """Return those of the folders that are there still."""
    return tuple(one.id for one in files.folders_by_ids(tx, scope, ids)) if ids else ()


def filled(block: BlockSpec, variables: Mapping[str, str]) -> BlockSpec:
    """Return the block with the values of variables in the place of `{{name}}`; one without a value stays as it is."""
    return replace(block, value=_VARIABLE.sub(lambda found: variables.get(found[1], found[0]), block.value))


def _require_known(held: Sequence[BlockSpec], variables: Mapping[str, str]) -> None:
    known = {name for block in held for name in _VARIABLE.findall(block.value)}
    if unknown := sorted(variables.keys() - known):
        listed = ", ".join(sorted(known)) or "none"
        raise Invalid(f'No block of the template has the variable "{unknown[0][:100]}". Its variables are: {listed}.')
