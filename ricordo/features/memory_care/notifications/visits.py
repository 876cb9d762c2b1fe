"""Visits of owners to lists of waiting proposals. They show which proposals no owner has seen."""

import re
import time
from collections import OrderedDict
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ricordo.api.guard import route_path
from ricordo.domain.scope import ACTING_SCOPE, REQUEST_SCOPE
from ricordo.domain.scope import Scope as Caller
from ricordo.errors import DatabaseFailed
from ricordo.features.memory_care.notifications import queries

# Pages and lists that show a person's proposals.
_SHOWS_PROPOSALS = re.compile(
    r"/|/ui/people/[^/]+(?:/blocks/.+)?|/ui/proposals/.+|/users/[^/]+/(?:blocks/.+/)?diffs"
)
_OK = 200
_NOTED_EVERY = 60.0  # seconds
_MOST_REMEMBERED = 10_000


class NotedVisits:
    """Middleware that stores a person's visit, in one process at most once a minute."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._noted_at: OrderedDict[str, float] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note the visit after its answer, if that was 200."""
        is_look = scope["type"] == "http" and scope["method"] == "GET"
        if not is_look or _SHOWS_PROPOSALS.fullmatch(route_path(scope)) is None:
            await self._app(scope, receive, send)
            return
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self._app(scope, receive, watch)
        caller: Caller | None = scope.get(ACTING_SCOPE) or scope.get(REQUEST_SCOPE)
        if status == _OK and caller is not None and self._is_new(caller.user_id):
            store = scope["app"].state.runtime.store
            with suppress(DatabaseFailed):  # a visit after a minute is stored
                await store.write(lambda tx: queries.note_visit(tx, caller.user_id))

    def _is_new(self, user_id: str) -> bool:
        now = time.monotonic()
        if now - self._noted_at.get(user_id, -_NOTED_EVERY) < _NOTED_EVERY:
            return False
        self._noted_at[user_id] = now
        self._noted_at.move_to_end(user_id)
        while len(self._noted_at) > _MOST_REMEMBERED:
            self._noted_at.popitem(last=False)
        return True
