"""Jobs of sign-in links: one makes the links for an e-mail address, the other sends a link."""

import asyncio

from ricordo.domain.job import Job, JobHandler, Report
from ricordo.errors import Invalid, RicordoError
from ricordo.features.identity.sign_in_links import queries, service
from ricordo.features.memory_care.notifications import mail
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.runtime import Runtime
from ricordo.secret import Secret


async def begin_login(runtime: Runtime, job: Job, _report: Report) -> None:
    """Make login links for an address that a person typed.

    A job does this, so that the response takes the same time whether or not the address is known.

    Args:
        runtime: The running server.
        job: A job with the encrypted e-mail address as `address`.
    """
    secret = await _secret(runtime)
    address = secret.decrypt(job.payload["address"])
    await runtime.store.write(lambda tx: service.begin_logins(tx, secret, address))


async def send(runtime: Runtime, job: Job, _report: Report) -> None:
    """Send a link to its user; if it cannot be sent, record why.

    Args:
        runtime: The running server.
        job: A job of `service.add_mail`.

    Raises:
        RicordoError: if the e-mail was not sent.
    """
    settings = NotificationSettings.current()
    secret = await _secret(runtime)
    link_id = job.payload["link_id"]
    try:
        message = await runtime.store.read(
            lambda tx: service.prepare_mail(tx, link_id, secret, settings)
        )
        if message is None:
            return
        await mail.send(message, settings)
    except RicordoError as error:
        problem = str(error)
        if isinstance(error, Invalid) or job.attempts >= job.most_attempts:
            await runtime.store.write(lambda tx: queries.note_mail(tx, link_id, problem))
        raise
    await runtime.store.write(lambda tx: queries.note_mail(tx, link_id))


async def _secret(runtime: Runtime) -> Secret:
    secret = Secret(runtime.settings.data_dir)
    await asyncio.to_thread(secret.derive, service.LINK_PURPOSE)  # it may write the secret's file
    return secret


HANDLERS = (JobHandler(service.BEGIN_LOGIN, begin_login), JobHandler(service.SEND, send))
