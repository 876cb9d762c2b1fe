"""Dolt databases as remotes of a user's memory: a commit for each version, and a branch for each proposal that waits.

What is there is pulled first, then what is new here is pushed, one version after the other. No lock on the memory is kept
meanwhile, and each step can be repeated: a commit says which version it is, and `main` must be where it was last seen.

What an owner commits there becomes versions by the same functions as every write of an owner. Where the memory went on too, both
changes stay if they are of different lines. Where they are not, what the remote held waits as a proposal of the owner: nothing is
lost, and the memory stays what it is.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from ricordo.domain.authors import signature
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import Access, Remote
from ricordo.domain.scope import LOCAL_ORGANIZATION, Actor, Scope, User
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import Invalid, RicordoError
from ricordo.features.memory_care.erasure.service import forgotten_names
from ricordo.features.sync.dolt import task_tables
from ricordo.features.sync.dolt.database import (
    Database,
    DoltEdit,
    DoltRow,
    RemoteCommit,
    Trailer,
    branch_of,
    date_of,
    proposal_message,
    trailer_of,
    version_message,
)
from ricordo.features.sync.dolt.engines import (
    DoltAddress,
    Engine,
    claim,
    marker_of,
    open_engine,
    read_address,
)
from ricordo.features.sync.dolt.pulled_commit import open_conflicts, take_over
from ricordo.features.sync.remotes import queries as remotes
from ricordo.features.sync.remotes.service import (
    add_for_all,
    owner_of,
    require_lease,
    until_settled,
)
from ricordo.runtime import Runtime
from ricordo.settings import Settings
from ricordo.storage import blocks, history, proposals, versions
from ricordo.storage.engine.store import Store, Transaction

_KIND = "dolt"
_ORGANIZATION = "{organization}"  # its place in RICORDO_DOLT_REMOTE
_PORTION = 50  # versions that are read, and then noted, at once


class DoltRemotes:
    """Remotes of the kind `dolt`."""

    kind = _KIND
    is_shared = True  # its rows name their users
    marker = staticmethod(marker_of)

    def read(self, asked: Access, settings: Settings) -> Access:
        """Check the address, and take a password out of it."""
        if asked.options or asked.username:
            raise Invalid(
                "A Dolt remote takes no options, and its user name is a part of its address."
            )
        found = _address(asked, settings)
        return Access(found.address, None, found.password)

    async def sync(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> Remote:
        """Bring the database and the memory together.

        Raises Unavailable where it cannot be reached or refuses, Conflict or Invalid where what is there cannot be pulled; nothing
        is lost on either side.
        """
        user = await store.read(lambda tx: owner_of(tx, remote))
        if asked := database_of_all(settings, remote.organization_id):
            common = _address(asked, settings)
            if common.address == access.address:
                access = replace(access, password=common.password or access.password)
        # Also what is cancelled while it connects, or while it closes, leaves no connection or child process behind.
        opening = asyncio.create_task(asyncio.to_thread(open_engine, _address(access, settings)))
        try:
            database = Database(await asyncio.shield(opening), user.identifier or user.id)
            await asyncio.to_thread(claim, access.address, remote.organization_id)
            done = await _DoltSync(store, database, remote, user).run()
        finally:
            await asyncio.shield(_close(opening))
        return replace(done, last_error=await store.read(lambda tx: open_conflicts(tx, remote)))


def database_of_all(settings: Settings, organization_id: str) -> Access | None:
    """The database that RICORDO_DOLT_REMOTE names for all users of an organization."""
    named = settings.dolt_remote.get_secret_value() if settings.dolt_remote else None
    if named is None or (_ORGANIZATION not in named and organization_id != LOCAL_ORGANIZATION):
        return None
    return Access(named.replace(_ORGANIZATION, organization_id))


def _address(access: Access, settings: Settings) -> DoltAddress:
    return read_address(
        access.address,
        access.password,
        allow_private=settings.allow_private_remotes,
        folders=settings.folders_of_remotes,
    )


async def _close(opening: asyncio.Task[Engine]) -> None:
    with suppress(RicordoError):
        await asyncio.to_thread((await opening).close)


class _DoltSync:
    """One sync. `remote` is how far it is."""

    def __init__(self, store: Store, database: Database, remote: Remote, user: User) -> None:
        self.remote = remote
        self._store = store
        self._database = database
        self._user = user
        self._owner = Actor("user", user.id, user.name)
        self._name = user.identifier or user.id
        self._scope = Scope(remote.organization_id)

    async def run(self) -> Remote:
        """Pull, then push; a commit of somebody else meanwhile makes it begin again."""
        await asyncio.to_thread(self._database.prepare)
        return await until_settled(self._attempt)

    async def _attempt(self) -> Remote:
        self.remote = await self._store.read(
            lambda tx: remotes.get(tx, self._scope, self.remote.id)
        )
        await self._pull()
        await self._push()
        return self.remote

    async def _pull(self) -> None:
        seen = await asyncio.to_thread(look, self._database, self.remote)
        if seen.head != self.remote.seen:
            self.remote = await self._store.read(lambda tx: caught_up(tx, self.remote, seen))
        if seen.head != self.remote.seen:
            await self._take_over(seen.head)
            self.remote = replace(self.remote, seen=seen.head)

    async def _take_over(self, head: str) -> None:
        """Pull commit by commit; from one that cannot be pulled on, all in one, for it may be mended since.

        What was there before is pulled as a history into an empty memory alone, and into another as one change.
        """
        base = self.remote.seen
        chain_id = self.remote.chain_id
        has_versions = await self._store.read(lambda tx: bool(history.page(tx, chain_id, limit=1)))
        steps = await asyncio.to_thread(
            partial(self._database.commits_since, base, head, as_one=base is None and has_versions)
        )
        for number, step in enumerate(steps):
            try:
                await self._take_over_step(step)
            except RicordoError:
                if len(steps) - number < 2:
                    raise
                authors = frozenset[tuple[str, str]]().union(
                    *(one.authors for one in steps[number:])
                )
                await self._take_over_step(
                    replace(steps[-1], commit=head, before=step.before, authors=authors)
                )
                return

    async def _take_over_step(self, step: RemoteCommit) -> None:
        self.remote = await self._store.write(
            lambda tx: take_over(tx, remote=self.remote, owner=self._owner, step=step)
        )

    async def _push(self) -> None:
        while True:
            await require_lease(self._store)
            portion = await self._store.read(self._portion)
            for edit, last in portion:
                head = await asyncio.to_thread(self._commit, edit, last)
                self.remote = replace(self.remote, seen=head, followed=last.number)
            if portion:
                await self._store.write(self._note)
                continue
            rows, newest, waiting, now = await self._store.read(self._memory)
            tasks = await self._store.read(lambda tx: task_tables.rows_of(tx, self._user))
            if newest is None or newest.number == self.remote.followed:
                head = await asyncio.to_thread(self._level, rows, newest, now)
                await asyncio.to_thread(self._sync_branches, waiting, head)
                head = await asyncio.to_thread(
                    task_tables.bring_in_step, self._database, self._name, tasks, head, now
                )
                self.remote = replace(self.remote, seen=head)
                return

    def _note(self, tx: Transaction) -> None:
        remotes.note(tx, replace(self.remote, last_error=open_conflicts(tx, self.remote)))

    def _commit(self, edit: DoltEdit, last: BlockVersion) -> str:
        """Commit a version; one that approved a proposal merges its branch, while that is as it was made."""
        merged = None
        if last.proposal_id is not None:
            of_proposal = (
                one for one in self._database.branches() if one.proposal_id == last.proposal_id
            )
            merged = next((one for one in of_proposal if one.is_ours), None)
        return self._database.commit(self.remote.seen or "", edit, merged)

    def _level(self, rows: Mapping[str, DoltRow], last: BlockVersion | None, now: int) -> str:
        """Commit what no version tells of, titles and schemas; returns the head."""
        head = self.remote.seen or self._database.head()
        there = self._database.rows(head)
        differing = {
            label: rows.get(label)
            for label in {*there, *rows}
            if there.get(label) != rows.get(label)
        }
        if not differing or last is None:
            return head
        message = version_message(last, f"Bring {', '.join(sorted(differing))} in step")
        return self._database.commit(
            head, DoltEdit(differing, signature(self._owner), date_of(now), message)
        )

    def _sync_branches(self, waiting: list[Proposal], head: str) -> None:
        wanted = {branch_of(self._name, proposal): proposal for proposal in waiting}
        for one in self._database.branches():
            if (
                wanted.pop(one.branch, None) is None and one.is_ours
            ):  # what others committed on it would be lost with it
                self._database.drop_branch(one.branch)
        for name, proposal in wanted.items():
            self._open_branch(name, proposal, head)

    def _open_branch(self, name: str, proposal: Proposal, head: str) -> None:
        """Make the branch of a proposal, from the version that it was made from."""
        row = self._database.rows(head).get(proposal.label)
        if proposal.base is not None and (row.body if row else None) != proposal.base_value:
            start = self._database.commit_of(proposal.base.hex(), proposal.chain_id)
            if start is not None:
                head = start
                row = self._database.rows(start).get(proposal.label)
        changes: dict[str, DoltRow | None] = {proposal.label: None}
        if proposal.value is not None:
            title, schema_ref = (row.title, row.schema_ref) if row else (None, None)
            changes[proposal.new_label or proposal.label] = DoltRow(
                title, proposal.value, schema_ref
            )
        date = date_of(proposal.created_at)
        message = proposal_message(proposal)
        self._database.open_branch(
            name, head, DoltEdit(changes, signature(proposal.author), date, message)
        )

    def _portion(self, tx: Transaction) -> list[tuple[DoltEdit, BlockVersion]]:
        """The next versions as edits, each with the last version in it; versions of one git commit are one edit."""
        chain_id = self.remote.chain_id
        after = self.remote.followed
        newest_first = history.page(tx, chain_id, limit=_PORTION, before=after + _PORTION + 1)
        found = [version for version in reversed(newest_first) if version.number > after]
        # One commit may have changed many blocks, and is never divided.
        while found and (more := history.page(tx, chain_id, limit=1, before=found[-1].number + 2)):
            if more[0].number == found[-1].number or more[0].id != found[-1].id:
                break
            found.append(more[0])
        now = self._rows(tx) if found else {}
        groups = [list(group) for _, group in groupby(found, key=lambda version: version.id)]
        return [(self._edit(tx, group, now), group[-1]) for group in groups]

    def _edit(
        self, tx: Transaction, group: list[BlockVersion], now: Mapping[str, DoltRow]
    ) -> DoltEdit:
        changes: dict[str, DoltRow | None] = {}
        before: dict[str, str] = {}
        for version in group:
            if version.old_label:
                changes[version.old_label] = None
            elif (earlier := history.before(tx, version)) and earlier.blob and version.blob:
                before[version.label] = versions.read_text(tx, version.chain_id, earlier.blob)
            row = None
            if version.blob is not None:
                row = replace(
                    now.get(version.label, DoltRow(None, "", None)),
                    body=versions.read_text(tx, version.chain_id, version.blob),
                )
            changes[version.label] = row
        last = group[-1]
        latest = {label: row.body for label, row in now.items()}
        return DoltEdit(
            changes,
            signature(last.author),
            date_of(last.created_at),
            version_message(last),
            before,
            latest,
        )

    def _memory(
        self, tx: Transaction
    ) -> tuple[dict[str, DoltRow], BlockVersion | None, list[Proposal], int]:
        last = next(iter(history.page(tx, self.remote.chain_id, limit=1)), None)
        return (
            self._rows(tx),
            last,
            list(proposals.waiting(tx, self.remote.chain_id)),
            tx.clock.now(),
        )

    def _rows(self, tx: Transaction) -> dict[str, DoltRow]:
        return {
            block.label: DoltRow(block.title, block.value, block.schema_ref)
            for block in blocks.of_user(tx, self._scope, self._owner.id)
        }


@dataclass(frozen=True, slots=True)
class SeenHead:
    """The head of `main`, and the newest commits that say they are versions of this chain, the newest version first.

    `known` is the commit that was seen last, None where the history does not have it.
    """

    head: str
    known: str | None
    ours: tuple[tuple[str, Trailer], ...] = ()


def look(database: Database, remote: Remote) -> SeenHead:
    """See what came to `main` since the commit that the remote was seen at."""
    head = database.head()
    if head == remote.seen:
        return SeenHead(head, head)
    log = database.log()
    known = remote.seen if any(commit.hash == remote.seen for commit in log) else None
    if known is not None:
        log = database.log(known)
    trailers = ((commit.hash, trailer_of(commit.message)) for commit in log)
    ours = [
        (hash, trailer)
        for hash, trailer in trailers
        if trailer and trailer.chain_id == remote.chain_id
    ]
    return SeenHead(head, known, tuple(sorted(ours, key=lambda one: -one[1].number)))


def caught_up(tx: Transaction, remote: Remote, seen: SeenHead) -> Remote:
    """The remote as it really is: what was pushed just before a kill counts, and what is not there any more does not."""
    for commit, trailer in seen.ours:
        if seen.known is not None and trailer.number < remote.followed:
            break  # a copy that somebody made of an older one
        found = history.page(tx, remote.chain_id, limit=1, before=trailer.number + 1)
        if found and (found[0].number, found[0].id.hex()) == (trailer.number, trailer.version):
            return replace(remote, seen=commit, followed=trailer.number)
    return remote if seen.known is not None else replace(remote, seen=None, followed=0)


async def _add_missing(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Make the database of all users a remote of each memory that lacks it.

    A user with the name of one who was forgotten is left out: the database may still hold what is to be forgotten.
    """
    if runtime.settings.dolt_remote is None:
        return
    is_forgotten = await forgotten_names(runtime)
    for organization_id in await runtime.store.read(remotes.organization_ids):
        if asked := database_of_all(runtime.settings, organization_id):
            await add_for_all(
                runtime,
                runtime.remotes[_KIND],
                organization_id,
                asked,
                partial(is_forgotten, organization_id),
            )


ALL_USERS = JobHandler("dolt_of_all_users", _add_missing, every_seconds=60.0)
