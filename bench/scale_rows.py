"""Rows and bytes of a user on PostgreSQL: `python -m bench.scale_rows`, in about a minute.

Each user has an agent, its talk, and two blocks of memory. The first agent is made over HTTP, as
clients do, and indexed with vectors; the others are copies of it. PostgreSQL says how large its
tables and indexes are.
"""

import argparse
import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import httpx2
import psycopg

from bench.pages import copy_agents, remember
from bench.report import Figure, Report
from bench.search.places import Place, place
from bench.search.texts import Writer
from bench.servers import Server, model_server
from bench.turns import create_agent, send
from bench.waiting import wait_for_index
from ricordo.storage.engine.postgres import open_postgres

USERS, MESSAGES = 2_000, 100
_AT_ONCE = 250  # users of one transaction
_SEED = 36
_SHOWN = 12  # tables
_SIZES = """
SELECT relname, reltuples::bigint, pg_table_size(oid), pg_indexes_size(oid)
FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
ORDER BY pg_total_relation_size(oid) DESC
"""


@dataclass(frozen=True)
class Table:
    """A table: how many rows it has, and the bytes of the table and of its indexes."""

    name: str
    rows: int
    own: int
    indexes: int


def fill(where: Place, model_url: str, users: int) -> None:
    """Make one user's agent with its talk over HTTP, and copies of it for the others."""
    with where.server(model_url) as server:
        agent = asyncio.run(_template(server))
    url = where.environment["RICORDO_DATABASE_URL"]
    for first in range(1, users, _AT_ONCE):
        asyncio.run(_copies(url, agent, range(first, min(first + _AT_ONCE, users))))
        where.clear()  # so that PostgreSQL plans the next statements for tables of this size


async def _template(server: Server) -> str:
    """Return an agent with two turns and imported messages, all of them indexed."""
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        agent = await create_agent(client, server)
        for text in ("hello", "edit"):
            await send(client, server, agent, text)
        sentences = iter(Writer(_SEED).texts(2 * MESSAGES))
        said = [
            {"role": role, "content": f"{next(sentences)} {next(sentences)}"}
            for role in ("user", "assistant") * (MESSAGES // 2)
        ]
        url = f"{server.url}/v1/agents/{agent}/messages/import"
        (await client.post(url, json={"messages": said})).raise_for_status()
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as waiting:
        wait_for_index(waiting)
    return agent


async def _copies(url: str, template: str, numbers: range) -> None:
    store = open_postgres(url, connections=2, backups=Path(gettempdir()))
    await store.write(lambda tx: copy_agents(tx, template, numbers))
    await store.write(lambda tx: remember(tx, numbers, random.Random(numbers.start)))
    await store.close()


def sizes(url: str) -> list[Table]:
    """Return the tables of a database, the largest first."""
    with psycopg.connect(url) as connection:
        return [Table(*row) for row in connection.execute(_SIZES).fetchall()]


def measure(report: Report, users: int) -> None:
    """Fill a database, and report the bytes of a user and of each row."""
    with model_server() as model_url, place("postgres") as where:
        report.begin(f"filling PostgreSQL with {users} users of {MESSAGES} messages")
        fill(where, model_url, users)
        tables = sizes(where.environment["RICORDO_DATABASE_URL"])
    total = sum(table.own + table.indexes for table in tables)
    report.begin("sizes")
    report.add(
        [
            Figure("bytes of a user, with indexes", total / users, "B"),
            Figure("  indexes alone", sum(table.indexes for table in tables) / users, "B"),
            Figure("  rows of a user", sum(max(table.rows, 0) for table in tables) / users, ""),
        ]
    )
    for table in tables[:_SHOWN]:
        rows = max(table.rows, 1)
        report.add(
            [
                Figure(f"{table.name}: rows of a user", table.rows / users, ""),
                Figure("  bytes of a row", table.own / rows, "B"),
                Figure("  bytes of its indexes", table.indexes / rows, "B"),
            ]
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale_rows", description=__doc__)
    parser.add_argument("--users", type=int, default=USERS)
    report = Report()
    measure(report, parser.parse_args().users)
    report.end()


if __name__ == "__main__":
    main()
