"""`ricordo doctor --repair`: mends threads that would keep their agents from answering, and says what it did to each.

On SQLite no server may have the file; on PostgreSQL servers may run, and a thread in which a turn runs is left alone.
"""

import asyncio
from collections.abc import Sequence

import typer

from ricordo.agents.repairing import Mending, give_thread, look, mend
from ricordo.errors import Collision, NotFound
from ricordo.settings import Settings, load_settings
from ricordo.storage import broken
from ricordo.storage.database import is_shared, open_store
from ricordo.storage.held import address
from ricordo.storage.store import Store, Transaction

LOST_THREAD = "the agent had lost its own thread, and has a new one"


def repair() -> bool:
    """Mend every thread; tells whether all is well now. Raises Conflict where a server has the file, NotFound, Unavailable."""
    settings, _ = load_settings()
    if settings.postgres_url is None and not settings.database_path.exists():
        raise NotFound(f"There is no database at {settings.database_path}, so there is nothing to mend.")
    count, mended = asyncio.run(_repair(settings))
    for one in mended:
        _tell(one)
    busy = sum(one.is_busy for one in mended)
    outcome = f"{len(mended) - busy:,} mended, {busy:,} busy" if mended else "nothing to mend"
    typer.echo(f"{count:,} {'thread' if count == 1 else 'threads'} in {address(settings)}: {outcome}.")
    if busy:
        typer.echo("In the busy ones a turn is running. Repeat when it has ended.")
    return not busy


def look_at_all(tx: Transaction, *, is_alone: bool) -> tuple[int, list[Mending]]:
    """How many threads there are, and those that something is wrong with. Nothing is changed."""
    found = [Mending(agent_id, (LOST_THREAD,)) for agent_id in broken.agents_without_thread(tx)]
    count = after = 0
    while threads := broken.some_threads(tx, after):
        count, after = count + len(threads), threads[-1][0]
        found += [one for _, id in threads if (one := look(tx, id, is_alone=is_alone)).found]
    return count, found


async def _repair(settings: Settings) -> tuple[int, list[Mending]]:
    store = await asyncio.to_thread(open_store, settings)
    try:
        return await mend_all(store, is_alone=not is_shared(settings))
    finally:
        await store.close()


async def mend_all(store: Store, *, is_alone: bool) -> tuple[int, list[Mending]]:
    """Mend every thread, each in a transaction of its own; returns how many there are, and those that something was wrong with."""
    mended: list[Mending] = []
    for agent_id in await store.read(broken.agents_without_thread):
        thread = await store.write(lambda tx, agent_id=agent_id: give_thread(tx, agent_id))  # type: ignore[misc]
        mended.append(Mending(thread, (LOST_THREAD,)))
    count = after = 0
    while threads := await store.read(lambda tx, after=after: broken.some_threads(tx, after)):  # type: ignore[misc]
        count, after = count + len(threads), threads[-1][0]
        found = await store.read(lambda tx, threads=threads: _broken(tx, threads, is_alone=is_alone))  # type: ignore[misc]
        mended += [await _mend(store, id, is_alone=is_alone) for id in found]
    return count, [one for one in mended if one.found or one.is_busy]


def _broken(tx: Transaction, threads: Sequence[tuple[int, str]], *, is_alone: bool) -> list[str]:
    return [id for _, id in threads if look(tx, id, is_alone=is_alone).found]


async def _mend(store: Store, conversation_id: str, *, is_alone: bool) -> Mending:
    try:
        return await store.write(lambda tx: mend(tx, conversation_id, is_alone=is_alone))
    except Collision:
        return Mending(conversation_id, is_busy=True)


def _tell(one: Mending) -> None:
    typer.echo(f"{one.conversation_id}{' (busy, left as it is)' if one.is_busy else ''}")
    for what in one.found:
        typer.echo(f"    {what}")
