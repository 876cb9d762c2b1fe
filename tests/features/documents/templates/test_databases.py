"""Queries of templates on both databases: two saves at once, and agents by template."""

from dataclasses import replace

from ricordo.agents.call_context import CallContext
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import Conflict
from ricordo.features.documents.templates import jobs, queries, service
from ricordo.features.documents.templates.models import TemplateAgentsRequest, TemplateSaveRequest
from ricordo.features.documents.templates.queries import Template
from ricordo.features.documents.templates.tables import TABLES
from ricordo.features.files.folders.tables import TABLES as FILES
from ricordo.storage import agents
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import metadata
from tests.conftest import BOTH
from tests.seams.stage import Stage
from tests.seams.stores import overlapped

DATABASES = BOTH
SCOPE = Scope()


async def open_agent(stage: Stage) -> tuple[CallContext, str]:
    tables = [*FILES, *TABLES]
    await stage.store.write(lambda tx: metadata.create_all(tx.connection, tables=tables))
    await stage.runtime.organization_providers.of(LOCAL_ORGANIZATION)
    agent = await stage.agent(("rules", "One."))
    return CallContext(stage.runtime, SCOPE), agent


def make_template(tx: Transaction, context: CallContext, agent: str, name: str | None) -> Template:
    return service.create(tx, context, name, service.snapshot(tx, context, agent), agent)


def save_template(tx: Transaction, context: CallContext, name: str) -> Template:
    template = queries.get(tx, SCOPE, name, locks=True)
    return service.save(tx, context, template, service.current(tx, context, template), None)


async def test_simultaneous_requests_create_one_template_but_two_versions(stage: Stage) -> None:
    context, agent = await open_agent(stage)
    one, two = await overlapped(
        stage.store,
        lambda tx: make_template(tx, context, agent, "T"),
        lambda tx: make_template(tx, context, agent, "T"),
    )
    assert isinstance(one, Template)
    assert isinstance(two, Conflict)

    def save(tx: Transaction) -> int:
        return save_template(tx, context, "T").version

    assert await overlapped(stage.store, save, save) == (2, 3)


async def test_agents_are_listed_by_template_and_migrated_to_its_version(stage: Stage) -> None:
    context, agent = await open_agent(stage)
    template = await stage.store.write(lambda tx: make_template(tx, context, agent, None))
    one, _ = await service.make_agent(context, template.name, "latest", TemplateAgentsRequest())
    other, _ = await service.make_agent(context, template.name, "current", TemplateAgentsRequest())

    async def found(**ids: str) -> list[str]:
        where = agents.is_made_from(**ids)
        listed = await stage.store.read(lambda tx: agents.page(tx, SCOPE, Page(), where))
        return [state.agent.id for state in listed]

    mark = (await stage.state(one)).agent.settings["template"]
    assert await found(base_template_id=template.id) == [other, one]
    assert await found(base_template_id=template.id, template_id=mark["template_id"]) == [one]

    def change(tx: Transaction) -> Job:
        agents.lock(tx, SCOPE, agent)
        agents.update(tx, replace(agents.load(tx, SCOPE, agent).agent, system="Two."))
        newest = save_template(tx, context, template.name)
        options = TemplateSaveRequest(migrate_agents=True)
        return jobs.job_of(newest, SCOPE.actor, options)

    job = await stage.store.write(change)
    for _ in range(2):
        await jobs.migrate(stage.runtime, job, lambda _done, _total: None)
    for id in (one, other):
        assert (await stage.state(id)).agent.system == "Two."
    assert (
        len(
            await found(
                template_id=(await stage.state(one)).agent.settings["template"]["template_id"]
            )
        )
        == 2
    )
