"""Templates over HTTP: made, changed, saved, rolled back, deleted; and agents made from them."""

from fastapi import Response

from ricordo.api.call import Here, answer
from ricordo.api.models.base import Json
from ricordo.api.routing import Routes
from ricordo.errors import Invalid
from ricordo.features.agent_files.service import ImportOptions
from ricordo.features.templates import queries, service
from ricordo.features.templates.jobs import job_of
from ricordo.features.templates.models import (
    TemplateAgentsRequest,
    TemplateAgentsResponse,
    TemplateChangeResponse,
    TemplateDeletedResponse,
    TemplateRequest,
    TemplateResponse,
    TemplateRollbackRequest,
    TemplateSaveRequest,
    TemplateUpdateRequest,
)
from ricordo.storage import agents, jobs
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/templates", tags=["templates"], scope="agents")


@router.post("", response_model=TemplateResponse)
async def create(here: Here, body: TemplateRequest) -> Json:
    """Make a template of an agent, which it follows from then on, or of an agent file. Its first version is saved with it."""
    body.require_source()
    options = ImportOptions(suffix="", overrides_tools=body.update_existing_tools)
    read = (
        await service.read(here.runtime, here.scope, body.agent_file, options) if body.agent_file is not None else None
    )

    def make(tx: Transaction) -> queries.Template:
        if read:
            content = service.take_in(tx, here, read, overrides=body.update_existing_tools)
        else:
            agents.lock(tx, here.scope, body.agent_id or "")
            content = service.snapshot(tx, here, body.agent_id or "")
        return service.create(tx, here, body.name, content, body.agent_id)

    return TemplateResponse.from_template(await here.store.write(make))


@router.patch("/{template_name}", response_model=TemplateChangeResponse)
async def update(here: Here, template_name: str, body: TemplateUpdateRequest) -> Json:
    """Put an agent file in the place of what the template holds now. Saved versions stay; it follows no agent from then on."""
    options = ImportOptions(suffix="", overrides_tools=body.update_existing_tools)
    read = await service.read(here.runtime, here.scope, body.agent_file_json, options)

    def change(tx: Transaction) -> queries.Template:
        template = queries.get_locked(tx, here.scope, template_name)
        content = service.take_in(tx, here, read, overrides=body.update_existing_tools)
        saves = "Saved before an update" if body.save_existing_changes else None
        return service.put(tx, here, template, content, saves=saves)

    made = await here.store.write(change)
    told = f"{made.name} holds the agent file now; its newest saved version is {made.version}. It follows no agent."
    return TemplateChangeResponse.of(None, message=told)


@router.delete("/{template_name}", response_model=TemplateDeletedResponse)
def delete(tx: Transaction, here: Here, template_name: str) -> Json:
    """Delete a template with all its versions. Agents that were made from it stay."""
    queries.delete_template(tx, queries.get_locked(tx, here.scope, template_name).id)
    return TemplateDeletedResponse.of(None)


@router.post("/{template_name}/rollback", response_model=TemplateChangeResponse)
def rollback(tx: Transaction, here: Here, template_name: str, body: TemplateRollbackRequest) -> Json:
    """Put a saved version in the place of what the template holds now; changes that are not saved become a version first."""
    if body.version in ("current", "dev"):
        raise Invalid(
            f'A template cannot go back to "{body.version}", which is what it holds now. Name a saved version.'
        )
    template = queries.get_locked(tx, here.scope, template_name)
    version, content = service.version_of(tx, template, body.version)
    made = service.put(tx, here, template, content, saves=f"Saved before a rollback to {version.number}")
    told = f"{made.name} holds version {version.number} again; its newest saved version is {made.version}. It follows no agent."
    return TemplateChangeResponse.of(None, message=told)


@router.post("/{template_name}/save", response_model=TemplateResponse)
def save(tx: Transaction, here: Here, template_name: str, body: TemplateSaveRequest) -> Response:
    """Save what the template holds now as its next version. The job that brings its agents there is in `x-job-id`."""
    template = service.save(tx, here, queries.get_locked(tx, here.scope, template_name), body.message)
    response = answer(TemplateResponse.from_template(template))
    if body.migrate_agents:
        jobs.add(tx, job := job_of(template, here.scope.actor, body))
        response.headers["x-job-id"] = job.id
    return response


@router.post("/{template_version}/agents", response_model=TemplateAgentsResponse)
async def create_agents(here: Here, template_version: str, body: TemplateAgentsRequest) -> Json:
    """Make an agent from a version, which is named as `name:2`, `name:latest`, or `name:current` for what is not saved yet."""
    name, _, version = template_version.rpartition(":")
    if not name:
        raise Invalid(f'Name the version too, as in "{template_version[:100]}:latest".')
    agent_id, deployment_id = await service.make_agent(here, name, version, body)
    return TemplateAgentsResponse.of(None, agent_ids=[agent_id], deployment_id=deployment_id)
