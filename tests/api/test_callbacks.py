"""Callbacks at the end of a run: the content, the signature, and the outcome in the run."""

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from ricordo.agents.callbacks import HANDLER, signing_key
from ricordo.agents.run_end import add_callback
from ricordo.domain.job import Job
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, Unavailable
from ricordo.storage import jobs, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import SqlStore, Transaction
from tests.seams import make
from tests.seams.stage import Hooks, Stage
from tests.seams.stores import START
from tests.support.model_server import Answer, ModelServer


@pytest.fixture
async def stage(store: SqlStore, tmp_path: Path) -> AsyncIterator[Stage]:
    opened = Stage(store, tmp_path, Hooks())
    opened.runtime.settings.allow_private_callbacks = True
    yield opened
    await opened.close()


@pytest.fixture
async def receiver() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


async def ended_run(stage: Stage, url: str, **fields: Any) -> tuple[Run, Job]:
    """Make an ended run, and the job that sends its callback."""
    agent = (await make.stored_agent(stage.store)).agent
    run = make.run(agent, callback={"url": url})
    usual = {"status": "completed", "stop_reason": "end_turn", "ended_at": START + 1_500_000}
    ended = replace(run, **usual | fields)

    def work(tx: Transaction) -> Job:
        runs.open_run(tx, run)
        runs.end(tx, ended)
        add_callback(tx, ended)
        (job,) = jobs.page(tx, Scope(), Page())
        return job

    return ended, await stage.store.write(work)


async def do(stage: Stage, job: Job) -> None:
    await HANDLER.run(stage.runtime, job, lambda _done, _total: None)


async def noted(stage: Stage, run: Run) -> dict[str, Any]:
    return (await stage.store.read(lambda tx: runs.get(tx, Scope(), run.id))).callback


async def test_the_receiver_can_verify_the_signature_of_a_callback(
    stage: Stage, receiver: ModelServer
) -> None:
    error = {"type": "llm_timeout", "message": "Too slow."}
    run, job = await ended_run(
        stage, f"{receiver.root}/done", status="failed", stop_reason="llm_api_error", error=error
    )

    await do(stage, job)

    (seen,) = receiver.requests
    assert seen.path == "/done"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["x-ricordo-delivery"] == job.id
    assert seen.body == {
        "run_id": run.id,
        "agent_id": run.agent_id,
        "conversation_id": run.conversation_id,
        "status": "failed",
        "stop_reason": "llm_api_error",
        "completed_at": "2026-01-01T00:00:01.500000+00:00",
        "metadata": {
            "error": error,
            "result": {
                "messages": [],
                "stop_reason": {"message_type": "stop_reason", "stop_reason": "llm_api_error"},
                "usage": seen.body["metadata"]["result"]["usage"],
                "logprobs": None,
                "turns": None,
            },
        },
    }
    # The test checks the signature as a receiver does, which knows only the key.
    moment, given = (
        part.partition("=")[2] for part in seen.headers["x-ricordo-signature"].split(",")
    )
    key = bytes.fromhex(signing_key(stage.runtime.settings.data_dir))
    made = hmac.new(
        key, f"{moment}.".encode() + orjson.dumps(seen.body), hashlib.sha256
    ).hexdigest()
    assert made == given
    assert int(moment) == START // 1_000_000
    callback = await noted(stage, run)
    assert callback["sent_at"] >= START
    assert (callback["status_code"], callback["error"]) == (200, None)


async def test_a_refused_callback_is_recorded_and_sent_again(
    stage: Stage, receiver: ModelServer
) -> None:
    run, job = await ended_run(stage, f"{receiver.root}/done")
    receiver.push(
        Answer(status=503), Answer(status=302, headers={"location": f"{receiver.root}/elsewhere"})
    )

    for status in (503, 302):
        with pytest.raises(Unavailable, match=f"the status {status}"):
            await do(stage, job)
        callback = await noted(stage, run)
        assert callback["status_code"] == status
        assert str(status) in callback["error"]
    await do(stage, job)

    assert [seen.path for seen in receiver.requests] == ["/done"] * 3
    assert len({seen.headers["x-ricordo-delivery"] for seen in receiver.requests}) == 1
    assert (await noted(stage, run))["error"] is None


async def test_an_accepted_callback_is_not_sent_again(stage: Stage, receiver: ModelServer) -> None:
    _, job = await ended_run(stage, f"{receiver.root}/done")

    await do(stage, job)
    await do(stage, job)

    assert len(receiver.requests) == 1


async def test_a_callback_to_a_private_address_fails_for_good(
    stage: Stage, receiver: ModelServer
) -> None:
    stage.runtime.settings.allow_private_callbacks = False
    run, job = await ended_run(stage, f"{receiver.root}/done")

    with pytest.raises(Invalid, match="not a public address"):
        await do(stage, job)

    assert receiver.connections == 0
    callback = await noted(stage, run)
    assert callback["status_code"] is None
    assert "not a public address" in callback["error"]
