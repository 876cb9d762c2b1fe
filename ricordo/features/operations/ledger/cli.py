"""`ricordo costs`: print the ledger as a table.

The command asks a running server, or reads the database.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import typer

from ricordo.cli.client import running_server
from ricordo.domain.clock import SystemClock
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid
from ricordo.features.operations.ledger.routes import LedgerParameters, LedgerResponse
from ricordo.features.operations.ledger.service import FILE, read_prices, settle
from ricordo.settings import load_settings
from ricordo.storage.engine.database import read_beside
from ricordo.storage.ledger import Grouping, entries

app = typer.Typer()
MOST_LINES = 1000
MOST_DAYS = 36_500
_COLUMNS = {
    "prompt_tokens": "input",
    "cached_input_tokens": "of it cached",
    "completion_tokens": "output",
    "total_tokens": "total",
}


@app.command("costs")
def costs(
    by: str = typer.Option("day", help="Group by day, agent, user, model or purpose."),
    days: int = typer.Option(30, help="Number of days, including today."),
    server: str | None = typer.Option(
        None, help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]"
    ),
) -> None:
    """Show the number of tokens and their cost. Prices are in <data>/prices.toml."""
    if by not in get_args(Grouping):
        raise Invalid(f"--by {by} is not known. Use one of: {', '.join(get_args(Grouping))}.")
    if not 1 <= days <= MOST_DAYS:
        raise Invalid(f"--days is a number of days from 1 to {MOST_DAYS:,}.")
    first = (datetime.now(UTC) - timedelta(days=days - 1)).date().isoformat()
    settings, _ = load_settings()
    with running_server(settings, server) as client:
        if client:
            ledger = client.ask(
                "GET", "/v1/ledger", query={"group_by": by, "from": first, "limit": MOST_LINES}
            )
        else:
            ledger = _read(settings, by, first)
    typer.echo(table(ledger))


def table(ledger: dict[str, Any]) -> str:
    """Return the response of `/v1/ledger` as lines of text with aligned numbers."""
    currency = ledger["currency"]
    heads = [*_COLUMNS.values(), *([f"cost in {currency}"] if currency else [])]
    rows = [(str(line["key"] or "-"), _cells(line, currency)) for line in ledger["lines"]]
    rows.append(("all", _cells(ledger["total"], currency)))
    first = max(len(ledger["group_by"]), *(len(name) for name, _ in rows))
    widths = [
        max(len(head), *(len(cells[column]) for _, cells in rows))
        for column, head in enumerate(heads)
    ]
    lines = [f"Tokens from {ledger['since'][:10]} to {ledger['until'][:10]} (UTC)\n"]
    for name, cells in ((ledger["group_by"], heads), *rows):
        lines.append(
            f"{name:<{first}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        )
    if unpriced := ledger["total"]["unpriced_tokens"]:
        lines.append(
            f"\n{unpriced:,} tokens are of models without a price in {FILE}: "
            "their cost is not counted."
        )
    return "\n".join(lines)


def _read(settings: Any, by: str, first: str) -> dict[str, Any]:
    """Return the response of `/v1/ledger` from the database."""
    parameters = LedgerParameters(since=first, group_by=by)  # type: ignore[arg-type]
    query = parameters.query(SystemClock().now())
    prices = read_prices(settings.data_dir)
    with read_beside(settings) as tx:
        lines = settle(entries(tx, Scope(), query), prices)
    return LedgerResponse.from_lines(lines, query, prices.currency if prices else None, MOST_LINES)


def _cells(line: dict[str, Any], currency: str | None) -> list[str]:
    cells = ["-" if line[name] is None else f"{line[name]:,}" for name in _COLUMNS]
    if currency:
        cells.append("-" if line["cost"] is None else f"{line['cost']['total']:,.4f}")
    return cells
