"""Callbacks: a signed request after a run's end, repeated a few times until it is accepted.

The body is JSON. `X-Ricordo-Signature: t=<unix seconds>,v1=<hex>` holds the HMAC-SHA256 of
`<t>.<body>` with the signing key of this installation. A request may arrive twice, for example
after a crash. Both then have the same `X-Ricordo-Delivery`.
"""

import asyncio
import hmac
from pathlib import Path

import orjson

from ricordo.agents.run_end import CALLBACK
from ricordo.agents.turn import record_of
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import RicordoError, Unavailable
from ricordo.llm.addresses import post
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import runs


def signing_key(data_dir: Path) -> str:
    """Return the key with which requests to callbacks are signed, as hexadecimal text.

    Args:
        data_dir: The server's data folder, from whose secret key it is derived.
    """
    return Secret(data_dir).derive("callbacks").hex()


def signature(key: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a callback's body, for `X-Ricordo-Signature`.

    Args:
        key: The signing key in hex (see `signing_key`).
        timestamp: The time of the request in seconds (Unix time).
        body: The bytes that are sent.
    """
    digest = hmac.digest(bytes.fromhex(key), f"{timestamp}.".encode() + body, "sha256")
    return f"t={timestamp},v1={digest.hex()}"


async def call_back(runtime: Runtime, job: Job, _report: Report) -> None:
    """Report the end of the job's run, and store the result with the run.

    Args:
        runtime: The server's parts.
        job: The job; `run_id` in its payload names the ended run, which has the address.
        _report: Not used, since there is one request.

    Raises:
        NotFound: The run was deleted.
        Invalid: The address is not allowed.
        Unavailable: The request was not answered, or not accepted.
    """
    scope = Scope(job.organization_id)
    run_id = job.payload["run_id"]
    run = await runtime.store.read(lambda tx: runs.get(tx, scope, run_id))
    if run.callback.get("sent_at") and not run.callback.get("error"):
        return  # the process was killed right after it stored the result
    # wire fact: incoming messages are included, as in the retired Letta V1 server's list of a run
    messages = await runtime.store.read(lambda tx: record_of(tx, run))
    body = _body(run, runtime.wire.result_of(run, messages))
    changes, failure = await deliver(runtime, job, run.callback["url"], body)
    await runtime.store.write(lambda tx: runs.note_callback(tx, run_id, changes))
    if failure:
        raise failure


async def deliver(
    runtime: Runtime, job: Job, url: str, body: bytes
) -> tuple[Json, RicordoError | None]:
    """Send a signed body to the address.

    Args:
        runtime: The server's parts.
        job: The job that sends; its id is the delivery's id.
        url: The receiver's address.
        body: The JSON, exactly as it is signed and sent.

    Returns:
        The result to store: `sent_at` (microseconds), `status_code` (None without an answer) and
        `error` (a sentence or None). Then the error, if the request was not accepted.
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
    if run.ended_at is not None:
        ended_at = to_datetime(run.ended_at).isoformat()
    else:
        ended_at = None
    return orjson.dumps(
        {
            "run_id": run.id,
            "agent_id": run.agent_id,
            "conversation_id": run.conversation_id,
            "status": run.status,
            "stop_reason": run.stop_reason,
            "completed_at": ended_at,
            "metadata": {
                **run.metadata,
                **({"error": run.error} if run.error else {}),
                "result": result,
            },
        }
    )


HANDLER = JobHandler(CALLBACK, call_back)
