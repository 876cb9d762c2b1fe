"""The job that tells of a run's end is added with that end, or not at all."""

from dataclasses import replace
from typing import Any

import pytest

from ricordo.agents.run_end import CALLBACK, callback_job
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from ricordo.storage import jobs
from ricordo.storage.paging import Page
from tests.agents.stage import Stage
from tests.support import make

URL = "https://example.com/done"


async def added(stage: Stage) -> list[Job]:
    return await stage.store.read(lambda tx: jobs.page(tx, Scope(), Page(), kind=CALLBACK))


@pytest.mark.parametrize(
    "lines", [("Done.",), (call("conversation_search", query="x"), "Done."), (ModelError("llm_timeout", "No."),)]
)
async def test_the_end_of_a_run_brings_one_job_however_it_ends(stage: Stage, lines: tuple[Any, ...]) -> None:
    stage.lines += lines
    answer = await stage.say(await stage.agent(), callback={"url": URL})

    (job,) = await added(stage)

    assert answer.run.callback == {"url": URL}
    assert (job.payload, job.key) == ({"run_id": answer.run.id}, f"callback:{answer.run.id}")


async def test_a_cancelled_run_brings_it_too_and_a_running_one_does_not(stage: Stage) -> None:
    turn, _gate = await stage.asked(await stage.agent(), callback={"url": URL}, line="Too late.")
    assert await added(stage) == []

    await turn.cancel()

    assert len(await added(stage)) == 1


async def test_nobody_is_told_who_did_not_ask(stage: Stage) -> None:
    stage.lines.append("Done.")
    await stage.say(await stage.agent())
    assert await added(stage) == []


def test_there_is_a_job_for_an_ended_run_with_an_address_alone() -> None:
    run = make.run(make.agent(), callback={"url": URL})
    assert callback_job(run) is None
    assert callback_job(replace(run, ended_at=7)) is not None
    assert callback_job(replace(run, ended_at=7, callback={})) is None
