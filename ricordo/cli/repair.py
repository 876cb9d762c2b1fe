"""`ricordo doctor --repair`: repairs conversations that would keep their agents from answering, and says what it did.

On SQLite no server may have the file open; on PostgreSQL servers may run, and a conversation in which a turn runs is left alone.
"""

import asyncio

import typer

from ricordo.agents.repair import Repair, examine, repair, restore_default_conversation
from ricordo.errors import NotFound
from ricordo.settings import Settings, load_settings
from ricordo.storage import damage
from ricordo.storage.engine.database import address, is_shared, open_store
from ricordo.storage.engine.store import Store, Transaction

LOST = "the agent had no default conversation, and has a new one"


def repair_database() -> bool:
    """Repair every conversation; returns whether all are sound now. Raises Conflict where a server runs, NotFound, Unavailable."""
    settings, _ = load_settings()
    if settings.postgres_url is None and not settings.database_path.exists():
        raise NotFound(f"There is no database at {settings.database_path}, so there is nothing to repair.")
    count, repaired = asyncio.run(_repair(settings))
    for one in repaired:
        typer.echo(f"{one.conversation_id}{' (busy, left as it is)' if one.is_busy else ''}")
        for fault in one.found:
            typer.echo(f"    {fault}")
    busy = sum(one.is_busy for one in repaired)
    outcome = f"{len(repaired) - busy:,} repaired, {busy:,} busy" if repaired else "nothing to repair"
    typer.echo(f"{count:,} {'conversation' if count == 1 else 'conversations'} in {address(settings)}: {outcome}.")
    if busy:
        typer.echo("A turn is running in the busy ones. Repeat this when it has ended.")
    return not busy


def examine_all(tx: Transaction, *, is_alone: bool) -> tuple[int, list[Repair]]:
    """Return how many conversations there are, and those that something is wrong with. Nothing is changed."""
    found = [Repair(agent_id, (LOST,)) for agent_id in damage.agents_without_conversation(tx)]
    count = after = 0
    while portion := damage.some_conversations(tx, after):
        count, after = count + len(portion), portion[-1][0]
        found += [one for _, id in portion if (one := examine(tx, id, is_alone=is_alone)).found]
    return count, found


async def repair_all(store: Store, *, is_alone: bool) -> tuple[int, list[Repair]]:
    """Repair every conversation, each in its own transaction; returns how many there are, and those that were not sound."""
    count, found = await store.read(lambda tx: examine_all(tx, is_alone=is_alone))
    repaired: list[Repair] = []
    for one in found:
        if one.found == (LOST,):
            made = await store.write(lambda tx, id=one.conversation_id: restore_default_conversation(tx, id))  # type: ignore[misc]
            repaired.append(Repair(made, (LOST,)))
            count += 1
        else:
            work = lambda tx, id=one.conversation_id: repair(tx, id, is_alone=is_alone)  # noqa: E731
            repaired.append(await store.write(work))
    return count, repaired


async def _repair(settings: Settings) -> tuple[int, list[Repair]]:
    store = await asyncio.to_thread(open_store, settings)
    try:
        return await repair_all(store, is_alone=not is_shared(settings))
    finally:
        await store.close()
