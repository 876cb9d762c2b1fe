"""Dolt databases as remotes of a user's memory.

A database has a commit for each version and a branch for each waiting proposal. A sync pulls first,
then pushes new versions one after the other. The memory is not locked during the sync. Each step
can be repeated, since a commit names its version, and a push requires that `main` has not moved.

Commits of other programs become versions by the same functions as the owner's writes. If the memory
has changed too, both changes are kept if they concern different lines. Otherwise the remote's text
waits as a proposal to the owner. Nothing is lost, and the memory does not change.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
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
from ricordo.features.sync.dolt.options import DoltSettings
from ricordo.features.sync.dolt.pulled_commit import open_conflicts, pull_commit
from ricordo.features.sync.remotes.service import (
    access_of,
    add_for_all,
    owner_of,
    require_lease,
    until_settled,
)
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.settings import Settings
from ricordo.storage import blocks, history, proposals, remotes, versions
from ricordo.storage.engine.store import Store, Transaction

_KIND = "dolt"
_ORGANIZATION = "{organization}"  # the placeholder of an organization's id in RICORDO_DOLT_REMOTE
_PORTION = 50  # versions that are read and recorded together


class DoltRemotes:
    """Remotes of the kind `dolt`."""

    kind = _KIND
    is_shared = True  # its rows name the users they belong to
    marker = staticmethod(marker_of)

    def read(self, access: Access, settings: Settings) -> Access:
        """Check the address, and separate the password from it.

        Args:
            access: The access as the caller gave it.
            settings: The operator's permissions for addresses.

        Raises:
            Invalid: if the address cannot be a remote, or a user name or options are given.
        """
        if access.options or access.username:
            raise Invalid(
                "A Dolt remote takes no options and no user name: put the name into the address."
            )
        address = _address(access, settings)
        return Access(address.address, None, address.password)

    async def keeps_forgotten(self, store: Store, settings: Settings, remote: Remote) -> bool:
        """Return whether the remote's history has versions that were rewritten here.

        Args:
            store: The store of the memory.
            settings: The settings of the server.
            remote: The remote.

        Raises:
            Unavailable: if the database cannot be reached.
        """
        access = await asyncio.to_thread(access_of, remote, Secret(settings.data_dir))
        async with self._opened(store, remote, access, settings) as (database, _, _):
            log = await asyncio.to_thread(database.log)
        trailers = [trailer for commit in log if (trailer := trailer_of(commit.message))]
        ours = [trailer for trailer in trailers if trailer.chain_id == remote.chain_id]
        return await store.read(lambda tx: any(is_rewritten(tx, trailer) for trailer in ours))

    async def sync(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> Remote:
        """Pull from the database, then push.

        Nothing is lost on either side if it fails.

        Args:
            store: The store, which checks the lease of the sync's job at each write.
            remote: The remote with its progress so far.
            access: The address with its password.
            settings: The settings of the server.

        Returns:
            The remote with its progress. Its `last_error` names conflicts that wait for the owner.

        Raises:
            Unavailable: if the database cannot be reached or refuses, or changes too fast.
            Conflict, Invalid: if its content cannot be pulled, or it belongs to another
                organization.
            LeaseLost: if the sync's job was cancelled or taken over.
        """
        async with self._opened(store, remote, access, settings) as (database, user, name):
            await asyncio.to_thread(claim, access.address, remote.organization_id)
            synced = await _DoltSync(store, database, remote, user, name=name).run()
        return replace(synced, last_error=await store.read(lambda tx: open_conflicts(tx, remote)))

    @asynccontextmanager
    async def _opened(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> AsyncIterator[tuple[Database, User, str]]:
        """Open the database; yield it with the remote's user, and the user's name in it."""
        user = await store.read(lambda tx: owner_of(tx, remote))
        name = name_there(user, DoltSettings.current().dolt_user_prefix)
        if common_access := database_of_all(remote.organization_id):
            common = _address(common_access, settings)
            if common.address == access.address:
                access = replace(access, password=common.password or access.password)
        # The shields make sure that the connection or child process is closed even after a cancel.
        opening = asyncio.create_task(asyncio.to_thread(open_engine, _address(access, settings)))
        try:
            yield Database(await asyncio.shield(opening), name), user, name
        finally:
            await asyncio.shield(_close(opening))


def name_there(user: User, prefix: str) -> str:
    """Return the name of the user in the database's rows.

    Args:
        user: The user.
        prefix: The beginning of identifiers that rows leave out; may be empty.

    Raises:
        Invalid: if the user's identifier does not begin with the prefix. Without it, the rows could
            belong to another user.
    """
    identifier = user.identifier or user.id
    name = identifier.removeprefix(prefix)
    if not name or not identifier.startswith(prefix):
        raise Invalid(
            f"RICORDO_DOLT_USER_PREFIX is {prefix}, and this user's name does not begin with it, "
            "so this user has no rows in Dolt."
        )
    return name


def database_of_all(organization_id: str) -> Access | None:
    """Return the database that RICORDO_DOLT_REMOTE names for all users of an organization.

    Returns None if the setting is not set, or not for this organization.
    """
    secret = DoltSettings.current().dolt_remote
    address = secret.get_secret_value() if secret else None
    if address is None or (_ORGANIZATION not in address and organization_id != LOCAL_ORGANIZATION):
        return None
    return Access(address.replace(_ORGANIZATION, organization_id))


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
    """One sync. `remote` is its progress."""

    def __init__(
        self, store: Store, database: Database, remote: Remote, user: User, *, name: str
    ) -> None:
        self.remote = remote
        self._store = store
        self._database = database
        self._user = user
        self._owner = Actor("user", user.id, user.name)
        self._name = name
        self._scope = Scope(remote.organization_id)

    async def run(self) -> Remote:
        """Pull, then push; start again after a commit by another program."""
        await asyncio.to_thread(self._database.prepare)
        return await until_settled(self._attempt)

    async def _attempt(self) -> Remote:
        self.remote = await self._store.read(
            lambda tx: remotes.get(tx, self._scope, self.remote.id)
        )
        await self._drop_rewritten_history()
        await self._pull()
        await self._push()
        return self.remote

    async def _drop_rewritten_history(self) -> None:
        """If a text was forgotten here, start a new history in the database.

        This removes all commits, so it is done only if the database contains only this memory. The
        push then sends all present versions.
        """
        chain_id = self.remote.chain_id
        trailer = await asyncio.to_thread(self._database.newest_trailer, chain_id)
        if trailer is None and self.remote.followed == 0:
            return
        # An earlier sync has reset the history; a kill may have come before the bytes were removed.
        was_reset = trailer is None
        if trailer and not await self._store.read(lambda tx: is_rewritten(tx, trailer)):
            return
        # Read the branches before the check, so that a commit during it is noticed.
        heads = await asyncio.to_thread(self._database.heads)
        messages = task_tables.messages_of(self._name)
        if not await asyncio.to_thread(self._database.is_only_of, chain_id, messages):
            return
        await require_lease(self._store)
        if not was_reset:
            await asyncio.to_thread(self._database.begin_again, heads)
        await asyncio.to_thread(self._database.drop_unreachable)
        # The push then writes all rows again.
        self.remote = replace(self.remote, seen=None, followed=0)
        await self._store.write(self._note)

    async def _pull(self) -> None:
        remote_head = await asyncio.to_thread(read_head, self._database, self.remote)
        if remote_head.commit != self.remote.seen:
            self.remote = await self._store.read(
                lambda tx: recover_progress(tx, self.remote, remote_head)
            )
        if remote_head.commit != self.remote.seen:
            await self._pull_commits(remote_head.commit)
            self.remote = replace(self.remote, seen=remote_head.commit)

    async def _pull_commits(self, head: str) -> None:
        """Pull commit by commit.

        If a commit cannot be pulled, it is combined with all later commits, since one of them may
        have corrected it. The first pull imports the whole history if the memory is empty.
        Otherwise it imports the present rows as one change.
        """
        base = self.remote.seen
        chain_id = self.remote.chain_id
        has_versions = await self._store.read(lambda tx: bool(history.page(tx, chain_id, limit=1)))
        steps = await asyncio.to_thread(
            partial(self._database.commits_since, base, head, as_one=base is None and has_versions)
        )
        for number, step in enumerate(steps):
            try:
                await self._pull_commit(step)
            except RicordoError:
                if len(steps) - number < 2:
                    raise
                authors = frozenset[tuple[str, str]]().union(
                    *(later.authors for later in steps[number:])
                )
                await self._pull_commit(
                    replace(steps[-1], commit=head, before=step.before, authors=authors)
                )
                return

    async def _pull_commit(self, step: RemoteCommit) -> None:
        self.remote = await self._store.write(
            lambda tx: pull_commit(tx, remote=self.remote, owner=self._owner, step=step)
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
                head = await asyncio.to_thread(self._commit_settings, rows, newest, now)
                await asyncio.to_thread(self._sync_branches, waiting, head)
                head = await asyncio.to_thread(
                    partial(
                        task_tables.write_rows,
                        self._database,
                        self._name,
                        tasks,
                        expected=head,
                        now=now,
                    )
                )
                self.remote = replace(self.remote, seen=head)
                return

    def _note(self, tx: Transaction) -> None:
        remotes.note(tx, replace(self.remote, last_error=open_conflicts(tx, self.remote)))

    def _commit(self, edit: DoltEdit, last: BlockVersion) -> str:
        """Commit a version; if it approved a proposal, merge the proposal's branch.

        A branch with commits by others is not merged.
        """
        merged = None
        if last.proposal_id is not None:
            for branch in self._database.branches():
                if branch.proposal_id == last.proposal_id and branch.is_ours:
                    merged = branch
                    break
        return self._database.commit(self.remote.seen or "", edit, merged)

    def _commit_settings(
        self, rows: Mapping[str, DoltRow], last: BlockVersion | None, now: int
    ) -> str:
        """Commit titles and schemas, which have no versions; return the head."""
        head = self.remote.seen or self._database.head()
        remote_rows = self._database.rows(head)
        differing = {
            label: rows.get(label)
            for label in {*remote_rows, *rows}
            if remote_rows.get(label) != rows.get(label)
        }
        if not differing or last is None:
            return head
        message = version_message(last, f"Bring {', '.join(sorted(differing))} in step")
        return self._database.commit(
            head, DoltEdit(differing, signature(self._owner), date_of(now), message)
        )

    def _sync_branches(self, waiting: list[Proposal], head: str) -> None:
        missing = {branch_of(self._name, proposal): proposal for proposal in waiting}
        for branch in self._database.branches():
            proposal_waits = missing.pop(branch.branch, None) is not None
            # A branch with commits by others is not deleted, since they would be lost.
            if not proposal_waits and branch.is_ours:
                self._database.drop_branch(branch.branch)
        for name, proposal in missing.items():
            self._open_branch(name, proposal, head)

    def _open_branch(self, name: str, proposal: Proposal, head: str) -> None:
        """Create the branch of a proposal, starting at the proposal's base version."""
        row = self._database.rows(head).get(proposal.label)
        body = row.body if row else None
        if proposal.base is not None and body != proposal.base_value:
            start = self._database.commit_of(proposal.base.hex(), proposal.chain_id)
            if start is not None:
                head = start
                row = self._database.rows(start).get(proposal.label)
        changes: dict[str, DoltRow | None] = {proposal.label: None}
        if proposal.value is not None:
            base_row = row or DoltRow(None, "", None)
            changes[proposal.new_label or proposal.label] = replace(base_row, body=proposal.value)
        date = date_of(proposal.created_at)
        message = proposal_message(proposal)
        self._database.open_branch(
            name, head, DoltEdit(changes, signature(proposal.author), date, message)
        )

    def _portion(self, tx: Transaction) -> list[tuple[DoltEdit, BlockVersion]]:
        """Return the next versions as edits, each with its last version.

        Versions from one git commit make one edit.
        """
        chain_id = self.remote.chain_id
        after = self.remote.followed
        newest_first = history.page(tx, chain_id, limit=_PORTION, before=after + _PORTION + 1)
        new_versions = [version for version in reversed(newest_first) if version.number > after]
        # One commit may have changed many blocks and must not be split.
        while new_versions and (
            more := history.page(tx, chain_id, limit=1, before=new_versions[-1].number + 2)
        ):
            if more[0].number == new_versions[-1].number or more[0].id != new_versions[-1].id:
                break
            new_versions.append(more[0])
        now = self._rows(tx) if new_versions else {}
        groups = [list(group) for _, group in groupby(new_versions, key=lambda version: version.id)]
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
            author=signature(last.author),
            date=date_of(last.created_at),
            message=version_message(last),
            before=before,
            latest=latest,
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
class RemoteHead:
    """The head of `main`, and the commits that name versions of this chain.

    `last_seen` is the last commit that a sync has seen; None if the history no longer contains it.
    `ours` are the commits since then that have trailers, the newest version first.
    """

    commit: str
    last_seen: str | None
    ours: tuple[tuple[str, Trailer], ...] = ()


def read_head(database: Database, remote: Remote) -> RemoteHead:
    """Read the head of `main`, and its commits since the last sync.

    Args:
        database: The database.
        remote: The remote, whose `seen` is the head at the last sync.
    """
    head = database.head()
    if head == remote.seen:
        return RemoteHead(head, head)
    log = database.log()
    if any(commit.hash == remote.seen for commit in log):
        last_seen = remote.seen
    else:
        last_seen = None
    if last_seen is not None:
        log = database.log(last_seen)
    trailers = ((commit.hash, trailer_of(commit.message)) for commit in log)
    ours = [
        (hash, trailer)
        for hash, trailer in trailers
        if trailer and trailer.chain_id == remote.chain_id
    ]
    ours.sort(key=lambda pair: -pair[1].number)
    return RemoteHead(head, last_seen, tuple(ours))


def is_rewritten(tx: Transaction, trailer: Trailer) -> bool:
    """Return whether the version that a commit names has another id here now, or is missing.

    Args:
        tx: The transaction.
        trailer: The version as the commit's message names it.
    """
    newest = history.page(tx, trailer.chain_id, limit=1, before=trailer.number + 1)
    return not newest or (newest[0].number, newest[0].id.hex()) != (
        trailer.number,
        trailer.version,
    )


def recover_progress(tx: Transaction, remote: Remote, head: RemoteHead) -> Remote:
    """Return the remote with its actual progress.

    A commit that was pushed just before a kill counts as pushed. A commit that has disappeared does
    not count.

    Args:
        tx: The transaction.
        remote: The remote with its recorded progress.
        head: The head of `main` as it was read.
    """
    for commit, trailer in head.ours:
        if head.last_seen is not None and trailer.number < remote.followed:
            break  # another program has copied the trailer of an older commit
        newest = history.page(tx, remote.chain_id, limit=1, before=trailer.number + 1)
        if newest and (newest[0].number, newest[0].id.hex()) == (trailer.number, trailer.version):
            return replace(remote, seen=commit, followed=trailer.number)
    if head.last_seen is not None:
        return remote
    return replace(remote, seen=None, followed=0)


async def _add_missing(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Make the common database a remote of each memory that does not have it yet.

    Users with the name of a forgotten user are left out, since the database may still contain the
    forgotten user's rows.
    """
    settings = DoltSettings.current()
    if settings.dolt_remote is None:
        return
    is_forgotten = await forgotten_names(runtime)
    prefix = settings.dolt_user_prefix

    def is_left_out(organization_id: str, identifier: str) -> bool:
        return not identifier.startswith(prefix) or is_forgotten(organization_id, identifier)

    for organization_id in await runtime.store.read(remotes.organization_ids):
        if access := database_of_all(organization_id):
            await add_for_all(
                runtime,
                runtime.remotes[_KIND],
                organization_id,
                access,
                partial(is_left_out, organization_id),
            )


ALL_USERS = JobHandler("dolt_of_all_users", _add_missing, every_seconds=60.0)


REMOTES = DoltRemotes()
