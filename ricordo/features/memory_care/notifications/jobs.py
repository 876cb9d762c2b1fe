"""Jobs of notifications: one finds the owners with due digests, others send one digest each."""

import asyncio

import orjson

from ricordo.agents.callbacks import deliver
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.errors import Invalid, RicordoError
from ricordo.features.memory_care.notifications import mail, queries, service
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.features.memory_care.notifications.service import Digest
from ricordo.runtime import Runtime
from ricordo.secret import Secret

_EVERY_SECONDS = 60


async def plan(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Add the jobs of owners with due digests.

    Args:
        runtime: The running server.
    """
    settings = NotificationSettings.current()
    await runtime.store.write(lambda tx: service.plan(tx, settings))


async def send(runtime: Runtime, job: Job, _report: Report) -> None:
    """Send one owner's digest, then mark its proposals as notified.

    After a kill between the two, the digest is sent again with the same id and links. After a final
    failure the reason is stored in the user's notification settings.

    Args:
        runtime: The running server.
        job: A job with `user_id` and `channel`.

    Raises:
        Invalid: if the digest can never be sent.
        RicordoError: if it was not sent this time.
    """
    settings = NotificationSettings.current()
    secret = Secret(runtime.settings.data_dir)
    await asyncio.to_thread(secret.derive, service.LINK_PURPOSE)  # this may write the secret's file
    digest = await runtime.store.write(
        lambda tx: service.prepare(tx, job, settings, secret, runtime.plugins)
    )
    if digest is None:
        return
    try:
        await _deliver(runtime, job, digest, settings)
    except RicordoError as error:
        problem = str(error)
        if isinstance(error, Invalid) or job.attempts >= job.most_attempts:
            await runtime.store.write(lambda tx: service.note_problem(tx, job, problem))
        raise
    channel, user_id, ids = job.payload["channel"], job.payload["user_id"], digest.ids
    await runtime.store.write(lambda tx: queries.mark_told(tx, channel, user_id, ids))


async def _deliver(
    runtime: Runtime, job: Job, digest: Digest, settings: NotificationSettings
) -> None:
    if job.payload["channel"] == "email":
        await mail.send(mail.compose(digest, settings, job.id), settings)
        return
    body = orjson.dumps(service.to_json(digest, job_id=job.id))
    _, failure = await deliver(runtime, job, digest.address, body)
    if failure:
        raise failure


HANDLERS = (
    JobHandler(service.SEND, send),
    JobHandler("notifications.plan", plan, every_seconds=_EVERY_SECONDS),
)
