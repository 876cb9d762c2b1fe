"""`ricordo costs`: what was spent, as a table. Asks the server where one runs, and reads the database itself where none does."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import typer

from ricordo.agents.prices import FILE, read_prices
from ricordo.api.wire.ledger import ledger_to_wire
from ricordo.cli.client import Client, Json, running_server
from ricordo.domain.clock import SystemClock
from ricordo.domain.ledger import DAY, Grouping, day_of, settle
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.settings import Settings, load_settings
from ricordo.storage import ledger
from ricordo.storage.database import open_store
from ricordo.storage.ledger import LedgerQuery

MOST_LINES = 1000
MOST_DAYS = 36_500
_COLUMNS = ("prompt_tokens", "cached_input_tokens", "completion_tokens", "total_tokens")
_HEADS = ("input", "of it cached", "output", "total")


def show_costs(*, by: str = "day", days: int = 30, server: str | None = None) -> None:
    """Print the ledger of the last days (UTC), by what a `Grouping` is. Raises RicordoError where it cannot be read."""
    group_by = _grouping(by)
    if not 1 <= days <= MOST_DAYS:
        raise Invalid(f"--days is a number of days from 1 to {MOST_DAYS:,}.")
    settings, _ = load_settings()
    with running_server(_LedgerClient, settings, server) as client:
        found = client.ledger(group_by, days) if client else asyncio.run(_read(settings, group_by, days))
    typer.echo(table(found))


def table(found: Json) -> str:
    """The ledger as lines of text, numbers under each other."""
    currency = found["currency"]
    heads = [*_HEADS, *([f"cost in {currency}"] if currency else [])]
    rows = [(str(line["key"] or "-"), _cells(line, currency)) for line in found["lines"]]
    rows.append(("all", _cells(found["total"], currency)))
    first = max(len(found["group_by"]), *(len(name) for name, _ in rows))
    widths = [max(len(head), *(len(cells[place]) for _, cells in rows)) for place, head in enumerate(heads)]
    lines = [
        f"{name:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for name, cells in ((found["group_by"], heads), *rows)
    ]
    lines.insert(0, f"Tokens from {found['since'][:10]} to {found['until'][:10]} (UTC)\n")
    if unpriced := found["total"]["unpriced_tokens"]:
        lines.append(f"\n{unpriced:,} tokens are of models without a price in {FILE}: their cost is not counted.")
    return "\n".join(lines)


class _LedgerClient(Client):
    def ledger(self, group_by: Grouping, days: int) -> Json:
        """What the server's ledger says of the last days."""
        first = (datetime.now(UTC) - timedelta(days=days - 1)).date().isoformat()
        return self._object("GET", "/v1/ledger", query={"group_by": group_by, "from": first, "limit": MOST_LINES})


async def _read(settings: Settings, group_by: Grouping, days: int) -> Json:
    """The same from the database; Conflict where a server has its file after all."""
    if settings.postgres_url is None and not settings.database_path.exists():
        raise NotFound(f"There is no database at {settings.database_path}, so nothing was spent.")
    until = SystemClock().now() + 1
    since = day_of(until) - (days - 1) * DAY
    prices = read_prices(settings.data_dir)
    store = open_store(settings)
    try:
        entries = await store.read(lambda tx: ledger.entries(tx, Scope(), LedgerQuery(since, until, group_by)))
    finally:
        await store.close()
    currency = prices.currency if prices else None
    lines = settle(entries, prices)
    return ledger_to_wire(lines, group_by=group_by, since=since, until=until - 1, currency=currency, most=MOST_LINES)


def _grouping(by: str) -> Grouping:
    known: tuple[Grouping, ...] = get_args(Grouping)
    for one in known:
        if one == by:
            return one
    raise Invalid(f"--by {by} is not known. Use one of: {', '.join(known)}.")


def _cells(line: dict[str, Any], currency: str | None) -> list[str]:
    cells = ["-" if line[name] is None else f"{line[name]:,}" for name in _COLUMNS]
    if currency:
        cells.append("-" if line["cost"] is None else f"{line['cost']['total']:,.4f}")
    return cells
