"""Write, check and export the audit log."""

import asyncio
import getpass
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from ricordo.domain.clock import DAY, SystemClock, stamp
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import LOCAL_USER
from ricordo.errors import RicordoError, Unavailable
from ricordo.features.operations.audit_log import queries
from ricordo.features.operations.audit_log.options import AuditLogSettings
from ricordo.features.operations.audit_log.queries import AuditDraft, Person
from ricordo.features.operations.audit_log.tables import TABLES
from ricordo.runtime import Runtime
from ricordo.settings import Settings
from ricordo.storage.engine.database import exclusive_access, require_current
from ricordo.storage.engine.statements import Statements
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.migrations import write_transaction
from ricordo.storage.schema.columns import metadata

log = logging.getLogger(__name__)
_HOUR_SECONDS = 3600.0
_MAX_UNSAVED = 10_000
_MAX_PEOPLE = 10_000


class AuditWriter:
    """Writes rows that are recorded at the same time in one transaction."""

    def __init__(self) -> None:
        self._waiting: list[tuple[AuditDraft, asyncio.Future[None]]] = []
        # Rows whose write failed; the next write retries them.
        self._unsaved: list[AuditDraft] = []
        self._task: asyncio.Task[None] | None = None
        self._pseudonyms: dict[Person, str] = {}
        self._pseudonyms_since = 0

    def add(self, store: Store, draft: AuditDraft) -> asyncio.Future[None]:
        """Record a draft; the future is done when it is committed or its write has failed."""
        commit = asyncio.get_running_loop().create_future()
        self._waiting.append((draft, commit))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(store))
        return commit

    async def _write(self, store: Store) -> None:
        while self._waiting:
            batch = self._waiting
            drafts = [*self._unsaved, *(draft for draft, _ in batch)]
            self._waiting = []
            self._unsaved = []
            await self._commit(store, drafts)
            for _, commit in batch:
                if not commit.done():
                    commit.set_result(None)

    async def _commit(self, store: Store, drafts: Sequence[AuditDraft]) -> None:
        """Write these rows; if the database fails, keep them for the next write."""
        # Cache pseudonyms for a day at most, so that old unused ones can be deleted.
        is_old = drafts[0].created_at - self._pseudonyms_since > DAY
        if is_old or len(self._pseudonyms) > _MAX_PEOPLE:
            self._pseudonyms = {}
            self._pseudonyms_since = drafts[0].created_at
        try:
            self._pseudonyms |= await store.write(
                partial(queries.append, drafts=drafts, pseudonyms=self._pseudonyms)
            )
        except Unavailable:
            log.exception(
                "rows of the audit log could not be written yet", extra={"rows": len(drafts)}
            )
            self._unsaved = [*self._unsaved, *drafts][-_MAX_UNSAVED:]
        except Exception:
            if len(drafts) > 1:  # one of the rows may have caused the failure
                for draft in drafts:
                    await self._commit(store, [draft])
                return
            facts = {
                "action": drafts[0].action,
                "status": drafts[0].status,
                "organization": drafts[0].organization_id,
            }
            log.exception("a row of the audit log was lost", extra=facts)


async def _expire(runtime: Runtime, _job: Job, _report: Report) -> None:
    before = runtime.store.clock.now() - AuditLogSettings().audit_log_days * DAY
    for chain in await runtime.store.read(queries.chains):
        while await runtime.store.write(
            partial(queries.expire, organization_id=chain.organization_id, before=before)
        ):
            pass


EXPIRY = JobHandler("audit_log.expire", _expire, every_seconds=_HOUR_SECONDS)


@contextmanager
def recorded_command(settings: Settings, command: str) -> Iterator[list[str]]:
    """Record a command of the operator when it ends, with its exit code.

    If the row cannot be written, a sentence is appended to the yielded list. The command is not
    undone then.
    """
    problems: list[str] = []
    try:
        yield problems
    except BaseException:
        _record(settings, command, 1)
        raise
    if problem := _record(settings, command, 0):
        problems.append(problem)


def _record(settings: Settings, command: str, code: int) -> str | None:
    clock = SystemClock()
    draft = AuditDraft(
        command,
        code,
        clock.now(),
        user_id=LOCAL_USER,
        address=f"account {_account()}",
        role="operator",
    )
    try:
        with exclusive_access(settings, force=True) as connection, write_transaction(connection):
            require_current(connection, "The database")
            metadata.create_all(connection, tables=TABLES)
            queries.append(
                Transaction(connection, clock, Statements(connection.dialect), {}), [draft], {}
            )
    except (RicordoError, SQLAlchemyError) as error:
        return f"This is not in the audit log: {error}"
    return None


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@dataclass(slots=True)
class AuditCheck:
    """The check of one organization's chain; `problems` are sentences."""

    organization_id: str
    first: int
    last: int
    hash: str
    problems: list[str] = field(default_factory=list)


def verify(tx: Transaction, expected: Sequence[str] = ()) -> tuple[list[AuditCheck], list[str]]:
    """Check every row of every chain against the row before, and all pseudonyms.

    `expected` are numbers with hashes (`120:8f3a…`) that a chain must contain. Returns the checks,
    and the expected pairs that no chain contains.
    """
    missing = set(expected)
    checks = [_check_chain(tx, chain, missing) for chain in queries.chains(tx)]
    return checks, sorted(missing)


def _check_chain(tx: Transaction, chain: Any, missing: set[str]) -> AuditCheck:
    check = AuditCheck(chain.organization_id, chain.first, chain.number, chain.hash)
    number = chain.first - 1
    expected = chain.anchor
    checked_people: set[str] = set()
    missing.discard(f"{number}:{expected}")
    while rows := queries.rows_after(tx, chain.organization_id, number):
        for row in rows:
            if row["number"] != number + 1:
                check.problems.append(f"{_span(number + 1, row['number'] - 1)} missing.")
            elif row["previous"] != expected:
                before = "Rows before the first one were changed"
                if number >= chain.first:
                    before = f"Row {number} was changed"
                check.problems.append(f"{before}, or row {number + 1} was.")
            number = row["number"]
            expected = queries.hash_of(row)
            missing.discard(f"{number}:{expected}")
        people = {row[name] for row in rows for name in ("person", "on_behalf_of")}
        new_people = people - checked_people - {None}
        _check_people(tx, check, sorted(new_people))
        checked_people |= new_people
    if number < chain.number:
        check.problems.append(f"{_span(number + 1, chain.number)} missing.")
    elif number > chain.number:
        check.problems.append(f"{_span(chain.number + 1, number)} not of this chain.")
    elif expected != chain.hash:
        check.problems.append(f"Row {number} was changed.")
    return check


def _check_people(tx: Transaction, check: AuditCheck, ids: Sequence[str]) -> None:
    for row in queries.people(tx, ids):  # the rows of erased users are deleted
        if queries.pseudonym(row.salt, (row.organization_id, row.user_id, row.address)) != row.id:
            check.problems.append(f"The person behind {row.id} was changed.")


def _span(first: int, last: int) -> str:
    if first == last:
        return f"Row {first} is"
    return f"Rows {first} to {last} are"


def exported(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in its JSON form."""
    return {name: row[name] for name in row if name != "seq"} | {
        "created_at": stamp(row["created_at"])
    }
