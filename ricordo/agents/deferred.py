"""Messages that jobs send later: their sender, its scope, and waiting for a busy conversation."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from ricordo.agents.request import (
    TurnRequest,
)
from ricordo.agents.turn import run_turn
from ricordo.domain.scope import OPERATOR_SCOPES, Scope
from ricordo.errors import Busy, Forbidden, NotFound
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import keys, users
from ricordo.storage.engine.store import Transaction

# Seconds between two attempts at a busy conversation.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_NO_LONGER = (
    "The user who planned this message may no longer send messages: the key was revoked or has "
    "expired, or the user is disabled or deleted."
)


@dataclass(frozen=True, slots=True)
class Sender:
    """The key that planned a message, with its user and scopes.

    The turn has no more rights than the key.
    """

    organization_id: str
    user_id: str | None
    key_id: str | None
    caller: str | None
    scopes: list[str]


def sender_of(tx: Transaction, scope: Scope, noun: str) -> Sender:
    """Return the sender of a message that is planned now. Raises Forbidden for a login."""
    if scope.key_id:
        try:
            keys.get(tx, Scope(scope.organization_id), scope.key_id)
        except NotFound as error:
            raise Forbidden(
                f"A login expires, but a {noun} does not. Make the {noun} with an API key."
            ) from error
    return Sender(
        organization_id=scope.organization_id,
        user_id=scope.subject,
        key_id=scope.key_id,
        caller=scope.caller,
        scopes=sorted(scope.scopes),
    )


def scope_of_sender(tx: Transaction, sender: Sender) -> Scope:
    """Return the scope of the sender's turn, with the key's current scopes.

    Raises Forbidden if the key or the user may no longer send messages.
    """
    organization = Scope(sender.organization_id)
    scope = Scope(sender.organization_id, user_name="administrator", scopes=OPERATOR_SCOPES)
    if sender.key_id:
        try:
            key_and_scope = keys.authenticate(tx, keys.get(tx, organization, sender.key_id).hash)
        except NotFound:
            key_and_scope = None
        if key_and_scope is None:
            raise Forbidden(_NO_LONGER)
        scope = key_and_scope[1]
    if sender.user_id and scope.subject != sender.user_id:
        user = users.find(tx, organization, sender.user_id)
        if user is None or user.disabled_at is not None:
            raise Forbidden(_NO_LONGER)
        scope = scope.acting_for(user)
    if scope.subject != sender.user_id:
        raise Forbidden(_NO_LONGER)
    return replace(
        scope, scopes=scope.scopes & frozenset(sender.scopes), caller=sender.caller or ""
    )


def with_otids(request: TurnRequest, name: str) -> TurnRequest:
    """Give each message without an otid one that is derived from this name.

    A repeated job sends the same otids, so its messages are accepted only once.
    """
    messages = [
        replace(message, otid=message.otid or f"{name}-{index}")
        for index, message in enumerate(request.messages)
    ]
    approval = request.approval
    if approval:
        approval = replace(approval, otid=approval.otid or f"{name}-approval")
    return replace(request, messages=tuple(messages), approval=approval)


async def begin_when_free(
    runtime: Runtime, request: TurnRequest, on_busy: Callable[[Busy], None]
) -> LiveTurn:
    """Start the turn as soon as the conversation is free.

    `on_busy` is called for each attempt that finds the conversation busy. Raises RicordoError if
    the turn cannot start for another reason.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            return await run_turn(runtime, request)
        except Busy as busy:
            on_busy(busy)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
