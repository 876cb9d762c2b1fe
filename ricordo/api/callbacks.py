"""Callbacks: a signed request when a run has ended, tried again until it is accepted.

The body is JSON; `X-Ricordo-Signature: t=<unix seconds>,v1=<hex>` holds the HMAC-SHA256 of `<t>.<body>` under the signing key of
this installation. A request may come twice, as after a kill: `X-Ricordo-Delivery` is then the same.
"""

import asyncio
import hmac
from pathlib import Path

import orjson

from ricordo.agents.run_end import CALLBACK
from ricordo.agents.turn import Answer, record_of
from ricordo.api.messages import run_view, turn_json
from ricordo.api.models.base import Json
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import RicordoError, Unavailable
from ricordo.llm.addresses import post
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import runs


def signing_key(data_dir: Path) -> str:
    return Secret(data_dir).derive("callbacks").hex()


def signature(key: str, timestamp: int, body: bytes) -> str:
    digest = hmac.digest(bytes.fromhex(key), f"{timestamp}.".encode() + body, "sha256")
    return f"t={timestamp},v1={digest.hex()}"


async def call_back(runtime: Runtime, job: Job, _report: Report) -> None:
    """Tell of the end of the job's run, and note with the run what came of it. Raises where it was not taken."""
    scope, run_id = Scope(job.organization_id), job.payload["run_id"]
    run = await runtime.store.read(lambda tx: runs.get(tx, scope, run_id))
    if run.callback.get("sent_at") and not run.callback.get("error"):
        return  # killed right after it was noted
    # A wire fact of the retired Letta V1 server: what came in is among the messages, as in the list of the run's messages.
    said = await runtime.store.read(lambda tx: record_of(tx, run))
    body = _body(run, turn_json(Answer(run, tuple(said)), run_view(run)))
    changes, failure = await deliver(runtime, job, run.callback["url"], body)
    await runtime.store.write(lambda tx: runs.note_callback(tx, run_id, changes))
    if failure:
        raise failure


async def deliver(
    runtime: Runtime, job: Job, url: str, body: bytes
) -> tuple[Json, RicordoError | None]:
    """Send a signed body to the address.

    Returns what to note of it, and why it was not taken.
    """
    now = runtime.store.clock.now()
    key = await asyncio.to_thread(signing_key, runtime.settings.data_dir)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Ricordo",
        "X-Ricordo-Delivery": job.id,
        "X-Ricordo-Signature": signature(key, now // SECOND, body),
    }
    status: int | None = None
    failure: RicordoError | None = None
    try:
        status = await post(
            url, body, headers, allow_private=runtime.settings.allow_private_callbacks
        )
        if not 200 <= status < 300:
            failure = Unavailable(
                f"The address answered with the status {status} where one of success was expected."
            )
    except RicordoError as error:
        failure = error
    return {
        "sent_at": now,
        "status_code": status,
        "error": str(failure) if failure else None,
    }, failure


def _body(run: Run, result: Json) -> bytes:
    ended = to_datetime(run.ended_at).isoformat() if run.ended_at is not None else None
    return orjson.dumps(
        {
            "run_id": run.id,
            "agent_id": run.agent_id,
            "conversation_id": run.conversation_id,
            "status": run.status,
            "stop_reason": run.stop_reason,
            "completed_at": ended,
            "metadata": {
                **run.metadata,
                **({"error": run.error} if run.error else {}),
                "result": result,
            },
        }
    )


HANDLER = JobHandler(CALLBACK, call_back)
