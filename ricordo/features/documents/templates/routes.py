"""Routes of templates, and of agents created from them."""

from functools import partial

from fastapi import Response

from ricordo.api.answers import answer
from ricordo.api.call import RequestContext
from ricordo.api.models.warnings import warn
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.features.documents.agent_files.specs import ImportOptions
from ricordo.features.documents.templates import models, queries, service
from ricordo.features.documents.templates.jobs import job_of
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction

_OF_FILE = "Notes on parts of the agent file that were mended or left out."
router = Routes(prefix="/v1/templates", tags=["templates"], scope="agents")


@router.post("", response_model=models.TemplateResponse)
async def create(context: RequestContext, body: models.TemplateRequest) -> Json:
    """Create a template from an agent or from an agent file.

    A template from an agent follows the agent from then on. Its first version is saved at the same
    time.
    """
    name = body.name
    if isinstance(body, models.AgentTemplateRequest):
        agent_id = body.agent_id
        of_agent = partial(service.snapshot, context=context, agent_id=agent_id)
        template = await context.store.write(
            lambda tx: service.create(tx, context, name, of_agent(tx), agent_id)
        )
    else:
        file, _ = await service.read(
            context.runtime, context.scope, body.agent_file, ImportOptions(suffix="")
        )
        of_file = partial(
            service.store_file, context=context, file=file, overrides=body.update_existing_tools
        )
        template = await context.store.write(
            lambda tx: service.create(tx, context, name, of_file(tx), None)
        )
        warn(file.note_lines(), _OF_FILE)
    return models.TemplateResponse.from_template(template)


@router.patch("/{template_name}", response_model=models.TemplateChangeResponse)
async def update(
    context: RequestContext, template_name: str, body: models.TemplateUpdateRequest
) -> Json:
    """Replace the content of a template by that of an agent file.

    Saved versions stay. From then on, the template follows no agent.
    """
    file, _ = await service.read(
        context.runtime, context.scope, body.agent_file_json, ImportOptions(suffix="")
    )

    def change(tx: Transaction) -> queries.Template:
        template = queries.get(tx, context.scope, template_name, locks=True)
        content = service.store_file(tx, context, file, overrides=body.update_existing_tools)
        if body.save_existing_changes:
            saves = "Saved before an update"
        else:
            saves = None
        return service.put(tx, context, template, content, saves=saves)

    updated = await context.store.write(change)
    warn(file.note_lines(), _OF_FILE)
    message = (
        f"{updated.name} now has the content of the agent file; its newest saved version is "
        f"{updated.version}. It follows no agent."
    )
    return models.TemplateChangeResponse.of(None, message=message)


@router.delete("/{template_name}", response_model=dict[str, bool])
def delete(tx: Transaction, context: RequestContext, template_name: str) -> Json:
    """Delete a template with all its versions. Agents that were created from it stay."""
    queries.delete_template(tx, queries.get(tx, context.scope, template_name, locks=True).id)
    return {"success": True}


@router.post("/{template_name}/rollback", response_model=models.TemplateChangeResponse)
def rollback(
    tx: Transaction,
    context: RequestContext,
    template_name: str,
    body: models.TemplateRollbackRequest,
) -> Json:
    """Replace the content of a template by a saved version.

    Unsaved changes are first saved as a version.
    """
    if body.version in ("current", "dev"):
        raise Invalid(
            f'A template already has the content "{body.version}". Name a saved version instead.'
        )
    template = queries.get(tx, context.scope, template_name, locks=True)
    version, content = service.version_of(tx, template, body.version)
    restored = service.put(
        tx, context, template, content, saves=f"Saved before a rollback to {version.number}"
    )
    message = (
        f"{restored.name} holds version {version.number} again; its newest saved version is "
        f"{restored.version}. It follows no agent."
    )
    return models.TemplateChangeResponse.of(None, message=message)


@router.post("/{template_name}/save", response_model=models.TemplateResponse)
def save(
    tx: Transaction, context: RequestContext, template_name: str, body: models.TemplateSaveRequest
) -> Response:
    """Save the template's content as its next version.

    With `migrate_agents`, the header `x-job-id` names the job that brings the template's agents to
    the version.
    """
    template = queries.get(tx, context.scope, template_name, locks=True)
    template = service.save(
        tx, context, template, service.current(tx, context, template), body.message
    )
    response = answer(models.TemplateResponse.from_template(template))
    if body.migrate_agents:
        jobs.add(tx, job := job_of(template, context.scope.actor, body))
        response.headers["x-job-id"] = job.id
    return response


@router.post("/{template_version}/agents", response_model=models.TemplateAgentsResponse)
async def create_agents(
    context: RequestContext, template_version: str, body: models.TemplateAgentsRequest
) -> Json:
    """Create an agent from a version.

    A version is named `name:2`, `name:latest`, or `name:current` for unsaved content.
    """
    name, _, version = template_version.rpartition(":")
    if not name:
        raise Invalid(f'Name the version too, as in "{template_version[:100]}:latest".')
    agent_id, deployment_id = await service.make_agent(context, name, version, body)
    return models.TemplateAgentsResponse.of(None, agent_ids=[agent_id], deployment_id=deployment_id)
