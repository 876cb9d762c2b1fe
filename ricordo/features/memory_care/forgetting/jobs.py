"""The job that forgets one fact: it searches and removes until a whole round finds nothing.

Rows are found in reads and cleaned in short writes. A turn that has read the fact may still be
running. So the job waits for the turn and searches again.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ricordo.agents.conversations import recompile_system
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.remote import Remote
from ricordo.domain.scope import Scope
from ricordo.errors import (
    Collision,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    RicordoError,
    Unavailable,
)
from ricordo.features.memory_care.erasure import receipts
from ricordo.features.memory_care.erasure.files import find_backups, without_password
from ricordo.features.memory_care.erasure.work import PortionedWork
from ricordo.features.memory_care.forgetting import rules, service
from ricordo.features.memory_care.forgetting.belonging_queries import (
    Belongings,
    belongings_of,
    reach_of,
    tables_with_words,
)
from ricordo.features.memory_care.forgetting.block_queries import labels_with, shared_blocks_with
from ricordo.features.memory_care.forgetting.source_queries import JOB, Source
from ricordo.features.memory_care.forgetting.state import Forgetting, Item
from ricordo.memory.remote_kind import RewritesHistory
from ricordo.runtime import Runtime
from ricordo.search.vector_index import portions
from ricordo.secret import Secret
from ricordo.storage import jobs, remotes, runs, users
from ricordo.storage.chain_files import delete_chain_files
from ricordo.storage.engine.store import Overtaken, Transaction

log = logging.getLogger(__name__)
ROUNDS = 20
_PORTION = 50
_TRIES = 300
_PAUSE = 0.1  # seconds
_ALWAYS = (
    "Clones, agent files, exports and backups outside of this data folder. Ricordo cannot change "
    "them.",
    "Data that model providers and other connected services store from requests.",
    "Texts of other people: their conversations, notes and blocks were not searched.",
    "Pictures whose text was not read, and files that are not text.",
)


_WITHOUT_USER = (
    "This conversation is about no user. Its agent's instructions, texts that programs stored, "
    "and other conversations were not searched. Agents may remember the text again if it is said "
    "again."
)


class ForgettingWork(PortionedWork[Forgetting]):
    """The removal of one fact in progress."""

    def __init__(self, runtime: Runtime, job: Job, report: Report) -> None:
        super().__init__(runtime, job, report, Forgetting.model_validate(job.payload))
        self._sources: list[Source] = []

    async def run(self) -> Forgetting:
        """Do the rest of the work, and return its finished state.

        Raises Unavailable if it has to be repeated.
        """
        if not self.state.is_done:
            self._sources = await service.sources_of(self._runtime)
            owned = await self._belongings()
            await self._remove_all(owned)
            await self._write(_note_pass)
            await self._wait_for_turns(owned)
            await self._wait_for_added_texts(owned)
            # A turn that ran during the first search may have written the fact that it read, even
            # if it has ended since.
            await self._remove_all(await self._belongings())
            await self._recompile()
            for owner_id in sorted(self.state.partitions):
                await self._flush(owner_id)
            await self._follow_outside()
            await self._note_remains(owned)
            await self._write(self._end)
        if self.state.finished_at is None:
            await self._rewrite_files()
        return self.state

    async def _belongings(self) -> Belongings:
        organization_id = self.state.organization_id
        user_id = self.state.user_id
        changes_agents = self.state.changes_agents
        if not user_id:
            reach = partial(
                reach_of,
                organization_id=organization_id,
                conversation_id=self.state.conversation_id,
                local_user_id=self.state.local_user_id,
            )
            return await self._store.read(reach)
        return await self._store.read(
            lambda tx: belongings_of(tx, organization_id, user_id, changes_agents=changes_agents)
        )

    async def _remove_all(self, owned: Belongings) -> None:
        for _ in range(ROUNDS):
            before = self.state
            for source in self._sources:
                await self._clean(source, owned)
            if self.state == before:
                return
        raise Unavailable("The text to forget is still being written. The removal is tried again.")

    async def _clean(self, source: Source, owned: Belongings) -> None:
        is_follower = getattr(source, "follows", False)
        needle = self.state.needle_of_followers if is_follower else self.state.needle
        items = await service.find_all(self._runtime, source, owned, needle)
        chosen = [item for item in items if self.state.takes(item)]
        prompts = [item for item in chosen if item.follows and not is_follower]
        others = [item for item in chosen if not (item.follows and not is_follower)]
        for some in (others, prompts):
            for members in portions(some, _PORTION):
                await self._write(partial(_remove, source=source, owned=owned, items=members))

    async def _wait_for_turns(self, owned: Belongings) -> None:
        """Wait for turns that may have read the fact because they began before its removal."""
        removed_at = await self._store.read(lambda tx: tx.clock.now())
        own_conversations = await self._store.read(partial(service.own_conversations, owned=owned))

        def has_ended(tx: Transaction) -> bool:
            return not any(
                run.created_at <= removed_at
                and (
                    run.conversation_id in own_conversations
                    or (owned.user_id and run.user_id == owned.user_id)
                )
                for run in runs.open_runs(tx)
            )

        await self._wait(
            has_ended, "A turn that read the text still runs. The removal is tried again after it."
        )

    async def _wait_for_added_texts(self, owned: Belongings) -> None:
        """Wait for jobs that add text to older messages, such as the texts of pictures.

        Jobs that would run later are deleted, so that they do not bring the fact back.
        """
        handlers = self._runtime.plugins.jobs()
        kinds = [handler.kind for handler in handlers if handler.adds_text]
        own_conversations = await self._store.read(partial(service.own_conversations, owned=owned))
        await self._wait(
            partial(
                _end_added_texts, kinds=kinds, owned=owned, own_conversations=own_conversations
            ),
            "Text is still being added to messages. The removal is tried again after that.",
            self._store.write,
        )

    async def _recompile(self) -> None:
        scope = Scope(self.state.organization_id)
        await self._runtime.organization_providers.of(scope.organization_id)
        for id in sorted(self.state.conversations):
            # If a turn is running or the model is missing, the conversation's next turn renders the
            # prompt.
            with suppress(RicordoError):
                await recompile_system(self._runtime, scope, id)

    async def _follow_outside(self) -> None:
        """Send the rewritten histories to clones and remotes."""
        data_dir = self._runtime.settings.data_dir
        for chain_id in self.state.chains:
            removed = await asyncio.to_thread(delete_chain_files, data_dir, chain_id)
            names = {str(path.relative_to(data_dir)): "made again" for path in removed}
            await self._write(partial(_note_files, files=names))
            for remote in await self._store.read(partial(remotes.of_chain, chain_id=chain_id)):
                await self._follow(remote)
        for at_forgetting in self._runtime.plugins.at_forgetting():
            sentences = await at_forgetting(
                self._runtime, self.state.user_id, self.state.needle_of_followers
            )
            if sentences:
                await self._note_elsewhere(sentences)
        await self._sweep_copies()

    async def _follow(self, remote: Remote) -> None:
        address = without_password(remote.address)
        if remote.kind != "git":
            if await self._has_begun_again(remote):
                kept = (
                    f"The history of the memory's {remote.kind} remote at {address} was created "
                    "again. Clones of it still have the old history."
                )
            else:
                kept = (
                    f"The memory's {remote.kind} remote at {address} gets the new texts, but "
                    "keeps the older versions with the forgotten text."
                )
        else:
            await self._store.write(lambda tx: jobs.add(tx, remote.job()))
            if await self._has_followed(remote):
                kept = (
                    f"The memory's git remote at {address} was rewritten. Clones of it, and branches "
                    "that others made there, still have the old history."
                )
            else:
                kept = (
                    f"The memory's git remote at {address} could not be rewritten yet, and keeps a "
                    "copy until it can be reached."
                )
        await self._note_elsewhere([kept])

    async def _has_begun_again(self, remote: Remote) -> bool:
        """Update the remote; return whether the old versions have left its history."""
        kind = self._runtime.remotes.get(remote.kind)
        if not isinstance(kind, RewritesHistory):
            return False
        since = await self._store.read(lambda tx: tx.clock.now())
        await self._store.write(lambda tx: jobs.add(tx, remote.job()))
        scope = Scope(remote.organization_id)
        for _ in range(_TRIES):
            try:
                current = await self._store.read(lambda tx: remotes.get(tx, scope, remote.id))
            except NotFound:
                return False
            if (current.last_at or 0) >= since:
                break
            await asyncio.sleep(_PAUSE)
        try:
            return not await kind.keeps_forgotten(
                self._runtime.store, self._runtime.settings, remote
            )
        except RicordoError:
            return False

    async def _has_followed(self, remote: Remote) -> bool:
        head = self.state.chains[remote.chain_id]["head"]
        scope = Scope(remote.organization_id)
        for _ in range(_TRIES):
            try:
                current = await self._store.read(lambda tx: remotes.get(tx, scope, remote.id))
            except NotFound:
                return True
            if current.seen == head:
                return True
            if current.last_error and current.last_at and current.last_at > remote_time(remote):
                return False
            await asyncio.sleep(_PAUSE)
        return False

    async def _note_remains(self, owned: Belongings) -> None:
        needle = self.state.needle
        remains = await self._store.read(lambda tx: shared_blocks_with(tx, owned, needle))
        # The receipt does not hold the forgotten words, so it only counts the names.
        labels, former = await self._store.read(lambda tx: labels_with(tx, owned, needle))
        if labels:
            remains.append(f"Names of blocks that say it, and stay: {len(labels)}.")
        if former:
            remains.append(
                f"Former names of blocks that say it, and stay in the history: {len(former)}."
            )
        unchosen = 0
        for source in () if self.state.takes_all else self._sources:
            if not getattr(source, "follows", False):
                items = await service.find_all(self._runtime, source, owned, needle)
                unchosen += sum(item.match == "exact" and not item.follows for item in items)
        if unchosen:
            remains.append(f"{unchosen} items that say it were not chosen, and stay.")
        settings = self._runtime.settings
        database = None if settings.postgres_url else settings.database_path
        backups, unread = await asyncio.to_thread(find_backups, settings.data_dir, database)
        if backups:
            remains.append(
                f"Backups of this server that are older than this removal: {len(backups)}. Delete "
                "them when they are not needed."
            )
        remains += unread
        if not self.state.user_id:
            remains.append(_WITHOUT_USER)
        await self._note_elsewhere([*remains, *_ALWAYS])

    def _end(self, tx: Transaction, forgetting: Forgetting) -> None:
        if forgetting.is_never_again and (forgetting.user_id or forgetting.local_user_id):
            _add_rule(tx, forgetting)
        forgetting.is_done = True
        forgetting.text = ""
        forgetting.sentences = []
        forgetting.ids = []
        forgetting.user_id = ""
        forgetting.local_user_id = ""
        forgetting.conversations = set()

    async def _rewrite_files(self) -> None:
        # Rows that were deleted earlier, such as uploads, may have left the fact in free pages of
        # the file.
        table_names = (table.name for table in tables_with_words())
        await self._finish([*self.state.removed, *self.state.changed, *_TOUCHED, *table_names])


# Every removal counts as a change of these tables.
_TOUCHED = ("blobs", "blocks", "blocks_log", "git_objects", "proposals", "forget_requests", "runs")


def remote_time(remote: Remote) -> int:
    return remote.last_at or 0


def _remove(
    tx: Transaction,
    forgetting: Forgetting,
    source: Source,
    owned: Belongings,
    items: Sequence[Item],
) -> None:
    perhaps = [item for item in items if item.match == "perhaps"]
    sentences = (sentence for item in perhaps for sentence in item.excerpts)
    forgetting.sentences = list(dict.fromkeys((*forgetting.sentences, *sentences)))
    # Facts are stored under the same lock, and only from messages that still exist at that time.
    users.lock(tx, owned.user_id)
    source.remove(tx, owned, forgetting, items)


def _end_added_texts(
    tx: Transaction, kinds: Sequence[str], owned: Belongings, own_conversations: set[str]
) -> bool:
    """Delete the owner's jobs of these kinds that run later; return whether no others are open."""
    now = tx.clock.now()
    own_jobs = [
        job
        for job in jobs.open_of_kinds(tx, owned.organization_id, kinds)
        if job.payload.get("conversation_id") in own_conversations
        or (owned.user_id and job.user_id == owned.user_id)
    ]
    later = [job.id for job in own_jobs if job.status == "waiting" and job.not_before > now]
    jobs.delete_waiting_ids(tx, later)
    return len(later) == len(own_jobs)


def _add_rule(tx: Transaction, forgetting: Forgetting) -> None:
    """Add the rule against remembering the fact again. If it is refused, the receipt says so."""
    try:
        rules.add_rule(tx, forgetting)
    except (Collision, Overtaken):
        raise  # the transaction is repeated
    # For example, the label of another block may differ only in case.
    except (Invalid, Forbidden, Conflict) as error:
        forgetting.note_elsewhere(
            [f"Agents may remember the text again, since the rule against it was refused: {error}"]
        )


def _note_pass(_tx: Transaction, forgetting: Forgetting) -> None:
    forgetting.passes += 1


def _note_files(_tx: Transaction, forgetting: Forgetting, files: dict[str, str]) -> None:
    forgetting.files |= files


async def _forget(runtime: Runtime, job: Job, report: Report) -> None:
    forgetting = await ForgettingWork(runtime, job, report).run()
    data_dir = runtime.settings.data_dir

    def write_receipt() -> Any:
        receipts.write(data_dir, service.receipt_of(Secret(data_dir), forgetting))

    await asyncio.to_thread(write_receipt)
    log.info("a text was forgotten", extra={"receipt": forgetting.id})


HANDLERS = (JobHandler(JOB, _forget),)
