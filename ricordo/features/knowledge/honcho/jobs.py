"""Jobs that send messages to Honcho, in order and once, even after a kill.

A conversation's row stores the last message that was sent. Before messages are sent, the row
records the attempt. After a kill, the job first asks Honcho which messages it has; their ids are in
the metadata.
"""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from ricordo.domain.clock import to_datetime
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import RicordoError
from ricordo.features.knowledge.honcho import queries
from ricordo.features.knowledge.honcho.options import HonchoSettings
from ricordo.features.knowledge.honcho.queries import HonchoSession
from ricordo.features.knowledge.honcho.service import connected, is_on
from ricordo.plugins import AfterTurn
from ricordo.runtime import Runtime
from ricordo.storage import conversations, jobs, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore

_LONGEST = 20_000  # characters of a message; Honcho takes 25,000
_CATCH_UP = timedelta(days=1) // timedelta(microseconds=1)


async def add_send_job(runtime: Runtime, run: Run) -> None:
    """Add the job that sends a turn's conversation to Honcho.

    It is added only if the turn is about a user, was started by a message, and Honcho is
    configured.
    """
    if run.user_id and run.purpose is None and is_on():
        job = job_of(run.conversation_id, run.organization_id, run.user_id)
        await runtime.store.write(lambda tx: jobs.add(tx, job))


def job_of(conversation_id: str, organization_id: str, user_id: str) -> Job:
    """Return the job that sends a conversation's messages.

    Args:
        conversation_id: The conversation.
        organization_id: Its organization.
        user_id: The user of the conversation.
    """
    return Job(
        "honcho.send",
        organization_id,
        {"conversation_id": conversation_id},
        key=f"honcho:{conversation_id}",
        is_single=True,
        user_id=user_id,
    )


async def send(runtime: Runtime, job: Job, report: Report) -> None:
    """Send the conversation's messages that Honcho lacks.

    Args:
        runtime: The running server.
        job: A job of `job_of`.
        report: Counts the messages.

    Raises:
        NotFound: The conversation was deleted.
        Unavailable: Honcho cannot be reached, or the library for it is missing.
        Invalid: Honcho refuses.
    """
    if not is_on():
        return
    store = FencedStore(runtime.store, job)
    count = 0

    def next_batch(tx: Transaction) -> tuple[HonchoSession, list[Message], str, str] | None:
        conversation = conversations.require(
            tx, Scope(job.organization_id), job.payload["conversation_id"]
        )
        user = users.find(tx, Scope(job.organization_id), conversation.user_id or "")
        if user is None or conversation.is_of_background_task:
            return None
        session = queries.session_of(tx, conversation)
        new = list(queries.next_messages(tx, session))
        if new:
            queries.save_progress(tx, replace(session, tried=new[-1].seq))
        return session, new, conversation.agent_id, user.identifier or user.id

    async with connected() as honcho:
        while (batch := await store.write(next_batch)) and batch[1]:
            session, new, agent_id, name = batch
            await _deliver(honcho, session, new, agent_id, name)
            session = replace(session, sent=new[-1].seq, tried=new[-1].seq)
            await store.write(partial(queries.save_progress, session=session))
            count += len(new)
            report(count, count)


async def _deliver(
    honcho: Any, session: HonchoSession, new: list[Message], agent_id: str, user: str
) -> None:
    from honcho.api_types import MessageCreateParams, SessionPeerConfig

    metadata = {"user_id": user, "chat_id": session.chat_id}
    peers = [
        (session.user_id, SessionPeerConfig(observe_me=True)),
        (agent_id, SessionPeerConfig(observe_me=False)),
    ]
    remote = await honcho.aio.session(session.name, metadata=metadata, peers=peers)
    delivered: set[Any] = set()
    if session.tried > session.sent:
        page = await remote.aio.messages(size=2 * queries.AT_ONCE, reverse=True)
        delivered = {message.metadata.get("message_id") for message in page.items}
    drafts = [
        MessageCreateParams(
            content=message.spoken[:_LONGEST],
            peer_id=session.user_id if message.role == "user" else agent_id,
            metadata={**metadata, "message_id": message.id},
            created_at=to_datetime(message.created_at),
        )
        for message in new
        if message.id not in delivered and message.spoken.strip()
    ]
    if drafts:
        await remote.aio.add_messages(drafts)


async def catch_up(runtime: Runtime, _job_of_all: Job, _report: Report) -> None:
    """Add jobs for conversations whose messages were not all sent.

    Such conversations remain if the server was killed, or if their job failed too often.

    Args:
        runtime: The running server.
    """
    if is_on():
        since = runtime.store.clock.now() - _CATCH_UP

        def work(tx: Transaction) -> None:
            for ids in queries.behind(tx, since):
                jobs.add(tx, job_of(*ids))

        await runtime.store.write(work)


async def forget(runtime: Runtime, user_id: str) -> list[str]:
    """Delete the user's sessions at Honcho; return sentences for the receipt."""
    sessions = await runtime.store.read(lambda tx: queries.of_user(tx, user_id))
    if not sessions:
        return []
    server = f"Honcho ({HonchoSettings().shown})"
    names = sorted({session.name for session in sessions})
    remainder = (
        f"It keeps the peer {user_id} with its conclusions, which its API cannot delete: delete "
        "them there."
    )
    try:
        async with connected() as honcho:
            for name in names:
                await (await honcho.aio.session(name)).aio.delete()
    except RicordoError as error:
        return [
            f"{server} has conversations of the user, and the request to delete them failed: "
            f"{error} {remainder}"
        ]
    return [
        f"{server} was asked to delete the user's conversations there: {len(names)}. {remainder}"
    ]


SEND = JobHandler("honcho.send", send)
CATCH_UP = JobHandler("honcho.catch_up", catch_up, every_seconds=600.0)
SENDING = AfterTurn(add_send_job, about_users=True)
