"""The cost of checking a key.

The same request is sent without a key, with the operator's key and with a user's stored key.
"""

import statistics
import time

import httpx2

from bench.report import Figure
from bench.servers import Server

OPERATOR = "bench-operator"
_CALLS, _ROUNDS = 200, 5


async def key_costs(client: httpx2.AsyncClient, keyless: Server, locked: Server) -> list[Figure]:
    """Send the same requests to servers without and with keys in turn.

    CPU time is measured, since it shows such a small difference better than wall time.
    """
    operator = {"authorization": f"Bearer {OPERATOR}"}
    made = await client.post(f"{locked.url}/v1/keys/", json={"user": "ada"}, headers=operator)
    made.raise_for_status()
    users = {"authorization": f"Bearer {made.json()['key']}"}
    kinds = {
        "no key": (keyless, {}),
        "RICORDO_API_KEY": (locked, operator),
        "a user's key": (locked, users),
    }
    walls: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpus: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round in range(_ROUNDS + 1):
        for kind, (server, headers) in kinds.items():
            before, began = server.cpu(), time.perf_counter()
            for _ in range(_CALLS):
                (
                    await client.get(f"{server.url}/v1/tools/count", headers=headers)
                ).raise_for_status()
            if round:  # the first round loads data for later ones
                walls[kind].append((time.perf_counter() - began) / _CALLS * 1000)
                cpus[kind].append((server.cpu() - before) / _CALLS * 1000)
    wall, cpu = ({kind: statistics.median(one) for kind, one in of.items()} for of in (walls, cpus))
    figures = [Figure(f"small request, {kind}: wall", wall[kind], "ms") for kind in kinds]
    figures += [
        Figure(f"  check of {kind}: processor time", cpu[kind] - cpu["no key"], "ms", 0.1)
        for kind in ("RICORDO_API_KEY", "a user's key")
    ]
    return [
        *figures,
        Figure(
            "  a user's key to no key, processor time", cpu["a user's key"] / cpu["no key"], "times"
        ),
    ]
