"""Jobs that compute vectors with a provider's model.

The ledger has their tokens. The jobs are put off when a budget is nearly used up.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from ricordo.background.upkeep import expenses_noted, postponed
from ricordo.domain.clock import DAY
from ricordo.domain.job import Job
from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.domain.usage import Expense, Usage
from ricordo.llm.embedding.remote import RemoteEmbedder, count
from ricordo.llm.policy import CallPolicy
from ricordo.storage import jobs, runs
from ricordo.storage.engine.repository import Page
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
    agent = await stage.agent()
    async with expenses_noted(stage.runtime, job_of(agent)):
        count("a/embed", 70)
        count("a/embed", 7)
    async with expenses_noted(stage.runtime, job_of("archive-1")):
        pass
    async with expenses_noted(stage.runtime, Job("sweep", LOCAL_ORGANIZATION, {})):
        count("a/embed", 0)

    async def embed() -> None:
        async with expenses_noted(stage.runtime, job_of("archive-1")):
            count("b/embed", 5)
            raise RuntimeError("The provider is down.")

    with pytest.raises(RuntimeError, match="down"):
        await embed()
    assert await spent(stage) == [(agent, "a/embed", 77), (None, "b/embed", 5)]


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
