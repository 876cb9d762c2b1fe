"""The cost of tools: a call in the sandbox, and a turn with 20 custom tools attached.

The program's own time is subtracted from the call's. `python -m bench.tools` measures this alone,
in about half a minute.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import httpx2

from bench import report
from bench.report import Figure
from bench.servers import Server, model_server, ricordo
from bench.turns import TURNS_AN_AGENT, send
from ricordo.errors import RicordoError
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.service import Sandbox
from ricordo.settings import Settings
from tests.support.sandboxes import bubblewrap

_ROUNDS, _TOOLS = 60, 20
# Seconds between calls. A model takes at least as long, and the next process is ready by then.
_PAUSE = 0.15
# Seconds that the server works after an agent was made and reset. This work is not part of a
# turn.
_SETTLES = 0.1
# The program measures its own time, which is subtracted.
_PROGRAM = (
    "import time\nbegan = time.perf_counter()\nsum(range(1000))\nprint(time.perf_counter() - began)"
)
_SOURCE = '''def tool_{number}(place: str, day: int = 1, kind: str = "any") -> str:
    """Look up what is known of a place.

    Args:
        place: Which place.
        day: On which day.
        kind: What kind.
    """
    return place
'''


async def sandbox_calls(backend: str) -> list[Figure]:
    """Measure the first call and the median of the others, without the program's own time.

    Returns no figures if the backend does not work on this machine.
    """
    with tempfile.TemporaryDirectory(prefix="ricordo-bench-") as folder:
        sandbox = Sandbox(Settings(data_dir=Path(folder)), SandboxSettings(sandbox=backend))  # type: ignore[arg-type]
        walls = []
        try:
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                result = await sandbox.run_python(_PROGRAM, b"")
                walls.append((time.perf_counter() - began - float(result.stdout)) * 1000)
                await asyncio.sleep(_PAUSE)
        except RicordoError:
            return []
        finally:
            await sandbox.close()
    return [
        Figure(f"sandbox, {backend}: the first call", walls[0], "ms", 150),
        Figure("  a call, median", statistics.median(walls[1:]), "ms", 15),
    ]


async def many_tools(server: Server) -> list[Figure]:
    """Measure alternating turns with and without the tools."""
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        ids = []
        for number in range(_TOOLS):
            made = await client.post(
                f"{server.url}/v1/tools/", json={"source_code": _SOURCE.format(number=number)}
            )
            ids.append(made.raise_for_status().json()["id"])
        agents = {}
        for has_tools in (True, False):
            body = {"name": "bench", "tool_ids": ids if has_tools else []}
            made = await client.post(f"{server.url}/v1/agents/", json=body)
            agents[has_tools] = made.raise_for_status().json()["id"]
        times: dict[bool, list[float]] = {True: [], False: []}
        for round_ in range(_ROUNDS // 2):
            for has_tools, agent in agents.items():
                await client.patch(f"{server.url}/v1/agents/{agent}/reset-messages", json={})
                await send(client, server, agent, "warming up")
                await asyncio.sleep(_SETTLES)
                before = server.cpu()
                for _ in range(TURNS_AN_AGENT):
                    await send(client, server, agent, "hello")
                if round_:  # the first round loads data for later ones
                    times[has_tools].append((server.cpu() - before) / TURNS_AN_AGENT * 1000)
    with_tools, without = (statistics.median(times[has_tools]) for has_tools in (True, False))
    return [
        Figure(f"plain turn with {_TOOLS} custom tools: processor time", with_tools, "ms"),
        Figure("  over one without", with_tools / without, "times", 1.1),
    ]


def tool_costs(model_url: str) -> list[Figure]:
    """Return all figures of tools."""
    bubblewrap()
    figures = [
        figure
        for backend in ("bubblewrap", "landlock")
        for figure in asyncio.run(sandbox_calls(backend))
    ]
    with ricordo(model_url) as server:
        return figures + asyncio.run(many_tools(server))


if __name__ == "__main__":
    with model_server() as url:
        report.show(tool_costs(url))
