"""Templates: create them, save versions, roll back, and create agents from a version.

A template follows its source agent: its content is that agent's present state. The template stops
following when the agent is deleted, or when an update or a rollback replaces the content. Contents
are agent files that have only settings, prompt, tools, blocks and ids of folders.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from ricordo.agents.call_context import CallContext
from ricordo.agents.lifecycle import new_block, prepare, require_distinct_labels
from ricordo.agents.memory_variables import fill_variables, require_variables
from ricordo.domain.block import Chain
from ricordo.domain.ids import new_id
from ricordo.domain.model import ModelInfo
from ricordo.domain.redaction import redact_values
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.documents.agent_files import service as agent_files
from ricordo.features.documents.agent_files.export import (
    AGENT_FIELDS,
    BLOCK_FIELDS,
    EGRESS,
    TOOL_FIELDS,
    outline,
)
from ricordo.features.documents.agent_files.local_ids import LocalIds
from ricordo.features.documents.agent_files.memory import own_blocks
from ricordo.features.documents.agent_files.service import AgentImport
from ricordo.features.documents.agent_files.specs import ImportOptions
from ricordo.features.documents.templates import queries
from ricordo.features.documents.templates.models import TemplateAgentsRequest
from ricordo.features.documents.templates.queries import Template, TemplateVersion
from ricordo.features.files.folders import queries as files
from ricordo.offload import SMALL, offload
from ricordo.runtime import Runtime
from ricordo.storage import agent_access, agents, users
from ricordo.storage.engine.store import Transaction

# The agent setting with the template and version from which the agent was created, and its
# variables.
MARK = "template"
_NAME = re.compile(r"\w(?:[\w .-]{0,98}\w)?")
_UNFIT = re.compile(r"[^\w.-]+")


async def read(
    runtime: Runtime, scope: Scope, content: Any, options: ImportOptions
) -> tuple[AgentImport, ModelInfo]:
    """Check an agent file as an import does; return it with its model.

    Nothing is stored.

    Args:
        runtime: The running server.
        scope: The caller, whose organization chooses the models.
        content: The decoded JSON of an agent file, or the content of a template; it is not trusted.
        options: The options of the import, such as another model.

    Raises:
        NotFound: if a model is unknown.
        Invalid: if it is no agent file, or has more or fewer than one agent.
    """
    file = await offload(lambda: agent_files.read(runtime, content, options), SMALL + 1)
    if (count := len(file.specs)) != 1:
        raise Invalid(
            f"A template holds one agent, but this file holds {count}. Create a file and a "
            "template for each."
        )
    spec, info = await prepare(runtime, scope, file.specs[0])
    return replace(file, specs=[spec]), info


def store_file(
    tx: Transaction, context: CallContext, file: AgentImport, *, overrides: bool
) -> Json:
    """Store the tools and folders of a file, and return the file as content for a template.

    Args:
        tx: The transaction.
        context: The caller and the server.
        file: The file from `read`, with one agent.
        overrides: Replace custom tools of the same name that have another source.

    Raises:
        Forbidden: if a tool has to be stored and the caller lacks the scope tools:write.
        Conflict, Invalid: if a block, a tool or a folder of the file cannot be stored.
    """
    chain = Chain(new_id("chain"), context.scope.organization_id, "agent", "")
    require_distinct_labels(
        [new_block(tx, context.scope, block, chain) for block in file.specs[0].blocks]
    )
    imported = agent_files.insert_shared(tx, context, file, overrides=overrides)
    (agent,) = file.content["agents"]
    folder_ids = agent.get("folder_ids") or agent.get("source_ids") or []
    return _content_of(file.content, imported.translate(folder_ids))


def snapshot(tx: Transaction, context: CallContext, agent_id: str) -> Json:
    """Return the agent as content for a template.

    Messages, archives, and all data of users are left out.

    Args:
        tx: The transaction.
        context: The caller and the server.
        agent_id: The agent.

    Raises:
        NotFound: if the caller may not use the agent.
    """
    state = agents.load_whole(tx, context.scope, agent_id)
    all_folders = files.folders_of_agent(tx, Scope(context.scope.organization_id), agent_id)
    folder_ids = [folder.id for folder in all_folders if folder.user_id is None]
    return _content_of(
        outline(context, LocalIds(), state, own_blocks(tx, context.scope, agent_id)), folder_ids
    )


def _content_of(file: Json, folder_ids: Sequence[str]) -> Json:
    """Return the content for a template from a file.

    Messages and the values of secrets are left out. Folders have the ids of this server.
    """
    agent = file["agents"][0]
    block_ids = list(agent.get("block_ids") or ())
    names = [*(agent.get("secrets") or ()), *(agent.get("tool_exec_environment_variables") or ())]
    links = {
        "tool_ids": agent.get("tool_ids") or [],
        "block_ids": block_ids,
        "folder_ids": list(folder_ids),
    }
    blocks = [block for block in file.get("blocks") or () if block["id"] in block_ids]
    return {
        "agents": [
            {**_pick_fields(agent, AGENT_FIELDS), **links, "secrets": dict.fromkeys(names, "")}
        ],
        "blocks": [redact_values(_pick_fields(block, (*BLOCK_FIELDS, EGRESS))) for block in blocks],
        "tools": [_pick_fields(tool, TOOL_FIELDS) for tool in file.get("tools") or ()],
    }


def _pick_fields(fields: Json, names: Sequence[str]) -> Json:
    return {
        "id": fields["id"],
        **{name: fields[name] for name in names if fields.get(name) is not None},
    }


def create(
    tx: Transaction, context: CallContext, name: str | None, content: Json, agent_id: str | None
) -> Template:
    """Store a template with its first version.

    Args:
        tx: The transaction.
        context: The caller and the server.
        name: The name; None for a free name made from that of the agent in `content`.
        content: The content of the first version, from `snapshot` or `store_file`.
        agent_id: The agent that the template follows, or None.

    Raises:
        Invalid: if the name has characters that are not allowed, or more than 100.
        Conflict: if the name is taken.
    """
    now = tx.clock.now()
    name = _free_name(tx, context.scope, name, str(content["agents"][0]["name"]))
    template = Template(
        id=new_id("template"),
        organization_id=context.scope.organization_id,
        name=name,
        description=None,
        agent_id=agent_id,
        created_by=context.scope.user_id,
        updated_by=context.scope.user_id,
        created_at=now,
        updated_at=now,
    )
    queries.insert_template(tx, template)
    return save(tx, context, template, content, "Made")


def _free_name(tx: Transaction, scope: Scope, name: str | None, agent_name: str) -> str:
    if name is not None:
        if not _NAME.fullmatch(name):
            raise Invalid(
                f'A template cannot be named "{name[:100]}". Use letters, digits, spaces, and '
                ". _ - between them, 100 at most."
            )
        if queries.find(tx, scope, name):
            raise Conflict(
                f'A template named "{name}" already exists. Choose another name, or save a new '
                "version of it."
            )
        return name
    base = _UNFIT.sub("-", agent_name)[:80].strip("-.") or "template"
    free_name = base
    number = 1
    while queries.find(tx, scope, free_name):
        number += 1
        free_name = f"{base}-{number}"
    return free_name


def current(tx: Transaction, context: CallContext, template: Template) -> Json:
    """Return the template's present content.

    While the agent that it follows exists, this is the agent's content. Otherwise it is the content
    that was last written.

    Args:
        tx: The transaction, or a read.
        context: The caller and the server.
        template: The stored template.

    Raises:
        NotFound: The caller may not use the agent that the template follows.
    """
    if template.agent_id and agents.find(tx, Scope(template.organization_id), template.agent_id):
        return snapshot(tx, context, template.agent_id)
    return queries.read_content(tx, template.id)


def save(
    tx: Transaction, context: CallContext, template: Template, content: Json, message: str | None
) -> Template:
    """Save this content as the next version, and as the present content.

    Args:
        tx: The transaction.
        context: The caller, who becomes the author, and the server.
        template: The template before the change, read in this transaction.
        content: The content of the version.
        message: A note on the version, shown in its list, or None.

    Returns:
        The template with the new version's number.
    """
    version = TemplateVersion(
        id=new_id("template"),
        template_id=template.id,
        number=template.version + 1,
        message=message,
        digest=_digest(content),
        created_by=context.scope.user_id,
        created_at=tx.clock.now(),
    )
    queries.insert_version(tx, version, content)
    return _update(tx, context, replace(template, version=version.number), content)


def put(
    tx: Transaction,
    context: CallContext,
    template: Template,
    content: Json,
    *,
    saves: str | None,
) -> Template:
    """Replace the content of a template; it then follows no agent.

    Args:
        tx: The transaction.
        context: The caller and the server.
        template: The template before the change, read in this transaction.
        content: The new content. It is not saved as a version.
        saves: The present content is first saved as a version with this message, unless a version
            has this content already. With None or "", unsaved content is lost.
    """
    if saves:
        present = current(tx, context, template)
        if not queries.is_saved(tx, template.id, _digest(present)):
            template = save(tx, context, template, present, saves)
    return _update(tx, context, replace(template, agent_id=None), content)


def _update(tx: Transaction, context: CallContext, template: Template, content: Json) -> Template:
    description = content["agents"][0].get("description")
    template = replace(
        template,
        description=description,
        updated_by=context.scope.user_id,
        updated_at=tx.clock.now(),
    )
    queries.update_template(tx, template, content)
    return template


def _digest(content: Json) -> str:
    return sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def version_of(tx: Transaction, template: Template, version: str) -> tuple[TemplateVersion, Json]:
    """Return the saved version and its content.

    Args:
        tx: The transaction.
        template: The template.
        version: A number in digits, or "latest".

    Raises:
        NotFound: if there is no such version.
    """
    number = None
    if version == "latest":
        number = template.version
    elif re.fullmatch(r"[1-9]\d{0,8}", version):
        number = int(version)
    if number is None:
        saved = None
    else:
        saved = queries.read_version(tx, template.id, number)
    if saved is None:
        raise NotFound(
            f'The template "{template.name}" has no version "{version[:20]}". Its versions are 1 '
            f'to {template.version}; "latest" is the newest of them.'
        )
    return saved


async def make_agent(
    context: CallContext, name: str, version: str, body: TemplateAgentsRequest
) -> tuple[str, str]:
    """Create an agent from a version; return its id and its deployment's id.

    Args:
        context: The caller and the server.
        name: The template's name.
        version: A version's number or "latest"; "current" or "dev" for the present content.
        body: The agent's name, users, tags, and the values of its variables and secrets.

    Raises:
        NotFound: if the template, the version or a model is missing.
        Invalid: if a variable has no value, or the content cannot be used.
        Conflict: if, during the call, the template was replaced, or saved while "latest" is asked
            for.
    """

    def find(tx: Transaction) -> tuple[Template, TemplateVersion | None, Json]:
        template = queries.get(tx, context.scope, name)
        if version in ("current", "dev"):
            return template, None, current(tx, context, template)
        return (template, *version_of(tx, template, version))

    template, saved, content = await context.store.read(find)
    variables = body.memory_variables
    options = ImportOptions(
        suffix="", overrides_tools=False, strips_messages=True, secrets=body.tool_variables
    )
    file, info = await read(context.runtime, context.scope, content, options)
    (spec,) = file.specs
    agent = content["agents"][0]
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
        name=body.agent_name,
        blocks=fill_variables(spec.blocks, variables),
        beginning=body.beginning,
        tags=(*spec.tags, *body.tags),
        settings={**spec.settings, MARK: mark},
    )

    def insert(tx: Transaction) -> str:
        stored = queries.get(tx, context.scope, name, locks=True)
        # Lock the template, so that a later migration finds the new agent, and "latest" stays the
        # newest version.
        if stored.id != template.id or (version == "latest" and stored.version != template.version):
            raise Conflict(
                f'The template "{name}" was changed by another request. Send yours again.'
            )
        folders = files.folders_by_ids(tx, context.scope, agent["folder_ids"])
        folder_ids = tuple(folder.id for folder in folders)
        linked_file = replace(file, specs=[replace(spec, folder_ids=folder_ids)])
        (agent_id,) = agent_files.insert(tx, context, linked_file, options, [info])
        if body.identity_ids:
            user_ids = list(map(users.user_id_of, body.identity_ids))
            agent_access.keep_to(tx, context.scope, agent_id, user_ids)
        return agent_id

    return await context.store.write(insert), str(mark["deployment_id"])
