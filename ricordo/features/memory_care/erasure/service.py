"""Forget a user: hide the user, erase the data in a job, and sign a receipt."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
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
from ricordo.features.memory_care.erasure import queries, receipts
from ricordo.features.memory_care.erasure.receipts import Erasure, Receipt
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import agent_access, deletion, runs, users
from ricordo.storage.deletion import DELETED, is_in
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import (
    agents,
    agents_archives,
    agents_users,
    conversations,
    messages,
)
from ricordo.storage.schema.core_tables import users as users_table
from ricordo.storage.schema.memory_tables import agents_blocks, blocks, chains, proposals

log = logging.getLogger(__name__)
# The request hides at most this many conversations; the job finds and hides the others.
_HIDDEN_AT_ONCE = 250
NAMELESS = (
    "The user's name was unknown when the erasure was resumed. So messages in others' "
    "conversations with that name, but without the user's id, may remain."
)


async def forget(
    runtime: Runtime, scope: Scope, name: str, *, with_agents: bool = False
) -> Receipt:
    """Forget the user.

    The user is hidden when the call returns; a job erases the data.

    Args:
        runtime: The running server.
        scope: The caller, who may forget this user.
        name: The user's id or identifier. It may be the name of a user who was forgotten.
        with_agents: Forget also the agents that only this user has.

    Returns:
        The state or the receipt, also when called again. If only the later call asks to forget the
        agents, another erasure begins for them.

    Raises:
        NotFound: if no user has this name, and no forgotten user had it.
        Conflict: for the local user.
    """
    user = await runtime.store.read(lambda tx: users.find(tx, scope, name))
    if user is None:
        return await _asked_before(runtime, scope, name, with_agents=with_agents)
    if user.id == LOCAL_USER:
        raise Conflict(
            "This user runs the server and cannot be erased. Delete this user's agents, or stop "
            "the server and remove its data folder."
        )
    rows = await runtime.store.read(lambda tx: tx.all(queries.conversations_of(user.id)))
    about = {user.id, *(row.id for row in rows)}
    # The user's turns in this process are first cancelled and saved, so that they write nothing
    # afterwards.
    await _cancel(runtime, await runtime.store.read(lambda tx: _running(tx, about)))
    erasure = await asyncio.to_thread(begin, runtime, scope, user, name)

    def hide(tx: Transaction) -> tuple[Job, list[Run]]:
        hidden = erasure.model_copy(deep=True)
        users.lock(tx, user.id)
        # From now on, a user of this name is a new user.
        hidden.asked_at = to_datetime(tx.clock.now()).isoformat()
        for agent_id in agent_access.agents_of(tx, user.id):
            # An agent that was restricted to this user must not become available to all users.
            agent_access.attach_user(tx, agent_id, LOCAL_USER)
        own_agents, kept_agents = agents_of(tx, scope.organization_id, user.id)
        if with_agents:
            hide_agents(tx, hidden, own_agents, kept_agents)
        else:
            hidden.left_agents = own_agents
        late_runs = _running(tx, {*about, *hidden.own_agents})
        for run in late_runs:
            close_run(tx, run, "cancelled")
        deletion.prepare(tx)
        is_user = (users_table.c.id == user.id) & (
            users_table.c.organization_id == scope.organization_id
        )
        statement = update(users_table).where(is_user)
        if not tx.run(
            statement.values(
                organization_id=DELETED, identifier=None, name="", look=None, former=[]
            )
        ):
            raise NotFound("This user was forgotten a moment ago.")
        hide_memory(tx, hidden)
        hide_conversations(tx, hidden, sorted(about)[:_HIDDEN_AT_ONCE])
        return queries.add_job(tx, scope.organization_id, hidden), late_runs

    job, late_runs = await runtime.store.write(hide)
    await _cancel(runtime, late_runs)
    log.info("a user is being forgotten", extra={"receipt": erasure.id, "job": job.id})
    return _state(erasure)


async def find_receipt(runtime: Runtime, scope: Scope, receipt_id: str) -> Receipt:
    """Return the receipt, or the state of its erasure.

    Args:
        runtime: The running server.
        scope: The caller.
        receipt_id: The receipt.

    Raises:
        NotFound: if there is none, or the caller may not read it.
        Invalid: if its file is damaged.
    """
    receipt = await asyncio.to_thread(receipts.find, runtime.settings.data_dir, receipt_id)
    receipt = receipt or await _known(runtime, scope, lambda erasure: erasure.id == receipt_id)
    if receipt is None or not _may_read(scope, receipt):
        raise NotFound(f"Receipt with ID {receipt_id} not found")
    return receipt


async def forgotten_names(runtime: Runtime) -> Callable[[str, str], bool]:
    """Return a function that tests if a name belongs to a forgotten user.

    The returned function takes an organization and a name. It knows the erasures of this server and
    of its data folder.

    Args:
        runtime: The runtime.

    Raises:
        Invalid: A receipt in the data folder is damaged.
    """
    data_dir = runtime.settings.data_dir
    secret = Secret(data_dir)
    erasures = await runtime.store.read(queries.known)
    hashes = {hashed for erasure in erasures for hashed in erasure.names}
    hashes |= await asyncio.to_thread(receipts.names_of_all, data_dir)
    return lambda organization_id, name: (
        bool(hashes) and receipts.hash_of_name(secret, organization_id, name) in hashes
    )


async def _asked_before(runtime: Runtime, scope: Scope, name: str, *, with_agents: bool) -> Receipt:
    """Return the state or receipt of the user's newest erasure.

    If that erasure left the user's agents, and they are to be deleted now, another one begins.
    """
    data_dir = runtime.settings.data_dir
    hashed = await asyncio.to_thread(
        receipts.hash_of_name, Secret(data_dir), scope.organization_id, name
    )
    if with_agents and (state := await _forget_left_agents(runtime, scope, hashed)):
        return state
    receipt = await _known(runtime, scope, lambda erasure: hashed in erasure.names)
    receipt = receipt or await asyncio.to_thread(receipts.find_by_name, data_dir, hashed)
    if receipt is None or not _may_read(scope, receipt):
        raise NotFound(f'There is no user "{name[:255]}", and none was forgotten. Check the name.')
    return receipt


async def _forget_left_agents(runtime: Runtime, scope: Scope, hashed: str) -> Receipt | None:
    """Begin the erasure of the agents that the user's newest erasure left.

    Returns None if it left none, if the caller may not see it, or if its job, which knows the
    agents, was deleted.

    Args:
        runtime: The running server.
        scope: The caller.
        hashed: The hash of the user's name.
    """

    def begin_again(tx: Transaction) -> tuple[Erasure, list[Run]] | None:
        matching = (erasure for erasure in queries.known(tx) if hashed in erasure.names)
        earlier = next(matching, None)
        if earlier is None or not earlier.left_agents or not _may_see(scope, earlier):
            return None
        erasure = Erasure(
            id=new_id(receipts.PREFIX),
            user_id=earlier.user_id,
            organization_id=earlier.organization_id,
            subject=earlier.subject,
            names=earlier.names,
            asked_at=to_datetime(tx.clock.now()).isoformat(),
            asked_by=scope.user_id,
            database=earlier.database,
        )
        own_agents, kept_agents = _still_own(tx, earlier)
        deletion.prepare(tx)
        hide_agents(tx, erasure, own_agents, kept_agents)
        late_runs = _running(tx, {*own_agents})
        for run in late_runs:
            close_run(tx, run, "cancelled")
        queries.add_job(tx, erasure.organization_id, erasure, after=earlier)
        return erasure, late_runs

    begun = await runtime.store.write(begin_again)
    if begun is None:
        return None
    erasure, late_runs = begun
    await _cancel(runtime, late_runs)
    log.info("a user's agents are being deleted", extra={"receipt": erasure.id})
    return _state(erasure)


def _may_see(scope: Scope, erasure: Erasure) -> bool:
    return receipts.may_read(scope, erasure.organization_id, erasure.subject, erasure.asked_by)


def _still_own(tx: Transaction, earlier: Erasure) -> tuple[list[str], dict[str, str]]:
    """Return the left agents to delete now, and the reasons to keep the others.

    An agent that somebody else has used since then is kept.

    Args:
        tx: The transaction, which locks the agents.
        earlier: The erasure that left them.
    """
    forgotten_at = to_micros(datetime.fromisoformat(earlier.asked_at))
    is_left = is_in(agents.c.id, sorted(earlier.left_agents))
    is_left &= agents.c.organization_id == earlier.organization_id
    rows = tx.all(select(agents.c.id).where(is_left).order_by(agents.c.id).with_for_update())
    own_agents: list[str] = []
    kept_agents: dict[str, str] = {}
    for row in rows:
        # The erasure removes the user from the agent and its default conversation. So the user is
        # given here as the agent's creator.
        reason = _why_kept(tx, row.id, earlier.user_id, earlier.user_id)
        reason = reason or _why_in_use(tx, row.id, earlier.user_id, forgotten_at)
        if reason:
            kept_agents[row.id] = reason
        else:
            own_agents.append(row.id)
    return own_agents, kept_agents


def _why_in_use(tx: Transaction, agent_id: str, user_id: str, since: int) -> str | None:
    """Return the reason to keep an agent that others use; None if they do not use it.

    `since` is the time in microseconds at which the agent's user was forgotten.
    """
    is_other = agents_users.c.user_id.not_in([user_id, LOCAL_USER])
    attached = select(agents_users.c.user_id).where(agents_users.c.agent_id == agent_id, is_other)
    if tx.first(attached):
        return "others may use it"
    is_newer = (messages.c.role == "user") & (messages.c.created_at > since)
    written = select(messages.c.seq).where(messages.c.agent_id == agent_id, is_newer).limit(1)
    if tx.first(written):
        return "it was used after the user was forgotten"
    return None


def _may_read(scope: Scope, receipt: Receipt) -> bool:
    """Return whether the caller may read a receipt; states are checked by `_known`."""
    is_state = receipt["status"] != "done"
    facts = (receipt.get(name, "") for name in ("organization_id", "subject", "asked_by"))
    return is_state or receipts.may_read(scope, *facts)


async def _known(
    runtime: Runtime, scope: Scope, matches: Callable[[Erasure], bool]
) -> Receipt | None:
    """Return the state or receipt of the newest matching erasure that the caller may read.

    It is read from the queue, since the file of the receipt may be on another server.
    """
    for erasure in await runtime.store.read(queries.known):
        if not _may_see(scope, erasure) or not matches(erasure):
            continue
        # A finished erasure has its receipt even while its job is still writing the file.
        if erasure.finished_at is None:
            return _state(erasure)
        secret = Secret(runtime.settings.data_dir)
        return await asyncio.to_thread(receipts.receipt_of, secret, erasure)
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
    """Return a new erasure of the user; nothing is stored.

    Args:
        runtime: The running server.
        scope: The caller, who is recorded in the receipt.
        user: The user.
        name: The name in the request. The receipt can be found by it.
    """
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
        names=sorted(
            receipts.hash_of_name(secret, scope.organization_id, name_) for name_ in names
        ),
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
    """Remove the user's memory from every agent and list.

    The memory gets an owner id that no request can name.

    Args:
        tx: The transaction.
        erasure: The erasure, which names the user.
    """
    is_users = chains.c.owner_kind == "user"
    hidden = f"{erasure.user_id}#deleted"
    is_visible = is_users & (chains.c.owner_id == erasure.user_id)
    tx.run(update(chains).where(is_visible).values(owner_id=hidden, organization_id=DELETED))
    _hide_chains(tx, erasure, is_users & (chains.c.owner_id == hidden))


def hide_conversations(tx: Transaction, erasure: Erasure, items: Sequence[str]) -> None:
    """Hide these conversations, except agents' default ones.

    Conversations without a user are assigned to the user, so that the job finds them.

    Args:
        tx: The transaction.
        erasure: The state with the user.
        items: Ids of the user's conversations, and of forks of them without a user.
    """
    is_item = is_in(conversations.c.id, items)
    tx.run(
        update(conversations)
        .where(is_item, conversations.c.user_id.is_(None))
        .values(user_id=erasure.user_id)
    )
    is_visible = conversations.c.is_default.is_(False) & conversations.c.deleted_at.is_(None)
    tx.run(update(conversations).where(is_item, is_visible).values(deleted_at=tx.clock.now()))


def hide_agents(
    tx: Transaction, erasure: Erasure, own_agents: Sequence[str], kept_agents: Mapping[str, str]
) -> None:
    """Hide the user's agents, with the archives and memory that no other agent has.

    Args:
        tx: The transaction.
        erasure: The state with the user, which is changed.
        own_agents: The agents that only the user has.
        kept_agents: The user's other agents, with the reasons to keep them.
    """
    erasure.own_agents += own_agents
    erasure.kept_agents |= kept_agents
    deletion.hide(tx, "agent", erasure.own_agents)
    erasure.own_archives = archives_of(tx, erasure.own_agents)
    deletion.hide(tx, "archive", erasure.own_archives)
    _hide_chains(tx, erasure, is_chain_of(tx, erasure.own_agents))


def agents_of(
    tx: Transaction, organization_id: str, user_id: str
) -> tuple[list[str], dict[str, str]]:
    """Return the agents that only this user has, and the reasons to keep the user's other agents.

    Args:
        tx: The transaction.
        organization_id: The user's organization.
        user_id: The user.

    Returns:
        The ids of the first, and the reasons by the ids of the second.
    """
    partners = select(conversations.c.agent_id).where(conversations.c.user_id == user_id)
    is_known = (agents.c.created_by == user_id) | agents.c.id.in_(partners)
    known_agents = select(agents.c.id, agents.c.created_by).where(
        agents.c.organization_id == organization_id, is_known
    )
    own_agents: list[str] = []
    kept_agents: dict[str, str] = {}
    for row in tx.all(known_agents.order_by(agents.c.id)):
        if reason := _why_kept(tx, row.id, row.created_by, user_id):
            kept_agents[row.id] = reason
        else:
            own_agents.append(row.id)
    return own_agents, kept_agents


def archives_of(tx: Transaction, agent_ids: list[str]) -> list[str]:
    """Return the archives that only these agents have.

    Args:
        tx: The transaction.
        agent_ids: The agents.
    """
    return _attached_to_these_alone(tx, agents_archives.c.archive_id, agent_ids)


def is_chain_of(tx: Transaction, agent_ids: list[str]) -> ColumnElement[bool]:
    """Return the SQL condition for these agents' chains, and for blocks that no other agent has.

    Args:
        tx: The transaction, which reads the attached blocks at once.
        agent_ids: The agents.
    """
    own_blocks = _attached_to_these_alone(tx, agents_blocks.c.block_id, agent_ids)
    own_chains = select(blocks.c.chain_id).where(is_in(blocks.c.id, own_blocks))
    is_shared_block = (chains.c.owner_kind == "block") & chains.c.id.in_(own_chains)
    is_agents = (chains.c.owner_kind == "agent") & is_in(chains.c.owner_id, agent_ids)
    return is_shared_block | is_agents


def _why_kept(tx: Transaction, agent_id: str, created_by: str | None, user_id: str) -> str | None:
    """Return the reason why an agent does not belong to the user alone, or None."""
    if created_by not in (user_id, LOCAL_USER, None):
        return "another user created it"
    # In an agent created by the user, conversations without a user belong to the user too.
    if created_by == user_id:
        own_ids = {user_id, None}
    else:
        own_ids = {user_id}
    is_open = (conversations.c.agent_id == agent_id) & conversations.c.deleted_at.is_(None)
    rows = tx.all(select(conversations.c.user_id).where(is_open).distinct())
    if not {row.user_id for row in rows} <= own_ids:
        return "others talk with it"
    own_blocks = select(blocks.c.id).join(chains, chains.c.id == blocks.c.chain_id)
    own_blocks = own_blocks.where(chains.c.owner_kind == "agent", chains.c.owner_id == agent_id)
    shared = select(agents_blocks.c.seq).where(
        agents_blocks.c.agent_id != agent_id, agents_blocks.c.block_id.in_(own_blocks)
    )
    if tx.first(shared):
        return "another agent has one of its blocks"
    return None


def _attached_to_these_alone(tx: Transaction, column: Any, agent_ids: list[str]) -> list[str]:
    is_theirs = is_in(column.table.c.agent_id, agent_ids)
    of_others = select(column).where(~is_theirs)
    statement = select(column).where(is_theirs, column.not_in(of_others)).distinct()
    return [row[0] for row in tx.all(statement.order_by(column))]


def _hide_chains(tx: Transaction, erasure: Erasure, condition: ColumnElement[bool]) -> None:
    for row in tx.all(select(chains.c.id, chains.c.head, chains.c.versions).where(condition)):
        erasure.chains[row.id] = {
            "head": row.head.hex() if row.head else None,
            "versions": row.versions,
        }
        for table in (blocks, proposals):
            tx.run(update(table).where(table.c.chain_id == row.id).values(organization_id=DELETED))
        own_blocks = select(blocks.c.id).where(blocks.c.chain_id == row.id)
        tx.run(delete(agents_blocks).where(agents_blocks.c.block_id.in_(own_blocks)))


def said_as(erasure: Erasure) -> ColumnElement[bool]:
    """Return the condition for messages that name the user as their sender.

    They were sent before the erasure began. They have the user's present or a former identifier, or
    a name that only this user has.

    Args:
        erasure: The erasure, with all names that the user had.
    """
    column = messages.c
    names = sorted({erasure.user_id, erasure.identifier, erasure.name, *erasure.former} - {""})
    has_name = (users_table.c.name == column.name) | (users_table.c.identifier == column.name)
    is_anothers = exists().where(
        (users_table.c.organization_id == erasure.organization_id) & has_name
    )
    senders = [name for name in (erasure.identifier, *erasure.former) if name]
    # Another user may have this name now, and newer messages with it belong to that user.
    has_sender = exists().where(
        users_table.c.organization_id == erasure.organization_id,
        users_table.c.identifier == column.sender_id,
    )
    if erasure.identifier:
        is_sent = column.sender_id == erasure.identifier
    else:
        is_sent = false()
    is_sent |= column.sender_id.in_(senders) & ~has_sender
    is_named = column.sender_id.is_(None) & column.name.in_(names) & ~is_anothers
    return _from_people(erasure) & (is_sent | is_named)


def named_like(erasure: Erasure) -> Select[Any]:
    """Select messages whose sender is ambiguous.

    The name matches only by case, or matches two users. The messages of `said_as` are erased
    before.

    Args:
        erasure: The erasure, with all names that the user had.
    """
    names = sorted(
        {name.lower() for name in (erasure.identifier, erasure.name, *erasure.former)} - {""}
    )
    # The sender id decides if there is one; otherwise the name does.
    is_like = func.lower(func.coalesce(messages.c.sender_id, messages.c.name)).in_(names)
    return select(messages.c.seq).where(_from_people(erasure) & is_like)


def _from_people(erasure: Erasure) -> ColumnElement[bool]:
    asked_at = to_micros(datetime.fromisoformat(erasure.asked_at))
    is_before = (messages.c.role == "user") & (messages.c.created_at <= asked_at)
    return (messages.c.organization_id == erasure.organization_id) & is_before
