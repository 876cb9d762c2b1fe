"""The cluster campaign: two servers on one PostgreSQL, of which one is killed every few seconds while clients talk through both.

At last one is frozen in the middle of a turn for longer than its lease, and comes back after the other has closed that turn.

`await run_campaign(folder, turns=2000, kills=30)` raises AssertionError with the seed and the first faults, or returns what was
done. By hand: `python -m tests.support.cluster --turns 2000`. What a killed server held is free again once its lease has run out;
with `hurries` all leases that are held at a kill are cut to a second, and the jobs of the killed server are free at once.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import httpx2
import orjson

from tests.support.cluster_audit import audit
from tests.support.cluster_server import CONNECTIONS_OF_ONE, ClusterServer, Tables, cluster
from tests.support.crash_audit import Said
from tests.support.crash_model import PLANS, CrashModel
from tests.support.model_server import Answer, ModelServer, Seen
from tests.support.postgres import stop_server

Outcome = Literal["answered", "interrupted", "busy", "broken", "slow", "wrong"]
_BUSY = "Cannot send a new message"
_GONE = "The server that ran this turn is gone."
_FROZEN = "frozen"
_QUICK_TRIES = 3
_JOBS_AT_ONCE = 5
_AGE_RUN = """UPDATE runs SET lease_expires_at = 0
    WHERE ended_at IS NULL AND id IN (SELECT run_id FROM messages WHERE otid = ?)"""
_DROP_IDLE_WAKE_UPS = """DELETE FROM procrastinate_jobs WHERE status = 'doing'
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = queueing_lock AND status = 'running')"""
_HURRIED_LEASE = 1_000_000  # microseconds
_LIMIT = 240.0  # seconds for anything to come to rest


@dataclass
class Report:
    """What a campaign did; `broken` counts the requests that a kill cut off, `restart_seconds` is the median."""

    seed: int
    turns: int
    kills: int
    answered: int
    interrupted: int
    broken: int
    busy: int
    repeated: int
    jobs: int
    job_attempts_lost: int
    transcripts: int
    most_connections: int
    restart_seconds: float
    seconds: float


@dataclass(frozen=True)
class Size:
    """How large a campaign is: it lasts until there were so many turns and kills, a kill every so many seconds."""

    turns: int
    kills: int
    every: float
    agents: int = 32
    clients: int = 16
    hurries: bool = False


class _Model(CrashModel):
    """Takes its time over the message at which a server is frozen; `asked` tells that it has that message."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked = asyncio.Event()

    def answer(self, seen: Seen) -> Answer:
        """The next step of the plan in the last message."""
        answer = super().answer(seen)
        if _FROZEN.encode() not in seen.raw or not seen.body["messages"][-1]["content"].startswith(_FROZEN):
            return answer
        self.asked.set()
        return replace(answer, delay=1.0)


async def run_campaign(folder: Path, size: Size, seed: int | None = None) -> Report:
    """Kill and start while the clients talk, let everything come to rest, and check all that is stored."""
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311
    began = time.monotonic()
    model = _Model(seed)
    async with ModelServer(model.answer, keeps=False) as listening, cluster(folder, listening.url) as (servers, tables):
        campaign = _Campaign(servers, tables, model, size, random.Random(seed))  # noqa: S311
        async with campaign.watching():
            await campaign.run()
        killed = {pid: moment for server in servers for pid, moment in server.killed.items()}
        faults = [*campaign.faults, *model.faults]
        faults += await audit(tables, campaign.said, campaign.interrupted, campaign.jobs, killed, folder)
        for server in servers:
            if code := await asyncio.to_thread(server.stop):
                faults.append(f"a server ended with {code}")
            faults += [line for line in server.log_text().splitlines() if "ERROR" in line or "Traceback" in line]
        (attempts,) = tables.execute("SELECT coalesce(sum(attempts - 1), 0) FROM jobs WHERE attempts > 1").fetchall()[0]
    assert not faults, f"seed {seed}: {len(faults)} faults:\n" + "\n".join(faults[:12])
    return Report(
        seed=seed,
        turns=len(campaign.said),
        kills=len(killed),
        answered=sum(one.answered for one in campaign.said),
        interrupted=len(campaign.interrupted),
        broken=campaign.counted["broken"],
        busy=campaign.counted["busy"],
        repeated=campaign.repeated,
        jobs=len(campaign.jobs),
        job_attempts_lost=int(attempts),
        transcripts=model.count,
        most_connections=campaign.most_connections,
        restart_seconds=round(statistics.median(start for server in servers for start in server.starts[1:]), 3),
        seconds=round(time.monotonic() - began, 1),
    )


@dataclass
class _Campaign:
    servers: list[ClusterServer]
    tables: Tables
    model: _Model
    size: Size
    luck: random.Random
    agents: list[str] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    interrupted: set[str] = field(default_factory=set)
    jobs: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=lambda: {"broken": 0, "busy": 0})
    repeated: int = 0
    most_connections: int = 0
    kills: int = 0
    settling: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    http: list[httpx2.AsyncClient] = field(default_factory=list)

    async def run(self) -> None:
        """The whole campaign, up to the moment at which nothing moves any more."""
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=100)
        for server in self.servers:
            self.http.append(httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits, trust_env=False))
        try:
            await self._make_agents()
            talking = [asyncio.create_task(self._talk(number)) for number in range(self.size.clients)]
            await asyncio.gather(self._kill_and_start(), self._add_jobs(), *talking)
            await asyncio.gather(*self.settling.values())
            await self._come_to_rest()
            await self._freeze()
            last = [self._new(agent, f"last{number}") for number, agent in enumerate(self.agents)]
            await asyncio.gather(*(self._settle(one, "") for one in last))
            await self._come_to_rest()
        finally:
            for task in self.settling.values():
                task.cancel()
            for client in self.http:
                await client.aclose()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Count the servers' connections all the time."""
        tables = Tables(self.tables.address)
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> ''"

        async def watch() -> None:
            while True:
                (count,) = tables.execute(sql).fetchone() or (0,)
                self.most_connections = max(self.most_connections, count)
                await asyncio.sleep(0.05)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            tables.close()
        # Those of a killed process may be seen a moment longer than it lives.
        most = (len(self.servers) + 1) * CONNECTIONS_OF_ONE
        if self.most_connections > most:
            self.faults.append(f"{self.most_connections} connections were open at once, and {most} are allowed")

    async def _make_agents(self) -> None:
        block = (await self.http[0].post("/v1/blocks/", json={"label": "shared", "value": "Begin."})).json()["id"]
        body = {
            "model": "openai/scripted-1",
            "memory_blocks": [{"label": "notes", "value": "Begin."}],
            "block_ids": [block],
            "tools": ["core_memory_append", "ring_bell"],
        }
        for number in range(self.size.agents):
            response = await self.http[number % len(self.http)].post("/v1/agents/", json=body)
            assert response.status_code == 200, response.text
            self.agents.append(response.json()["id"])

    @property
    def _is_over(self) -> bool:
        return len(self.said) >= self.size.turns and self.kills >= self.size.kills

    async def _kill_and_start(self) -> None:
        while self.kills < self.size.kills or not (self._is_over or self.size.hurries):
            await asyncio.sleep(self.size.every * self.luck.uniform(0.6, 1.4))
            victim = self.luck.choice(self.servers)
            pid = victim.pid
            await asyncio.to_thread(victim.kill)
            self.kills += 1
            if self.size.hurries:
                sql = "UPDATE jobs SET heartbeat_at = 0 WHERE status = 'running' AND worker LIKE ?"
                self.tables.execute(sql, (f"%-{pid}-%",))
                # The turns of the other server save a step before that, or are closed while they run, and have to bear it.
                soon = time.time_ns() // 1000 + _HURRIED_LEASE
                self.tables.execute("UPDATE runs SET lease_expires_at = ? WHERE ended_at IS NULL", (soon,))
            await asyncio.to_thread(victim.start)

    async def _add_jobs(self) -> None:
        while not self._is_over:
            with suppress(httpx2.TransportError):
                values = {"count": _JOBS_AT_ONCE, "seconds": self.luck.uniform(0, 0.1)}
                response = await self.luck.choice(self.http).post("/campaign/jobs", params=values)
                self.jobs += response.json()
            # A merge that is due in half a minute is due now: it has to meet turns and kills.
            self._hasten("search.flush")
            await asyncio.sleep(self.size.every / 4)

    async def _freeze(self) -> None:
        """Let a server stand still in a turn until the other has closed it and has answered there, then let it go on."""
        one, next_one = self._new(self.agents[0], f"{_FROZEN}1"), self._new(self.agents[0], "next1")
        first = asyncio.create_task(self._send(self.http[0], one, _body(one, "")))
        await asyncio.wait_for(self.model.asked.wait(), _LIMIT)
        self.servers[0].freeze()
        try:
            if self.size.hurries:
                self.tables.execute(_AGE_RUN, (one.otid,))
            outcomes = [await self._send(self.http[1], one, _body(one, ""))]
            outcomes.append(await self._send(self.http[1], next_one, _body(next_one, "")))
        finally:
            self.servers[0].thaw()
        outcomes.append(await first)
        if outcomes != ["interrupted", "answered", "interrupted"]:
            self.faults.append(f"a turn of a frozen server, one after it, and it again when it was back: {outcomes}")
        added = await self.http[0].post("/campaign/jobs", params={"count": _JOBS_AT_ONCE, "seconds": 0.01})
        self.jobs += added.json()

    def _hasten(self, kind: str) -> None:
        now = time.time_ns() // 1000
        sql = "UPDATE jobs SET not_before = ? WHERE status = 'waiting' AND kind = ? AND not_before > ?"
        self.tables.execute(sql, (now, kind, now))

    async def _talk(self, number: int) -> None:
        luck = random.Random(f"{self.luck.random()}-{number}")  # noqa: S311
        turn = 0
        while not self._is_over:
            waiting = {one.agent for one in self.said if one.otid in self.settling}
            if not (free := [agent for agent in self.agents if agent not in waiting]):
                await asyncio.sleep(0.1)
                continue
            turn += 1
            one, plan = self._new(luck.choice(free), f"say{number}x{turn}"), luck.choice(PLANS)
            outcome = await self._attempt(one, plan)
            for _ in range(_QUICK_TRIES):
                if outcome == "busy":
                    await asyncio.sleep(luck.uniform(0.02, 0.1))
                    outcome = await self._attempt(one, plan)
            if outcome in ("busy", "broken", "slow"):
                # Its agent may have to wait for a dead server's lease; there are others to talk with meanwhile.
                self.settling[one.otid] = asyncio.create_task(self._settle(one, plan))

    async def _settle(self, one: Said, plan: str) -> None:
        """Send until there is an end, for which a lease may have to run out."""
        deadline = time.monotonic() + _LIMIT
        while await self._attempt(one, plan) in ("busy", "broken", "slow"):
            self.repeated += 1
            if time.monotonic() > deadline:
                self.faults.append(f"{one.token} came to no end")
                break
            await asyncio.sleep(self.luck.uniform(0.1, 0.3) if self.size.hurries else self.luck.uniform(0.5, 1.5))
        self.settling.pop(one.otid, None)

    def _new(self, agent: str, token: str) -> Said:
        self.said.append(Said(agent, token, f"otid-{token}"))
        return self.said[-1]

    async def _attempt(self, one: Said, plan: str) -> Outcome:
        """Send the message to some server, and take note of what comes back."""
        how = {"streaming": True, "stream_tokens": self.luck.random() < 0.5} if self.luck.random() < 0.5 else {}
        body = _body(one, plan) | how
        try:
            async with asyncio.timeout(3 if self.size.hurries else 60):
                outcome = await self._send(self.luck.choice(self.http), one, body)
        except TimeoutError:
            return "slow"
        except httpx2.TransportError:
            outcome = "broken"
        if outcome in self.counted:
            self.counted[outcome] += 1
        return outcome

    async def _send(self, http: httpx2.AsyncClient, one: Said, body: dict[str, Any]) -> Outcome:
        async with http.stream("POST", f"/v1/agents/{one.agent}/messages", json=body) as response:
            if "streaming" in body and response.status_code == 200:
                said, error = await self._listen(response, one)
            else:
                await response.aread()
                if response.status_code == 409 and _BUSY in response.text:
                    return "busy"
                said, error = self._whole(response, one)
        if _GONE in error:
            one.acknowledged = True
            self.interrupted.add(one.otid)
            return "interrupted"
        if error or said != f"Done {one.token}.":
            self.faults.append(f"{one.token} was answered by {error or said!r}")
            return "wrong"
        one.answered = True
        return "answered"

    def _whole(self, response: httpx2.Response, one: Said) -> tuple[str, str]:
        if response.status_code != 200:
            return "", f"{response.status_code} {response.text[:300]}"
        one.acknowledged = True
        said = [m["content"] for m in response.json()["messages"] if m["message_type"] == "assistant_message"]
        return (said[-1] if said else ""), ""

    async def _listen(self, response: httpx2.Response, one: Said) -> tuple[str, str]:
        said: dict[str, str] = {}
        error = ""
        async for line in response.aiter_lines():
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

    async def _come_to_rest(self) -> None:
        """Wait until no run is open, every job has ended and every text is merged, or take note of what does not end."""
        await self._until("no run is open", "SELECT 1 FROM runs WHERE ended_at IS NULL", self._age_runs)
        work = "SELECT 1 FROM jobs WHERE status IN ('waiting', 'running') AND key NOT LIKE 'every:%'"
        await self._until("all jobs have ended", work, self._age_jobs)

    def _age_runs(self) -> None:
        # Nobody is talking any more, so whatever stays open is a dead server's.
        if self.size.hurries:
            self.tables.execute("UPDATE runs SET lease_expires_at = 0 WHERE ended_at IS NULL")
            self._hasten("expired_runs")

    def _age_jobs(self) -> None:
        self._hasten("search.flush")
        self._hasten("deletion")
        if self.size.hurries:
            # As two sweeps would: the wake-ups that a killed server had taken and not used.
            self.tables.execute(_DROP_IDLE_WAKE_UPS)

    async def _until(self, what: str, sql: str, nudge: Callable[[], None]) -> None:
        deadline = time.monotonic() + _LIMIT
        while rows := self.tables.execute(sql).fetchall():
            if time.monotonic() > deadline:
                self.faults.append(f"it never came that {what}: {len(rows)} are left")
                return
            await asyncio.sleep(0.2)
            nudge()


def _body(one: Said, plan: str) -> dict[str, Any]:
    message = {"role": "user", "content": f"{one.token} {plan}".strip(), "otid": one.otid}
    return {"messages": [message], "include_pings": True}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between kills")
    parser.add_argument("--hurries", action="store_true", help="let the leases of dead servers run out at once")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    size_ = Size(options.turns, options.kills, options.every, hurries=options.hurries)
    with tempfile.TemporaryDirectory() as place:
        try:
            print(asyncio.run(run_campaign(Path(place), size_, options.seed)))
        finally:
            stop_server()
