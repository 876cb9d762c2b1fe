"""Turns with many messages in the window: `python -m bench.windows 60 1000 5000`.

The bench measures the server's processor time for one plain turn, by the number of messages in the
window. It uses SQLite, or the database that `--database` names. The sizes alternate, so that a slow
minute of the machine affects all of them.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
from sqlalchemy import Engine, text

from bench.servers import Server, model_server, ricordo
from bench.turns import send
from ricordo.domain.ids import new_id
from ricordo.storage.engine import sqlite

_BLOCKS = [
    {"label": "persona", "value": "You keep what people tell you. " * 20},
    {"label": "human", "value": "Her name is Ada."},
]
_KEY = "key-of-the-bench-of-windows"
_READ = text("SELECT window, organization_id FROM conversations WHERE agent_id = :agent")
_INSERT = text(
    "INSERT INTO messages (id, organization_id, agent_id, conversation_id, role, parts, text,"
    " created_at, is_untrusted) VALUES (:id, :organization, :agent, :conversation, :role, :parts,"
    " :text, :time, false)"
)
_WRITE = text(
    "UPDATE conversations SET window = :window, message_count = message_count + :count"
    " WHERE agent_id = :agent"
)


def fill(engine: Engine, agent: str, count: int) -> None:
    """Put this number of messages into the window of the agent's conversation."""
    with engine.begin() as connection:
        stored, organization = connection.execute(_READ, {"agent": agent}).one()
        window = json.loads(stored) if isinstance(stored, str) else stored
        rows = []
        for number in range(count):
            words = f"Message {number} tells of tea in the garden, and of item {number * 7}."
            rows.append(
                {
                    "id": new_id("message"),
                    "organization": organization,
                    "agent": agent,
                    "conversation": "conv-" + agent.removeprefix("agent-"),
                    "role": "assistant" if number % 2 else "user",
                    "parts": json.dumps([{"kind": "text", "text": words}]),
                    "text": words,
                    "time": time.time_ns() // 1000 + number,
                }
            )
        if rows:
            connection.execute(_INSERT, rows)
        ids = [*window, *(row["id"] for row in rows)]
        parameters = {"window": json.dumps(ids), "count": count, "agent": agent}
        connection.execute(_WRITE, parameters)


async def measure(server: Server, engine: Engine, sizes: list[int], rounds: int) -> None:
    """Print the smallest and the median time of each size."""
    headers = {"authorization": f"Bearer {_KEY}"}
    async with httpx2.AsyncClient(timeout=120, headers=headers, trust_env=False) as client:
        agents: dict[int, str] = {}
        for size in sizes:
            body = {
                "model": "openai/bench",
                "memory_blocks": _BLOCKS,
                "context_window_limit": 1_000_000,
            }
            response = await client.post(f"{server.url}/v1/agents/", json=body)
            response.raise_for_status()
            agents[size] = response.json()["id"]
            await send(client, server, agents[size], "hello")
            fill(engine, agents[size], max(0, size - 10))
            for _ in range(3):
                await send(client, server, agents[size], "hello")
        await asyncio.sleep(3)  # the index is written in the background
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for _, size in itertools.product(range(rounds), sizes):
            before = server.cpu()
            await send(client, server, agents[size], "hello")
            times[size].append((server.cpu() - before) * 1000)
    for size, cpu in times.items():
        print(
            f"{size:6} messages: {min(cpu):7.2f} ms smallest, {statistics.median(cpu):7.2f} median"
        )
    print(f"resident memory: {server.memory():.0f} MB", flush=True)


def main() -> None:
    """Measure the sizes of the command line."""
    parser = argparse.ArgumentParser(prog="bench.windows", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[10, 60, 1000, 5000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--database", default="", help="address of an empty PostgreSQL database")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="ricordo-windows-") as folder, model_server() as model_url:
        settings = {"RICORDO_API_KEY": _KEY, "RICORDO_LOG_LEVEL": "error"}
        if arguments.database:
            settings["RICORDO_DATABASE_URL"] = arguments.database
            # The driver of PostgreSQL is in an extra.
            from ricordo.storage.engine import postgres

            engine = postgres.make_engine(arguments.database)
        else:
            engine = sqlite.make_engine(Path(folder) / "ricordo.db", "normal")
        with ricordo(model_url, Path(folder), **settings) as server:
            asyncio.run(measure(server, engine, arguments.sizes, arguments.rounds))


if __name__ == "__main__":
    main()
