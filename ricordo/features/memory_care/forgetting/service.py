"""Forget one fact: list the items that mention it, remove the chosen ones, write a receipt."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import inspect, select

from ricordo.domain.clock import to_datetime
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_USER, Scope, User
from ricordo.errors import Forbidden, Invalid, NotFound
from ricordo.features.memory_care.erasure import receipts
from ricordo.features.memory_care.erasure import service as erasure_service
from ricordo.features.memory_care.erasure.receipts import Receipt
from ricordo.features.memory_care.forgetting import meaning, queries
from ricordo.features.memory_care.forgetting.belonging_queries import (
    Belongings,
    belongings_of,
    is_owned,
)
from ricordo.features.memory_care.forgetting.block_queries import (
    BlockSource,
    labels_with,
    shared_blocks_with,
)
from ricordo.features.memory_care.forgetting.needle import Needle
from ricordo.features.memory_care.forgetting.source_queries import JOB, Source, built_in_sources
from ricordo.features.memory_care.forgetting.state import PERHAPS, Forgetting, Item
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import jobs, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations
from ricordo.storage.schema.core_tables import jobs as jobs_table

MOST_ITEMS = 1_000
LONGEST_TEXT = 2_000
_SHORTEST = 2  # letters
_READS = ("memory:read", "messages:read")
_CHANGES_AGENTS = "agents:write"
_MOST_PARTS = 20
# Retried practically without end; later attempts are ten to twelve minutes apart.
_ATTEMPTS = 1_000_000
# The fields of a `Forgetting` that its request decided; the others are its progress.
_ASKED_FOR = (
    "user_id",
    "conversation_id",
    "local_user_id",
    "text",
    "ids",
    "takes_all",
    "takes_perhaps",
    "is_never_again",
    "by_meaning",
    "changes_agents",
)


@dataclass(frozen=True, slots=True)
class Preview:
    """The items that mention a thing.

    `remains` are sentences about texts that a removal does not change: blocks that others share,
    and names of blocks.
    """

    items: tuple[Item, ...]
    remains: tuple[str, ...]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The owner's choice: some ids of the list, or all items with or without uncertain ones."""

    ids: Sequence[str] = ()
    takes_all: bool = False
    takes_perhaps: bool = False
    is_never_again: bool = True
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Reach:
    """The area of a removal: a user's data, or a conversation without a user."""

    user_id: str
    conversation_id: str = ""
    local_user_id: str = ""
    changes_agents: bool = False

    @property
    def owner_id(self) -> str:
        return self.user_id or self.conversation_id

    @property
    def key(self) -> str:
        """Return the key of the area's jobs.

        They run one after the other, so two removals never overlap.
        """
        return f"{JOB}:{self.owner_id}"


def require_needle(text: str, *, by_meaning: bool = False) -> Needle:
    """Return the fact in the form for searches.

    Args:
        text: The person's words.
        by_meaning: Find also sentences that mean nearly the same.

    Raises:
        Invalid: for a text that says nothing, is too long, or has too many sentences.
    """
    needle = Needle(text, by_meaning=by_meaning)
    letters = sum(sign.isalnum() for part in needle.parts for sign in part)
    if not needle.words or letters < _SHORTEST or len(text) > LONGEST_TEXT:
        raise Invalid(
            f"Write what to forget, in at most {LONGEST_TEXT} characters: a line of memory, a "
            "sentence, or a subject."
        )
    if len(needle.parts) > _MOST_PARTS:
        raise Invalid(f"Forget at most {_MOST_PARTS} sentences at once.")
    return needle


async def sources_of(runtime: Runtime) -> list[Source]:
    """Return the sources that are searched, including those of features.

    Args:
        runtime: The running server.
    """
    # If a package is imported but not in use, its tables may be missing.
    names = await runtime.store.read(lambda tx: inspect(tx.connection).get_table_names())
    return [BlockSource(), *built_in_sources(runtime.plugins.forget_sources(), names)]


async def preview(runtime: Runtime, scope: Scope, name: str, text: str) -> Preview:
    """Return the items that mention the fact; nothing is changed.

    Args:
        runtime: The running server.
        scope: The caller, who may read the user's memory and messages.
        name: The user's id or identifier.
        text: The fact in the person's words.

    Raises:
        NotFound: if there is no such user.
        Invalid: for a text that `require_needle` refuses.
        Forbidden: if the caller may not read them.
    """
    needle = require_needle(text, by_meaning=meaning.is_available(runtime.settings))
    user = await runtime.store.read(lambda tx: users.require(tx, scope, name))
    _require_reader(scope, user)
    changes_agents = scope.may(_CHANGES_AGENTS)
    owned = await runtime.store.read(
        lambda tx: belongings_of(tx, user.organization_id, user.id, changes_agents=changes_agents)
    )
    items: list[Item] = []
    for source in await sources_of(runtime):
        if not getattr(source, "follows", False):
            found_items = await find_all(runtime, source, owned, needle)
            items += [item for item in found_items if not item.follows]
    remains = await runtime.store.read(lambda tx: shared_blocks_with(tx, owned, needle))
    labels, former = await runtime.store.read(lambda tx: labels_with(tx, owned, needle))
    remains += [
        f'The name of the block "{label}" says it too, and names are not changed. Rename the block '
        "if agents should not read its name; the history keeps the old one."
        for label in labels
    ]
    remains += [
        f'The former block name "{label}" says it too, and stays in the history.'
        for label in former
    ]
    return Preview(tuple(items[:MOST_ITEMS]), tuple(remains), len(items) > MOST_ITEMS)


async def find_all(
    runtime: Runtime, source: Source, owned: Belongings, needle: Needle
) -> list[Item]:
    """Return all items of a source, read in portions.

    Args:
        runtime: The running server.
        source: One of `sources_of`.
        owned: The area of the search.
        needle: The fact.
    """
    items: list[Item] = []
    after: int | None = 0
    while after is not None:
        some, after = await runtime.store.read(
            partial(source.find, owned=owned, needle=needle, after=after)
        )
        items += some
    return items


async def forget(runtime: Runtime, scope: Scope, name: str, text: str, choice: Choice) -> Receipt:
    """Begin to remove the chosen items; while it is at work, an equal call changes nothing.

    Args:
        runtime: The running server.
        scope: The caller, who may change the user's memory.
        name: The user's id or identifier.
        text: The fact in the person's words, as in `preview`.
        choice: The chosen items.

    Returns:
        The state of the work.

    Raises:
        NotFound: if there is no such user, or no such request of an agent.
        Invalid: if nothing is chosen, or for a text that `require_needle` refuses.
    """
    require_needle(text)
    if not (choice.ids or choice.takes_all):
        raise Invalid("Choose what to remove: ids from the list, or all.")
    await asyncio.to_thread(Secret(runtime.settings.data_dir).derive, "")

    def work(tx: Transaction) -> Forgetting:
        user = users.require(tx, scope, name)
        users.lock(tx, user.id)
        reach = _Reach(user_id=user.id, changes_agents=scope.may(_CHANGES_AGENTS))
        forgetting = _begin(runtime, scope, reach, text, choice)
        queued = _queue(tx, forgetting, reach)
        if queued is forgetting and choice.request_id:
            queries.remove(tx, scope, user.id, choice.request_id)
        return queued

    return state_of(await runtime.store.write(work))


async def forget_at_once(
    runtime: Runtime, request: queries.ForgetRequest, *, is_local_user: bool = False
) -> str:
    """Begin to remove every text with these words, as its owner asked an agent to.

    Args:
        runtime: The running server.
        request: The request. Without a user, it covers what its conversation can reach
            (`reach_of`).
        is_local_user: The caller is the local user, whose memory is included if the request has no
            user.

    Returns:
        The receipt's id.
    """
    await asyncio.to_thread(Secret(runtime.settings.data_dir).derive, "")
    reach = _Reach(
        user_id=request.user_id,
        conversation_id=request.conversation_id or "",
        local_user_id=LOCAL_USER if is_local_user and not request.user_id else "",
    )
    scope = Scope(request.organization_id, user_id=request.user_id)
    forgetting = _begin(runtime, scope, reach, request.text, Choice(takes_all=True))
    return (await runtime.store.write(lambda tx: _queue(tx, forgetting, reach))).id


async def has_passed_once(
    runtime: Runtime, request: queries.ForgetRequest, receipt_id: str
) -> bool:
    """Return whether the removal of a request has completed one pass over everything.

    Args:
        runtime: The running server.
        request: The request, as `forget_at_once` got it.
        receipt_id: The id that it returned; for an unknown one the answer is True.
    """
    key = _Reach(request.user_id, request.conversation_id or "").key
    removals = await runtime.store.read(lambda tx: _removals(tx, key))
    states = [state for _, state in removals if state.id == receipt_id]
    return all(state.passes for state in states)


def _queue(tx: Transaction, forgetting: Forgetting, reach: _Reach) -> Forgetting:
    """Add the job for the removal, and return its state; or that of an equal open job."""
    for job, other in _removals(tx, reach.key):
        if job.status in ("waiting", "running") and _is_same(other, forgetting):
            return other
    job = Job(
        JOB,
        forgetting.organization_id,
        forgetting.model_dump(mode="json"),
        key=reach.key,
        user_id=forgetting.user_id or None,
        most_attempts=_ATTEMPTS,
    )
    jobs.add(tx, job)
    return forgetting


def _require_reader(scope: Scope, user: User) -> None:
    """Raise Forbidden if the caller may not read the user's memory and messages."""
    if scope.may_decide_for("user", user.id) or all(map(scope.may, _READS)):
        return
    raise Forbidden(
        "This key may remove texts that it cannot read, but it may not list them. Send the text "
        "to forget with `all`."
    )


def store_request(tx: Transaction, request: queries.ForgetRequest, maker: str | None) -> None:
    """Store an agent's request to forget something.

    If it has no user, the agent's creator decides, or else the local user.

    Args:
        tx: The transaction.
        request: The request.
        maker: The user who created the agent, or None.

    Raises:
        Conflict: if too many requests wait.
        Invalid: if no user can decide.
    """
    if not request.user_id:
        scope = Scope(request.organization_id)
        ids = [id for id in (maker, LOCAL_USER) if id and users.find(tx, scope, id)]
        if not ids:
            raise Invalid(
                "This conversation is about no user, and no user who created its agent is known, so "
                "there is nobody to ask."
            )
        request = replace(request, user_id=ids[0])
    queries.add(tx, request)


async def find_receipt(runtime: Runtime, scope: Scope, receipt_id: str) -> Receipt:
    """Return a receipt of either kind, or the state of the work.

    Args:
        runtime: The running server.
        scope: The caller.
        receipt_id: The receipt of a user, or of one fact.

    Raises:
        NotFound: if there is none, or the caller may not read it.
        Invalid: if its file is damaged.
    """
    try:
        return await erasure_service.find_receipt(runtime, scope, receipt_id)
    except NotFound:
        for job, forgetting in await runtime.store.read(_removals):
            if forgetting.id == receipt_id and receipts.may_read(
                scope, job.organization_id, forgetting.subject, forgetting.asked_by
            ):
                if forgetting.finished_at is None:
                    return state_of(forgetting)
                secret = Secret(runtime.settings.data_dir)
                return await asyncio.to_thread(receipt_of, secret, forgetting)
        raise


def receipt_of(secret: Secret, forgetting: Forgetting) -> Receipt:
    """Return the signed receipt: counts, ids and hashes, without any part of the forgotten text.

    Args:
        secret: The secret of the data folder, which signs.
        forgetting: The state of the job after its last step.
    """
    facts = forgetting.model_dump(mode="json", include=set(receipts.ErasureFacts.model_fields))
    chains = [{"chain": id, **chain} for id, chain in sorted(forgetting.chains.items())]
    return receipts.signed(
        secret,
        {**facts, "status": "done", "scope": "one thing", "memory": chains, "agents": []},
    )


def state_of(forgetting: Forgetting) -> Receipt:
    """Return the state of the work in the form of a receipt, with the status "running".

    Args:
        forgetting: The state of the work.
    """
    return {
        "id": forgetting.id,
        "status": "running",
        "scope": "one thing",
        "organization_id": forgetting.organization_id,
        "receipt": f"/v1/receipts/{forgetting.id}",
        "removed": dict(forgetting.removed),
    }


def _begin(runtime: Runtime, scope: Scope, reach: _Reach, text: str, choice: Choice) -> Forgetting:
    owner_id = reach.owner_id
    return Forgetting(
        id=new_id(receipts.PREFIX),
        subject=receipts.subject_of(owner_id),
        names=[],
        organization_id=scope.organization_id,
        asked_at=to_datetime(runtime.store.clock.now()).isoformat(),
        asked_by="" if scope.user_id == owner_id else scope.user_id,
        database="postgresql" if runtime.settings.postgres_url else "sqlite",
        user_id=reach.user_id,
        conversation_id=reach.conversation_id,
        local_user_id=reach.local_user_id,
        text=text,
        ids=sorted(set(choice.ids)),
        takes_all=choice.takes_all,
        takes_perhaps=choice.takes_perhaps,
        is_never_again=choice.is_never_again,
        by_meaning=is_perhaps_chosen(choice) and meaning.is_available(runtime.settings),
        changes_agents=reach.changes_agents,
    )


def is_perhaps_chosen(choice: Choice) -> bool:
    """Return whether the choice includes uncertain items.

    Args:
        choice: The owner's choice.
    """
    return choice.takes_perhaps or any(id.endswith(PERHAPS) for id in choice.ids)


def _is_same(first: Forgetting, second: Forgetting) -> bool:
    """Return whether both remove the same texts, with the same rights and consequences."""
    return all(getattr(first, name) == getattr(second, name) for name in _ASKED_FOR)


def _removals(tx: Transaction, key: str | None = None) -> list[tuple[Job, Forgetting]]:
    """Return the stored removals with this key, open and ended, each with its job; newest first."""
    statement = jobs.ROWS.select.where(jobs_table.c.kind == JOB)
    if key:
        statement = statement.where(jobs_table.c.key == key)
    rows = jobs.ROWS.all(tx, statement.order_by(jobs_table.c.seq.desc()))
    return [(job, Forgetting.model_validate(job.payload)) for job in rows]


def own_conversations(tx: Transaction, owned: Belongings) -> set[str]:
    """Return the ids of the conversations in the area.

    Args:
        tx: The transaction.
        owned: The area: a user's data, or one conversation without a user.
    """
    return {
        row.id for row in tx.all(select(conversations.c.id).where(is_owned(conversations, owned)))
    }


def as_json(item: Item) -> dict[str, Any]:
    """Return an item in the form of responses.

    Args:
        item: A found item.
    """
    return {
        "id": item.id,
        "kind": item.kind,
        "match": item.match,
        "excerpts": list(item.excerpts),
        "where": item.where,
        "created_at": item.created_at,
    }
