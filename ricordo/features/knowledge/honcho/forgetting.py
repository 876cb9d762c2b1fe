"""Forget one fact at Honcho.

Honcho's API cannot change the text of a message. So a session that mentions the fact is deleted
there. The conversation is then sent again under a new name, with marks in place of the forgotten
text. Conclusions and lines of the peer's card that mention the fact, or perhaps do, are deleted.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ricordo.errors import RicordoError, Unavailable
from ricordo.features.knowledge.honcho import queries
from ricordo.features.knowledge.honcho.jobs import SEND, job_of
from ricordo.features.knowledge.honcho.options import HonchoSettings
from ricordo.features.knowledge.honcho.queries import HonchoSession
from ricordo.features.knowledge.honcho.service import connected, is_on
from ricordo.features.memory_care.forgetting.needle import Needle
from ricordo.runtime import Runtime
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction

_PAGE = 100
_LONGEST_WAIT = 30.0  # seconds
_PAUSE = 0.1  # seconds
_GENERATION = re.compile(r"__(\d{1,6})$")


async def forget_thing(runtime: Runtime, user_id: str, needle: Needle) -> list[str]:
    """Remove the fact from Honcho's data about the user; return sentences for the receipt.

    It can be repeated: if a session was deleted but not sent again, it is sent now. A failure is
    one of the sentences.

    Args:
        runtime: The running server.
        user_id: The user; "" if the fact is not about a user, so that nothing is done.
        needle: The fact.
    """
    if not (is_on() and user_id):
        return []
    server = f"Honcho ({HonchoSettings().shown})"
    try:
        await _wait_for_sending(runtime, user_id)
        # Read the sessions only now, since a sending job records its progress at its end.
        sessions = await runtime.store.read(lambda tx: queries.of_user(tx, user_id))
        if not sessions:
            return []
        async with connected() as honcho:
            replaced = [
                session for session in sessions if await _is_to_replace(honcho, session, needle)
            ]
            for session in replaced:
                await (await honcho.aio.session(session.name)).aio.delete()
                await runtime.store.write(partial(_send_again, session=session))
            concluded = await _forget_conclusions(honcho, user_id, needle)
    except RicordoError as error:
        return [
            f"{server} may still have the forgotten text, because the request to delete it "
            f"failed: {error}"
        ]
    return [
        f"{server} was asked to replace conversations that contained it: {len(replaced)}, and to "
        f"delete conclusions and lines of the user's card: {concluded}. Conclusions in other words "
        "stay there: delete them at that service."
    ]


async def _wait_for_sending(runtime: Runtime, user_id: str) -> None:
    """Wait until no job is sending messages that it read earlier. Raises Unavailable."""

    def is_sending(tx: Transaction) -> bool:
        return jobs.is_running(tx, SEND.kind, user_id)

    for _ in range(round(_LONGEST_WAIT / _PAUSE)):
        if not await runtime.store.read(is_sending):
            return
        await asyncio.sleep(_PAUSE)
    raise Unavailable("Messages were still being sent.")


async def _is_to_replace(honcho: Any, session: HonchoSession, needle: Needle) -> bool:
    remote = await honcho.aio.session(session.name)
    texts = [message.content async for message in await remote.aio.messages(size=_PAGE)]
    was_deleted = session.sent > 0 and not texts
    return was_deleted or any(map(needle.is_in, texts))


def _send_again(tx: Transaction, session: HonchoSession) -> None:
    """Start sending the conversation again from its beginning, under the next name."""
    queries.restart(tx, replace(session, name=next_name(session.name)))
    jobs.add(tx, job_of(session.conversation_id, session.organization_id, session.user_id))


def next_name(name: str) -> str:
    """Return the name of a session that replaces another session: `chat_1`, then `chat_1__2`.

    Args:
        name: The session's name at Honcho.
    """
    match = _GENERATION.search(name)
    if match is None:
        return f"{name}__2"
    return f"{name[: match.start()]}__{int(match[1]) + 1}"


async def _forget_conclusions(honcho: Any, user_id: str, needle: Needle) -> int:
    """Delete conclusions about the user and lines of the user's card; return their number."""
    peer = await honcho.aio.peer(user_id)
    page = await honcho.aio.conclusions.list(size=_PAGE, filters={"observed_id": user_id})
    conclusions = [conclusion async for conclusion in page if needle.units(conclusion.content)]
    for conclusion in conclusions:
        await peer.conclusions.aio.delete(conclusion.id)
    card: Sequence[str] = await peer.aio.get_card() or ()
    remaining_lines = [line for line in card if not needle.units(line)]
    if len(remaining_lines) < len(card):
        await peer.aio.set_card(remaining_lines)
    return len(conclusions) + len(card) - len(remaining_lines)
