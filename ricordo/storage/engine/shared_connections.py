"""The connections to PostgreSQL that the worker threads of a store share.

A unit of work borrows one. A new one is opened only if none is idle; if the server refuses it, as
at its connection limit, the unit waits until another unit gives its connection back.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ricordo.errors import DatabaseFailed
from ricordo.storage.engine.failures import reason_of

log = logging.getLogger(__name__)
# Seconds that a unit waits for an idle connection, as for rows that another unit has locked.
_WAIT = 10.0
# Seconds after a refusal in which no other connection is opened while units may share one.
_REFUSED_SECONDS = 10.0


class SharedConnections:
    """Open connections: idle ones, and those lent to a unit of work.

    There are at most as many as threads that borrow one at the same time.
    """

    def __init__(self, connect: Callable[[], Connection], opened: set[Connection]) -> None:
        self._connect = connect
        self._opened = opened
        self._idle: list[Connection] = []
        self._changed = threading.Condition()
        self._refused_until = 0.0

    def borrow(self) -> Connection:
        """Return a connection for this thread alone, until it is given back or dropped.

        Raises:
            DBAPIError: The server refused a connection, and there is no other one.
            DatabaseFailed: The server refused a connection, and the others stayed in use.
        """
        with self._changed:
            if self._idle:
                # The one that was used last: it has prepared the most statements.
                return self._idle.pop()
            is_refused = bool(self._opened) and time.monotonic() < self._refused_until
        if is_refused and (connection := self._wait_for_idle()):
            return connection
        try:
            connection = self._connect()
        except DBAPIError as error:
            self._refused_until = time.monotonic() + _REFUSED_SECONDS
            # A unit waits only once.
            shared = None if is_refused else self._wait_for_idle()
            if shared:
                log.warning(
                    "PostgreSQL refused another connection; requests share the open ones",
                    extra={"connections": len(self._opened), "reason": reason_of(error)},
                )
                return shared
            if not self._opened:
                raise
            raise DatabaseFailed(
                f"PostgreSQL refuses another connection: {reason_of(error)}. All connections of "
                f"this server ({len(self._opened)}) are in use. Nothing was changed. Try again in a "
                "moment; let PostgreSQL accept more connections."
            ) from error
        with self._changed:
            self._opened.add(connection)
        return connection

    def _wait_for_idle(self) -> Connection | None:
        """Return the next idle connection; None if there is none in time, or none is in use."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or not self._opened, _WAIT)
            return self._idle.pop() if self._idle else None

    def give_back(self, connection: Connection) -> None:
        """Let other units borrow the connection, which is in no transaction."""
        with self._changed:
            self._idle.append(connection)
            self._changed.notify()

    def drop(self, connection: Connection, *, has_idle: bool) -> None:
        """Close a connection, and the idle ones that the server has ended too.

        Args:
            connection: The borrowed connection.
            has_idle: Close all idle ones.
        """
        with self._changed:
            ended = [idle for idle in self._idle if has_idle or _has_ended(idle)]
            self._idle = [idle for idle in self._idle if idle not in ended]
            self._opened.difference_update([connection, *ended])
            self._changed.notify_all()
        for lost in (connection, *ended):
            lost.invalidate()
            lost.close()


def _has_ended(connection: Connection) -> bool:
    """Return True if the server has closed this idle connection, without asking the server."""
    driver: Any = connection.connection.driver_connection
    try:
        # The first call reads the server's last message, the second one the end of the stream.
        driver.pgconn.consume_input()
        driver.pgconn.consume_input()
    except psycopg.Error:
        return True
    return bool(driver.closed)
