"""Forgetting a user: hidden from everyone at once, erased by a job behind that, and a signed receipt once nothing is left."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, false, func, select, update

from ricordo.agents.run_end import close_run
from ricordo.domain.clock import to_datetime, to_micros
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.run import Run
from ricordo.domain.scope import LOCAL_USER, Scope, User
from ricordo.errors import Conflict, NotFound
from ricordo.features.erasure import queries, receipts
from ricordo.features.erasure.receipts import Erasure, Receipt
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import agent_access, deletion, runs, users
from ricordo.storage.deletion import DELETED, is_in
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, agents_archives, conversations, messages
from ricordo.storage.schema.core_tables import users as users_table
from ricordo.storage.schema.memory_tables import agents_blocks, blocks, chains, proposals

log = logging.getLogger(__name__)
# Of very many conversations the job hides the rest: it finds them again.
_HIDDEN_AT_ONCE = 250
NAMELESS = (
    "The user's name was not known any more when the erasure was resumed: messages in others' conversations that carry it, and not "
    "the user's id, may remain."
)


async def forget(
    runtime: Runtime, scope: Scope, name: str, *, with_agents: bool = False
) -> Receipt:
    """Forget the user (`with_agents` theirs too); returns state or receipt, also when asked again. Raises NotFound, Conflict."""
    user = await runtime.store.read(lambda tx: users.find(tx, scope, name))
    if user is None:
        return await _asked_before(runtime, scope, name)
    if user.id == LOCAL_USER:
        raise Conflict(
            "This is the user who runs the server, and nobody can act in their place. Delete their agents, or stop the server and "
            "remove its data folder."
        )
    own = await runtime.store.read(lambda tx: tx.all(queries.conversations_of(user.id)))
    about = {user.id, *(row.id for row in own)}
    # Turns end by themselves where that is possible, and are saved with their end: then nothing of theirs comes later.
    await _cancel(runtime, await runtime.store.read(lambda tx: _running(tx, about)))
    erasure = await asyncio.to_thread(begin, runtime, scope, user, name)

    def hide(tx: Transaction) -> tuple[Job, list[Run]]:
        hidden = erasure.model_copy(deep=True)
        users.lock(tx, user.id)
        # Whoever is called by this user's name from here on is another.
        hidden.asked_at = to_datetime(tx.clock.now()).isoformat()
        for agent_id in agent_access.agents_of(tx, user.id):
            # An agent that was kept to this user alone is nobody's then, and not everybody's.
            agent_access.attach_user(tx, agent_id, LOCAL_USER)
        if with_agents:
            hide_agents(tx, scope, hidden)
        late = _running(tx, {*about, *hidden.own_agents})
        for run in late:
            close_run(tx, run, "cancelled")
        deletion.prepare(tx)
        is_there = (users_table.c.id == user.id) & (
            users_table.c.organization_id == scope.organization_id
        )
        if not tx.run(
            update(users_table)
            .where(is_there)
            .values(organization_id=DELETED, identifier=None, name="", look=None, former=[])
        ):
            raise NotFound("This user was forgotten a moment ago.")
        hide_memory(tx, hidden)
        hide_conversations(tx, hidden, sorted(about)[:_HIDDEN_AT_ONCE])
        return queries.add_job(tx, scope.organization_id, hidden), late

    job, late = await runtime.store.write(hide)
    await _cancel(runtime, late)
    log.info("a user is being forgotten", extra={"receipt": erasure.id, "job": job.id})
    return _state(erasure)


async def find_receipt(runtime: Runtime, scope: Scope, receipt_id: str) -> Receipt:
    """Return the receipt, or how far its erasure is. Raises NotFound."""
    receipt = await asyncio.to_thread(receipts.find, runtime.settings.data_dir, receipt_id)
    receipt = receipt or await _known(runtime, lambda erasure: erasure.id == receipt_id)
    if receipt is None or receipt["organization_id"] != scope.organization_id:
        raise NotFound(f"Receipt with ID {receipt_id} not found")
    return receipt


async def forgotten_names(runtime: Runtime) -> Callable[[str, str], bool]:
    """Return what tells of an organization and a name whether a user with that name was forgotten, as far as this server knows."""
    data_dir = runtime.settings.data_dir
    secret, known = Secret(data_dir), await runtime.store.read(queries.known)
    found = {name for _, erasure in known for name in erasure.names}
    found |= await asyncio.to_thread(receipts.names_of_all, data_dir)
    return lambda organization_id, name: (
        bool(found) and receipts.hash_of_name(secret, organization_id, name) in found
    )


async def _asked_before(runtime: Runtime, scope: Scope, name: str) -> Receipt:
    data_dir = runtime.settings.data_dir
    hashed = await asyncio.to_thread(
        receipts.hash_of_name, Secret(data_dir), scope.organization_id, name
    )
    receipt = await _known(runtime, lambda erasure: hashed in erasure.names)
    receipt = receipt or await asyncio.to_thread(receipts.find_by_name, data_dir, hashed)
    if receipt is None:
        raise NotFound(f'There is no user "{name[:255]}", and none was forgotten. Check the name.')
    return receipt


async def _known(runtime: Runtime, which: Callable[[Erasure], bool]) -> Receipt | None:
    """The state or the receipt of the newest such erasure that the queue knows; the file may be on another server."""
    for job, erasure in await runtime.store.read(queries.known):
        if which(erasure):
            is_done = job.status == "done"
            secret = Secret(runtime.settings.data_dir)
            return (
                await asyncio.to_thread(receipts.receipt_of, secret, erasure)
                if is_done
                else _state(erasure)
            )
    return None


def _state(erasure: Erasure) -> Receipt:
    return {
        "id": erasure.id,
        "status": "running",
        "organization_id": erasure.organization_id,
        "receipt": f"/v1/receipts/{erasure.id}",
        "removed": dict(erasure.removed),
    }


def begin(runtime: Runtime, scope: Scope, user: User, name: str) -> Erasure:
    """Return a new erasure of the user, who is asked for by this name."""
    secret = Secret(runtime.settings.data_dir)
    names = {name, user.id, *([user.identifier] if user.identifier else [])}
    erasure = Erasure(
        id=new_id(receipts.PREFIX),
        user_id=user.id,
        identifier=user.identifier or "",
        name=user.name,
        former=list(user.former),
        organization_id=scope.organization_id,
        subject=receipts.subject_of(user.id),
        names=sorted(receipts.hash_of_name(secret, scope.organization_id, one) for one in names),
        asked_at=to_datetime(runtime.store.clock.now()).isoformat(),
        asked_by="" if scope.user_id == user.id else scope.user_id,
        database="postgresql" if runtime.settings.postgres_url else "sqlite",
    )
    if not (user.identifier or user.name):
        erasure.note_elsewhere([NAMELESS])
    return erasure


def _running(tx: Transaction, about: set[str]) -> list[Run]:
    return [
        run
        for run in runs.open_runs(tx)
        if about & {run.user_id, run.conversation_id, run.agent_id}
    ]


async def _cancel(runtime: Runtime, running: list[Run]) -> None:
    turns = [live for run in running if (live := runtime.live.get(run.id))]
    await asyncio.gather(*(turn.cancel() for turn in turns))
    streams = [recording for run in running if (recording := runtime.recordings.get(run.id))]
    await asyncio.gather(*(recording.finish() for recording in streams))


def hide_memory(tx: Transaction, erasure: Erasure) -> None:
    """Take the user's memory from every agent and out of every list, under an owner that nobody asks for."""
    is_users, hidden = chains.c.owner_kind == "user", f"{erasure.user_id}#deleted"
    is_visible = is_users & (chains.c.owner_id == erasure.user_id)
    tx.run(update(chains).where(is_visible).values(owner_id=hidden, organization_id=DELETED))
    _hide_chains(tx, erasure, is_users & (chains.c.owner_id == hidden))


def hide_conversations(tx: Transaction, erasure: Erasure, items: Sequence[str]) -> None:
    """Hide these conversations, and let those that are nobody's be the user's; agents' default ones stay."""
    these = is_in(conversations.c.id, items)
    tx.run(
        update(conversations)
        .where(these, conversations.c.user_id.is_(None))
        .values(user_id=erasure.user_id)
    )
    is_visible = conversations.c.is_default.is_(False) & conversations.c.deleted_at.is_(None)
    tx.run(update(conversations).where(these, is_visible).values(deleted_at=tx.clock.now()))


def hide_agents(tx: Transaction, scope: Scope, erasure: Erasure) -> None:
    """Hide the agents that are the user's alone, with the archives and the memory that no other agent has."""
    talked = select(conversations.c.agent_id).where(conversations.c.user_id == erasure.user_id)
    is_known = (agents.c.created_by == erasure.user_id) | agents.c.id.in_(talked)
    found = select(agents.c.id, agents.c.created_by).where(
        agents.c.organization_id == scope.organization_id, is_known
    )
    for row in tx.all(found.order_by(agents.c.id)):
        if reason := _why_kept(tx, row.id, row.created_by, erasure.user_id):
            erasure.kept_agents[row.id] = reason
        else:
            erasure.own_agents.append(row.id)
    deletion.hide(tx, "agent", erasure.own_agents)
    erasure.own_archives = _attached_to_these_alone(
        tx, agents_archives.c.archive_id, erasure.own_agents
    )
    deletion.hide(tx, "archive", erasure.own_archives)
    own_blocks = _attached_to_these_alone(tx, agents_blocks.c.block_id, erasure.own_agents)
    is_loose = (chains.c.owner_kind == "block") & chains.c.id.in_(
        select(blocks.c.chain_id).where(is_in(blocks.c.id, own_blocks))
    )
    _hide_chains(
        tx,
        erasure,
        is_loose
        | ((chains.c.owner_kind == "agent") & is_in(chains.c.owner_id, erasure.own_agents)),
    )


def _why_kept(tx: Transaction, agent_id: str, made_by: str | None, user_id: str) -> str | None:
    """Why an agent is not the user's alone; None where it is."""
    if made_by not in (user_id, LOCAL_USER, None):
        return "another user created it"
    # A conversation that is about nobody is the user's in an agent that they made themselves.
    about = {user_id, None} if made_by == user_id else {user_id}
    talks = (conversations.c.agent_id == agent_id) & conversations.c.deleted_at.is_(None)
    if (
        not {row.user_id for row in tx.all(select(conversations.c.user_id).where(talks).distinct())}
        <= about
    ):
        return "others talk with it"
    own = select(blocks.c.id).join(chains, chains.c.id == blocks.c.chain_id)
    own = own.where(chains.c.owner_kind == "agent", chains.c.owner_id == agent_id)
    shared = select(agents_blocks.c.seq).where(
        agents_blocks.c.agent_id != agent_id, agents_blocks.c.block_id.in_(own)
    )
    return "another agent has a block of its own" if tx.first(shared) else None


def _attached_to_these_alone(tx: Transaction, column: Any, agent_ids: list[str]) -> list[str]:
    is_theirs = is_in(column.table.c.agent_id, agent_ids)
    found = (
        select(column).where(is_theirs, column.not_in(select(column).where(~is_theirs))).distinct()
    )
    return [row[0] for row in tx.all(found.order_by(column))]


def _hide_chains(tx: Transaction, erasure: Erasure, which: ColumnElement[bool]) -> None:
    for row in tx.all(select(chains.c.id, chains.c.head, chains.c.versions).where(which)):
        erasure.chains[row.id] = {
            "head": row.head.hex() if row.head else None,
            "versions": row.versions,
        }
        for table in (blocks, proposals):
            tx.run(update(table).where(table.c.chain_id == row.id).values(organization_id=DELETED))
        own = select(blocks.c.id).where(blocks.c.chain_id == row.id)
        tx.run(delete(agents_blocks).where(agents_blocks.c.block_id.in_(own)))


def said_as(erasure: Erasure) -> ColumnElement[bool]:
    """Messages that name their sender by identifier, or by a name no other user has, since before the erasure began."""
    column, names = (
        messages.c,
        sorted({erasure.user_id, erasure.identifier, erasure.name, *erasure.former} - {""}),
    )
    has_name = (users_table.c.name == column.name) | (users_table.c.identifier == column.name)
    is_anothers = exists().where(
        (users_table.c.organization_id == erasure.organization_id) & has_name
    )
    senders = [name for name in (erasure.identifier, *erasure.former) if name]
    # A former name may be another user's by now, who sent what came since.
    has_sender = exists().where(
        users_table.c.organization_id == erasure.organization_id,
        users_table.c.identifier == column.sender_id,
    )
    is_sent = (column.sender_id == erasure.identifier) if erasure.identifier else false()
    is_sent |= column.sender_id.in_(senders) & ~has_sender
    is_named = column.sender_id.is_(None) & column.name.in_(names) & ~is_anothers
    return _from_people(erasure) & (is_sent | is_named)


def named_like(erasure: Erasure) -> Select[Any]:
    """Messages whose sender or name is the user's in other capitals, or also another user's: nobody knows whose they are."""
    names = sorted(
        {name.lower() for name in (erasure.identifier, erasure.name, *erasure.former)} - {""}
    )
    # Where there is a sender, it alone says who it was.
    is_like = func.lower(func.coalesce(messages.c.sender_id, messages.c.name)).in_(names)
    return select(messages.c.seq).where(_from_people(erasure) & is_like)


def _from_people(erasure: Erasure) -> ColumnElement[bool]:
    asked_at = to_micros(datetime.fromisoformat(erasure.asked_at))
    is_before = (messages.c.role == "user") & (messages.c.created_at <= asked_at)
    return (messages.c.organization_id == erasure.organization_id) & is_before
