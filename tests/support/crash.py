"""The crash campaign: a server is killed at random points of turns, again and again, and nothing that was acknowledged is lost.

`run_campaign(folder, kills=300)` raises AssertionError with the seed and the first faults, or returns what was done. By hand:
`python -m tests.support.crash --kills 300`.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson

from tests.support.crash_audit import Said, audit
from tests.support.crash_model import BELLS, PLANS, CrashModel
from tests.support.model_server import Answer, ModelServer, Seen
from tests.support.server_process import ServerProcess

_PLUGIN = "tests.support.crash_model:plugin"
_INTERRUPTED = "stopped during this turn"
_TURNS_OF_AN_AGENT = 40


@dataclass
class Report:
    """What a campaign did; `broken` counts the requests that a kill cut off."""

    seed: int
    kills: int
    said: int
    acknowledged: int
    answered: int
    broken: int
    repeated: int
    interrupted_runs: int
    transcripts: int
    restart_seconds: float
    seconds: float


def run_campaign(
    folder: Path, *, kills: int, clients: int = 4, seed: int | None = None, longest: float = 0.5
) -> Report:
    """Kill the server this many times, each at most `longest` seconds after it is back."""
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311
    began = time.monotonic()
    model, bells = CrashModel(seed), folder / "bells"
    with listening(model.answer) as address:
        environment = {"OPENAI_API_KEY": "campaign", "OPENAI_BASE_URL": address, BELLS: str(bells)}
        with ServerProcess(folder, environment, plugin=_PLUGIN) as server:
            campaign = _Campaign(server, seed)
            campaign.run(kills, clients, longest)
            faults = [*campaign.faults, *model.faults]
            faults += [line for line in server.log_text().splitlines() if "ERROR" in line or "locked" in line]
            faults += audit(server.database, campaign.said, bells)
    assert not faults, f"seed {seed}: {len(faults)} faults:\n" + "\n".join(faults[:12])
    said = campaign.said
    return Report(
        seed=seed,
        kills=kills,
        said=len(said),
        acknowledged=sum(one.acknowledged for one in said),
        answered=sum(one.answered for one in said),
        broken=campaign.broken,
        repeated=campaign.repeated,
        interrupted_runs=campaign.interrupted,
        transcripts=model.count,
        restart_seconds=round(statistics.median(server.starts), 3),
        seconds=round(time.monotonic() - began, 1),
    )


@contextmanager
def listening(answer: Callable[[Seen], Answer]) -> Iterator[str]:
    """The model behind a real address, in a thread that outlives every kill."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = ModelServer(answer, keeps=False)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    try:
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@dataclass
class _Campaign:
    server: ServerProcess
    seed: int
    said: list[Said] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    broken: int = 0
    repeated: int = 0
    interrupted: int = 0
    shared: str = ""
    up: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, kills: int, clients: int, longest: float) -> None:
        """Kill and start while the clients talk; then let every agent answer once more, and end the server well."""
        luck = random.Random(self.seed)  # noqa: S311
        self.server.start()
        with httpx2.Client(base_url=self.server.url, timeout=30, trust_env=False) as http:
            block = http.post("/v1/blocks/", json={"label": "shared", "value": "Begin."})
            self.shared = block.json()["id"]
            self.up.set()
            first = [self._make_agent(http) for _ in range(clients)]
            threads = [threading.Thread(target=self._talk, args=(number, one)) for number, one in enumerate(first)]
            for thread in threads:
                thread.start()
            for _ in range(kills):
                time.sleep(luck.uniform(0.02, longest))
                self.up.clear()
                self.server.kill()
                self.server.start()
                self._require_no_open_run(http)
                self.up.set()
            self.over.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), f"seed {self.seed}: a client hangs"
            for number, agent in enumerate(self.agents):
                last = self._new(agent, f"last-{number}")
                self._send(http, last, "", {}, is_repeat=False)
                if not last.answered:
                    self.faults.append(f"{agent} does not answer any more")
        if code := self.server.stop():
            self.faults.append(f"the server ended with {code}")

    def _require_no_open_run(self, http: httpx2.Client) -> None:
        response = http.get("/v1/runs/", params={"active": True})
        if response.status_code != 200 or response.json():
            self.faults.append(f"runs are open after a restart: {response.text[:200]}")

    def _talk(self, number: int, agent: str | None) -> None:
        try:
            self._talk_until_over(number, agent or "", random.Random(f"{self.seed}-{number}"))  # noqa: S311
        except Exception as error:
            self.faults.append(f"client {number}: {error!r}")

    def _talk_until_over(self, number: int, agent: str, luck: random.Random) -> None:
        turns = 0
        with httpx2.Client(base_url=self.server.url, timeout=30, trust_env=False) as http:
            while not self.over.is_set():
                assert self.up.wait(30)
                turns += 1
                if turns % _TURNS_OF_AN_AGENT == 0:
                    agent = self._make_agent(http) or agent
                one = self._new(agent, f"say-{number}-{turns}")
                plan = luck.choice(PLANS)
                how = {"streaming": True, "stream_tokens": luck.random() < 0.5} if luck.random() < 0.5 else {}
                is_broken = self._send(http, one, plan, how, is_repeat=False)
                if is_broken and luck.random() < 0.6:
                    assert self.up.wait(30)
                    self.repeated += 1
                    self._send(http, one, plan, how, is_repeat=True)

    def _make_agent(self, http: httpx2.Client) -> str | None:
        body = {
            "model": "openai/scripted-1",
            "memory_blocks": [{"label": "notes", "value": "Begin."}],
            "block_ids": [self.shared],
            "tools": ["core_memory_append", "ring_bell"],
        }
        try:
            response = http.post("/v1/agents/", json=body)
        except httpx2.TransportError:
            return None
        if response.status_code != 200:
            self.faults.append(f"an agent could not be made: {response.status_code} {response.text[:200]}")
            return None
        agent: str = response.json()["id"]
        self.agents.append(agent)
        return agent

    def _new(self, agent: str, token: str) -> Said:
        one = Said(agent, token, f"otid-{token}")
        self.said.append(one)
        return one

    def _send(self, http: httpx2.Client, one: Said, plan: str, how: dict[str, Any], *, is_repeat: bool) -> bool:
        """Send the message and take note of what comes back; True where the connection broke."""
        message = {"role": "user", "content": f"{one.token} {plan}".strip(), "otid": one.otid}
        body = {"messages": [message], "include_pings": True, **how}
        try:
            with http.stream("POST", f"/v1/agents/{one.agent}/messages", json=body) as response:
                if how and response.status_code == 200:
                    said, error = self._listen(response, one)
                else:
                    response.read()
                    said, error = self._whole(response, one)
        except httpx2.TransportError:
            self.broken += 1
            return True
        if error and is_repeat and _INTERRUPTED in error:
            one.acknowledged = True
            self.interrupted += 1
        elif error or said != f"Done {one.token}.":
            self.faults.append(f"{one.token} ({plan}, {how}) was answered by {error or said!r}")
        else:
            one.answered = True
        return False

    def _whole(self, response: httpx2.Response, one: Said) -> tuple[str, str]:
        if response.status_code != 200:
            return "", f"{response.status_code} {response.text[:300]}"
        one.acknowledged = True
        said = [m["content"] for m in response.json()["messages"] if m["message_type"] == "assistant_message"]
        return (said[-1] if said else ""), ""

    def _listen(self, response: httpx2.Response, one: Said) -> tuple[str, str]:
        said: dict[str, str] = {}
        error = ""
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return (list(said.values())[-1] if said else ""), error
            if not line.startswith("data: "):
                continue
            event = orjson.loads(line[6:])
            if event.get("run_id"):
                one.acknowledged = True
            if event["message_type"] == "assistant_message":
                said[event["id"]] = said.get(event["id"], "") + event["content"]
            elif event["message_type"] == "error_message":
                error = f"{event['error_type']}: {event['message']}"
        raise httpx2.RemoteProtocolError("The stream ended without [DONE].")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(run_campaign(Path(place), kills=options.kills, seed=options.seed))
