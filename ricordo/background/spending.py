"""Jobs that embed with a provider's model: what they spent goes into the ledger, and a budget lets them wait."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ricordo.agents.budgets import put_off
from ricordo.domain.job import Job
from ricordo.domain.usage import Expense, Usage
from ricordo.llm.embedding.metering import metered
from ricordo.llm.embedding.remote import RemoteEmbedder
from ricordo.runtime import Runtime
from ricordo.search import partitions
from ricordo.storage import usage
from ricordo.storage.store import Transaction


async def waits(runtime: Runtime, job: Job) -> bool:
    """Whether the job was put off to the next day, since it would spend tokens of a budget that is nearly used up."""
    owner_id = job.payload["owner_id"]
    home = await runtime.store.read(lambda tx: partitions.home_of(tx, owner_id))
    handle = runtime.indexing.wanted_model(home.embedding) if home else None
    if handle is None or not isinstance(runtime.models.embedders.get(handle), RemoteEmbedder):
        return False
    return await put_off(runtime, job, _agent_of(job))


@asynccontextmanager
async def noted(runtime: Runtime, job: Job) -> AsyncIterator[None]:
    """Note among the expenses what is embedded inside of the `with`, also where it fails."""
    with metered() as tokens:
        try:
            yield
        finally:
            spent = [
                Expense(job.organization_id, "embedding", handle, Usage(count), _agent_of(job), job.user_id)
                for handle, count in tokens.items()
            ]

            def note(tx: Transaction) -> None:
                for expense in spent:
                    usage.add_expense(tx, expense)

            if spent:
                await runtime.store.write(note)


def _agent_of(job: Job) -> str | None:
    owner_id: str = job.payload["owner_id"]
    return owner_id if owner_id.startswith("agent-") else None
