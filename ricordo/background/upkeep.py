"""The jobs that maintain the search index, waiting proposals, and stored streams.

Embeddings by a provider's model are recorded as expenses, and may be postponed by a budget. A job
that another server may have taken over writes nothing any more.
"""

from collections.abc import Awaitable, Callable

from ricordo.agents.budgets import put_off
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.llm.chat import CostsTokens
from ricordo.memory.approval import EXPIRY
from ricordo.runtime import Runtime
from ricordo.search import partitions
from ricordo.search.embedding_costs import EmbeddingAccount
from ricordo.search.indexer import Indexer
from ricordo.search.partitions import EMBED, SWEEP
from ricordo.search.rebuild import REEMBED, REINDEX, reembed, reindex
from ricordo.search.write_buffer import FLUSH
from ricordo.storage import runs

# Seconds between two jobs that sweep the index, and between two that prune streams.
SWEPT_EVERY = 600.0
# The jobs whose purpose is to embed texts. Until they run, the old index stays in use.
_EMBEDDING = (EMBED, REINDEX, REEMBED)
IndexWork = Callable[[Indexer, Job, Report], Awaitable[None]]


async def postponed(runtime: Runtime, job: Job) -> bool:
    """Postpone a job to the next day if its budget of tokens is nearly spent.

    Args:
        runtime: The server's parts.
        job: A job of the search index. Its payload names the partition's owner.

    Returns:
        True if it was postponed. False also if no provider embeds the owner's texts.
    """
    owner_id = job.payload["owner_id"]
    home = await runtime.store.read(lambda tx: partitions.owner_of(tx, owner_id))
    handle = runtime.indexing.choose_model(home.embedding) if home else None
    if handle is None or not isinstance(runtime.models.embedders.get(handle), CostsTokens):
        return False
    return await put_off(runtime, job, _agent_of(job))


def account_of(runtime: Runtime, job: Job) -> EmbeddingAccount:
    """Return the account that pays for the job's embeddings.

    Args:
        runtime: The server's parts.
        job: The job that pays: its organization, its user, and the agent in its payload.
    """
    return EmbeddingAccount(
        runtime.store,
        runtime.settings,
        Scope(job.organization_id),
        user_id=job.user_id,
        agent_id=_agent_of(job),
        is_background=True,
    )


def _agent_of(job: Job) -> str | None:
    owner_id: str = job.payload.get("owner_id", "")  # jobs for all owners name none
    return owner_id if owner_id.startswith("agent-") else None


def _indexing(kind: str, work: IndexWork, every_seconds: float | None = None) -> JobHandler:
    """Return the handler of jobs for this index work; its expenses are recorded.

    Work that only embeds texts is postponed while the budget is nearly spent.
    """

    async def run(runtime: Runtime, job: Job, report: Report) -> None:
        if kind not in _EMBEDDING or not await postponed(runtime, job):
            await work(runtime.indexing.fenced(job, account_of(runtime, job)), job, report)

    return JobHandler(kind, run, every_seconds)


async def prune_streams(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Delete stored streams of runs that ended longer ago than the setting allows.

    Args:
        runtime: The server's parts; `stream_hours` is the age.
        _job: The periodic job.
        _report: Ignored: no progress is shown.
    """
    before = runtime.store.clock.now() - round(runtime.settings.stream_hours * 3600 * SECOND)
    while await runtime.store.write(lambda tx: runs.prune_events(tx, before)):
        pass


HANDLERS = (
    _indexing(FLUSH, Indexer.flush),
    _indexing(EMBED, Indexer.embed),
    _indexing(SWEEP, Indexer.sweep, SWEPT_EVERY),
    _indexing(REINDEX, reindex),
    _indexing(REEMBED, reembed),
    JobHandler("run_events", prune_streams, every_seconds=SWEPT_EVERY),
    EXPIRY,
)
