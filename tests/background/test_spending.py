"""Jobs that compute vectors with a provider's model.

The ledger has their tokens. The jobs are put off when a budget is nearly used up.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from ricordo.background.upkeep import HANDLERS, account_of, postponed
from ricordo.domain.clock import DAY
from ricordo.domain.job import Job
from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.domain.usage import Expense, Usage
from ricordo.errors import ModelError
from ricordo.llm.egress import embed
from ricordo.llm.embedding.remote import RemoteEmbedder, count
from ricordo.llm.policy import CallPolicy
from ricordo.search.partitions import EMBED
from ricordo.search.rebuild import REEMBED, REINDEX, add_job, postponed_owners
from ricordo.search.write_buffer import FLUSH
from ricordo.storage import jobs, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.ledger import LedgerQuery, entries
from tests.agents.conftest import *  # noqa: F403 - its stage
from tests.seams.stage import Stage
from tests.seams.stores import START


def job_of(agent: str) -> Job:
    return Job("embed", LOCAL_ORGANIZATION, {"owner_id": agent}, key=agent, is_single=True)


async def spent(stage: Stage) -> list[tuple[str | None, str, int]]:
    query = LedgerQuery(START, START + DAY, "agent", purpose="embedding")
    found = await stage.store.read(lambda tx: entries(tx, Scope(), query))
    return [(entry.key, entry.model, entry.usage.prompt_tokens) for entry in found]


async def test_embedded_tokens_are_recorded_by_agent_and_model_also_after_a_failure(
    stage: Stage,
) -> None:
    def embedder(handle: str, tokens: int, failure: Exception | None = None) -> RemoteEmbedder:
        async def ask(texts: list[str], _purpose: EmbeddingPurpose) -> Sequence[Any]:
            count(handle, tokens, texts)
            if failure:
                raise failure
            return [[1.0] for _ in texts]

        return RemoteEmbedder(
            EmbeddingInfo(handle, "a", "embed", "openai"), CallPolicy(retries=0), ask
        )

    async def embed_for(job: Job, model: RemoteEmbedder) -> None:
        account = account_of(stage.runtime, job)
        await embed(model, ["tea"], stage.runtime.new_clearance(), account)

    agent = await stage.agent()
    await embed_for(job_of(agent), embedder("a/embed", 70))
    await embed_for(job_of(agent), embedder("a/embed", 7))
    with pytest.raises(ModelError, match="down"):
        await embed_for(
            job_of("archive-1"), embedder("b/embed", 5, ModelError("llm_error", "It is down."))
        )
    assert await spent(stage) == [(agent, "a/embed", 77), (None, "b/embed", 5)]


async def test_a_providers_model_is_never_called_without_a_payer(stage: Stage) -> None:
    async def ask(_texts: list[str], _purpose: EmbeddingPurpose) -> Sequence[Any]:
        raise AssertionError("the provider was asked")

    model = RemoteEmbedder(EmbeddingInfo("a/b", "a", "b", "openai"), CallPolicy(retries=0), ask)
    with pytest.raises(RuntimeError, match="a/b"):
        await embed(model, ["tea"], stage.runtime.new_clearance(), None)


async def test_only_jobs_with_a_providers_model_are_postponed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(texts: list[str], _purpose: EmbeddingPurpose) -> Sequence[Any]:
        return [[1.0] for _ in texts]

    agent = await stage.agent()
    await stage.say(agent)
    runtime = stage.runtime
    runtime.settings = runtime.settings.model_copy(update={"daily_tokens": 100})
    spending = Expense(LOCAL_ORGANIZATION, "other", "a/b", Usage(90), created_at=START)
    await stage.store.write(lambda tx: runs.add_expense(tx, spending))
    stage.store.cache.clear()
    # The vectors are computed by no model, or by the built-in one.
    assert not await postponed(runtime, job_of(agent))
    info = EmbeddingInfo("far/embed", "far", "embed", "openai", endpoint="http://far")
    runtime.models.embedders.add(RemoteEmbedder(info, CallPolicy(), ask))
    monkeypatch.setattr(type(runtime.models.embedders), "default_handle", lambda _: "far/embed")

    assert await postponed(runtime, job_of(agent))

    found = await stage.store.read(lambda tx: jobs.page(tx, Scope(), Page()))
    (later,) = [job for job in found if job.kind == "embed"]
    assert later.not_before == START + DAY


@pytest.mark.parametrize("kind", [EMBED, REEMBED, REINDEX])
async def test_each_job_that_embeds_is_paid_for_and_waits_when_the_budget_is_nearly_spent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    asked: list[str] = []

    async def ask(texts: list[str], _purpose: EmbeddingPurpose) -> Sequence[Any]:
        asked.extend(texts)
        count("far/embed", 7, texts)
        return [[1.0] for _ in texts]

    agent = await stage.agent()
    await stage.say(agent)
    runtime = stage.runtime
    info = EmbeddingInfo("far/embed", "far", "embed", "openai", endpoint="http://far")
    runtime.models.embedders.add(RemoteEmbedder(info, CallPolicy(), ask))
    monkeypatch.setattr(type(runtime.models.embedders), "default_handle", lambda _: "far/embed")
    handlers = {handler.kind: handler.run for handler in HANDLERS}

    async def work(kind: str) -> None:
        """Run a job as a worker does, which has claimed it."""
        job = Job(kind, LOCAL_ORGANIZATION, {"owner_id": agent}, key=agent)
        await stage.store.write(lambda tx: jobs.add(tx, job))
        claimed = await stage.store.write(partial(jobs.claim_one, worker="w", id=job.id))
        assert claimed
        await handlers[kind](runtime, claimed, lambda _done, _total: None)
        await stage.store.write(partial(jobs.finish, job=claimed))

    await work(FLUSH)
    await work(kind)
    assert asked
    ((payer, model, tokens),) = await spent(stage)
    assert (payer, model, tokens % 7) == (agent, "far/embed", 0)
    asked.clear()
    runtime.settings = runtime.settings.model_copy(update={"daily_tokens": 1})
    stage.store.cache.clear()
    await work(kind)
    assert asked == []
    every = await stage.store.read(lambda tx: jobs.page(tx, Scope(), Page()))
    assert [job.not_before for job in every if job.kind == kind].count(START + DAY) == 1


async def test_a_postponed_rebuild_runs_at_once_when_it_is_ordered_again(stage: Stage) -> None:
    agent = await stage.agent()

    def order(tx: Transaction) -> Job:
        return add_job(tx, agent, LOCAL_ORGANIZATION)

    job = Job(
        REINDEX,
        LOCAL_ORGANIZATION,
        {"owner_id": agent},
        not_before=START + DAY,
        key=agent,
        is_single=True,
    )
    await stage.store.write(lambda tx: jobs.add(tx, job))
    again = await stage.store.write(order)
    assert (again.id, again.not_before < START + DAY) == (job.id, True)
    assert await stage.store.read(lambda tx: postponed_owners(tx, [again])) == [agent]
