"""Background work that waits for the next day when a budget of tokens is nearly spent."""

from dataclasses import replace

from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.runtime import Runtime
from ricordo.storage import agents, jobs
from ricordo.storage.budgets import BACKGROUND_PERCENT, budgets_of
from ricordo.storage.engine.store import Transaction


async def put_off(runtime: Runtime, job: Job, agent_id: str | None = None) -> bool:
    """Postpone background work to the next day if the budget requires it.

    Jobs that spend tokens begin with `if await put_off(runtime, job): return`.

    Args:
        runtime: The server's parts.
        job: The running job. If it is postponed, an equal job with a new id is added for the next
            day (UTC).
        agent_id: The agent whose tokens the job spends; None: only the common budget counts.

    Returns:
        True if the work was postponed.

    Raises:
        NotFound: The agent does not exist.
    """

    def resets_at(tx: Transaction) -> int | None:
        agent = agents.load(tx, Scope(job.organization_id), agent_id).agent if agent_id else None
        budgets = budgets_of(tx, runtime.settings, job.organization_id, agent)
        return next(
            (budget.resets_at for _, budget in budgets if budget.is_spent(BACKGROUND_PERCENT)), None
        )

    if (tomorrow := await runtime.store.read(resets_at)) is None:
        return False
    later = Job(job.kind, job.organization_id, job.payload, key=job.key, is_single=job.is_single)
    later = replace(
        later,
        most_attempts=job.most_attempts,
        user_id=job.user_id,
        not_before=tomorrow,
        id=new_id("job"),
    )
    await runtime.store.write(lambda tx: jobs.add(tx, later))
    return True
