"""The crash campaign: servers are killed at random points of turns and jobs while clients talk.

No acknowledged change may be lost. On SQLite there is one server. On PostgreSQL several servers
share the database. At the end one of them is frozen in the middle of a turn, for longer than its
lease. It resumes after another server has closed that turn. Without kills the campaign is a load
test in which "busy" is the only refusal. `await run_campaign(folder, Size(kills=300))` returns what
was done, or raises AssertionError with the seed and the errors. On the command line: `python -m
tests.support.crash --kills 300`, `--servers 2 --kills 25 --turns 2000 --every 4`, `--clients 50
--turns 1000`.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import httpx2
import orjson

from tests.support.crash_audit import Said, audit
from tests.support.crash_servers import CONNECTIONS_OF_ONE, CrashServer, Tables, opened_servers
from tests.support.faults_model import FaultyModel
from tests.support.model_server import Answer, ModelServer, Seen
from tests.support.postgres import stop_server

Outcome = Literal["answered", "interrupted", "busy", "broken", "slow", "wrong"]
PLANS = (
    *(
        "",
        "insert",
        "append",
        "search",
        "archive",
        "tagged",
        "search+lookup",
        "insert+archive+insert",
        "ring_bell",
    ),
    *(
        "insert+ring_bell",
        "insert/append/archive/lookup",
        "search/insert+tagged",
        "share",
        "share+insert/ring_bell",
    ),
)
_BUSY = "Cannot send a new message"
_GONE = ("The server that ran this turn is gone.", "The server stopped during this turn.")
_FROZEN = "say-frozen-1"
_QUICK_TRIES = 3
_REPEATED = ("busy", "broken", "slow", "interrupted")
_JOBS_AT_ONCE = 5
_WORK = "SELECT 1 FROM jobs WHERE status IN ('waiting', 'running') AND key NOT LIKE 'every:%'"
_DROP_IDLE_WAKE_UPS = """DELETE FROM procrastinate_jobs WHERE status = 'doing'
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = queueing_lock AND status = 'running')"""
_HURRIED_LEASE = 1_000_000  # microseconds
_LIMIT = 240.0  # seconds until nothing runs any more


@dataclass(frozen=True)
class Size:
    """The size of a campaign.

    It lasts until the numbers of turns and kills are reached, with a kill about every `every`
    seconds. On PostgreSQL a killed server's work is free once its lease has expired. With
    `hurries`, all leases are cut to a second at a kill, and the jobs of the killed server are free
    at once.
    """

    turns: int = 0
    kills: int = 0
    every: float = 0.26
    servers: int = 1
    agents: int = 8
    clients: int = 4
    hurries: bool = False


def _slowed(
    model: FaultyModel, luck: random.Random, asked: asyncio.Event
) -> Callable[[Seen], Answer]:
    """Return a model of random speed that waits at the message at which a server is frozen."""

    def answer(seen: Seen) -> Answer:
        answered = model.answer(seen)
        if _FROZEN.encode() in seen.raw and seen.body["messages"][-1]["content"].startswith(
            _FROZEN
        ):
            asked.set()
            return replace(answered, delay=1.0)
        return replace(answered, delay=luck.choice((0, 0, 0.002, 0.01)))

    return answer


@dataclass
class _Campaign:
    servers: list[CrashServer]
    tables: Tables
    size: Size
    luck: random.Random
    asked: asyncio.Event
    agents: list[str] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    most_connections: int = 0
    kills: int = 0
    settling: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    late: list[tuple[Said, str]] = field(default_factory=list)
    http: list[httpx2.AsyncClient] = field(default_factory=list)
    # Cleared while the only server is down, so that clients wait for it.
    up: asyncio.Event = field(default_factory=asyncio.Event)
    has_jobs: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_alone(self) -> bool:
        return len(self.servers) == 1

    @property
    def _is_over(self) -> bool:
        return len(self.said) >= self.size.turns and self._has_kills

    @property
    def _has_kills(self) -> bool:
        """Return whether there were enough kills, and at least as many interrupted requests.

        On a busy machine a kill may interrupt no request.
        """
        return self.size.kills <= self.kills <= self.outcomes["broken"]

    async def run(self) -> None:
        """Kill and start servers while clients talk; then let all agents answer."""
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=100)
        for server in self.servers:
            self.http.append(
                httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits, trust_env=False)
            )
        try:
            await self._make_agents()
            self.up.set()
            talking = [
                asyncio.create_task(self._talk(number)) for number in range(self.size.clients)
            ]
            await asyncio.gather(self._kill_and_start(), self._add_jobs(), *talking)
            await asyncio.gather(*self.settling.values())
            await asyncio.gather(*(self._settle(one, plan) for one, plan in self.late))
            await self._come_to_rest()
            if not self.is_alone:
                await self._freeze()
            last = [self._new(agent, f"last{number}") for number, agent in enumerate(self.agents)]
            await asyncio.gather(*(self._settle(one, "") for one in last))
            self.faults += [
                f"{one.agent} does not answer any more" for one in last if not one.answered
            ]
            self.faults += [
                f"{one.token} was never answered" for one in self.said if not one.answered
            ]
            await self._come_to_rest()
        finally:
            for task in self.settling.values():
                task.cancel()
            for client in self.http:
                await client.aclose()

    async def watch(self) -> None:
        """Count the servers' connections to PostgreSQL all the time."""
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
            "application_name <> ''"
        )
        # The connections of a killed process may be seen a moment longer than it lives.
        most = (len(self.servers) + 1) * CONNECTIONS_OF_ONE
        while not self.is_alone:
            found = self.tables.rows(sql)[0][0]
            self.most_connections = max(self.most_connections, found)
            if found > most:
                self.faults.append(f"{found} connections are open at once, and {most} are allowed")
            await asyncio.sleep(0.05)

    async def _make_agents(self) -> None:
        block = (
            await self.http[0].post("/v1/blocks/", json={"label": "shared", "value": "Begin."})
        ).json()["id"]
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

    async def _kill_and_start(self) -> None:
        if self.size.kills:
            # A kill must interrupt some of these jobs.
            await self.has_jobs.wait()
        while self.size.kills and (not self._has_kills or not (self._is_over or self.size.hurries)):
            await asyncio.sleep(self.size.every * self.luck.uniform(0.1, 1.9))
            victim = self.luck.choice(self.servers)
            pid = victim.pid
            if self.is_alone:
                self.up.clear()
            await asyncio.to_thread(victim.kill)
            self.kills += 1
            if self.size.hurries:
                sql = "UPDATE jobs SET heartbeat_at = 0 WHERE status = 'running' AND worker LIKE ?"
                self.tables.rows(sql, f"%-{pid}-%")
                # The turns of the other server must survive this: they save a step first, or are
                # closed while they run.
                soon = time.time_ns() // 1000 + _HURRIED_LEASE
                self.tables.rows(
                    "UPDATE runs SET lease_expires_at = ? WHERE ended_at IS NULL", soon
                )
            await asyncio.to_thread(victim.start)
            if self.is_alone:
                found = await self.http[0].get("/v1/runs/", params={"active": True})
                if found.status_code != 200 or found.json():
                    self.faults.append(f"runs are open after a restart: {found.text[:200]}")
                self.up.set()

    async def _add_jobs(self) -> None:
        while not self._is_over:
            await self.up.wait()
            with suppress(httpx2.TransportError):
                values = {"count": _JOBS_AT_ONCE, "seconds": self.luck.uniform(0, 0.1)}
                response = await self.luck.choice(self.http).post("/campaign/jobs", params=values)
                self.jobs += response.json()
                self.has_jobs.set()
            if not self.is_alone:
                # A merge that is due in half a minute becomes due now, so that kills interrupt it.
                self._hasten("search.flush")
            await asyncio.sleep(max(0.2, self.size.every / 4))

    async def _freeze(self) -> None:
        """Freeze a server in a turn until another server closed the turn and answered."""
        one, next_one = Said(self.agents[0], _FROZEN), self._new(self.agents[0], "next")
        self.said.append(one)
        first = asyncio.create_task(self._send(self.http[0], one, self._body(one, "")))
        await asyncio.wait_for(self.asked.wait(), _LIMIT)
        self.servers[0].freeze()
        try:
            if self.size.hurries:
                # Only this turn is still open.
                self.tables.rows("UPDATE runs SET lease_expires_at = 0 WHERE ended_at IS NULL")
            outcomes = [await self._send(self.http[1], one, self._body(one, ""))]
            outcomes.append(await self._send(self.http[1], next_one, self._body(next_one, "")))
        finally:
            self.servers[0].thaw()
        outcomes.append(await first)
        if outcomes != ["answered", "answered", "interrupted"]:
            self.faults.append(
                "a frozen turn elsewhere, one after it, and what its own server said at last: "
                f"{outcomes}"
            )
        added = await self.http[0].post(
            "/campaign/jobs", params={"count": _JOBS_AT_ONCE, "seconds": 0.01}
        )
        self.jobs += added.json()

    def _hasten(self, kind: str) -> None:
        now = time.time_ns() // 1000
        sql = (
            "UPDATE jobs SET not_before = ? WHERE status = 'waiting' AND kind = ? AND not_before "
            "> ?"
        )
        self.tables.rows(sql, now, kind, now)

    async def _talk(self, number: int) -> None:
        luck = random.Random(f"{self.luck.random()}-{number}")  # noqa: S311
        turn = 0
        while not self._is_over:
            waiting = {one.agent for one in self.said if one.token in self.settling}
            if not (free := [agent for agent in self.agents if agent not in waiting]):
                await asyncio.sleep(0.02)
                continue
            turn += 1
            one, plan = self._new(luck.choice(free), f"{number}x{turn}"), luck.choice(PLANS)
            outcome = await self._attempt(one, plan)
            for _ in range(_QUICK_TRIES):
                if outcome == "busy":
                    await asyncio.sleep(luck.uniform(0.02, 0.1))
                    outcome = await self._attempt(one, plan)
            if outcome == "broken" and self.is_alone and luck.random() < 0.4:
                self.late.append((one, plan))  # Some senders repeat only after the campaign.
                continue
            if outcome in _REPEATED:
                settling = asyncio.create_task(self._settle(one, plan))
                self.settling[one.token] = settling
                if self.is_alone:
                    await settling
                # If several agents talk, this client continues with another agent. This agent may
                # have to wait for a dead server's lease.

    async def _settle(self, one: Said, plan: str) -> None:
        """Send until the turn ends; for that a lease may have to expire."""
        deadline = time.monotonic() + _LIMIT
        while await self._attempt(one, plan) in _REPEATED:
            self.repeated += 1
            if time.monotonic() > deadline:
                self.faults.append(f"{one.token} came to no end")
                break
            is_soon = self.size.hurries or self.is_alone
            await asyncio.sleep(
                self.luck.uniform(0.1, 0.3) if is_soon else self.luck.uniform(0.5, 1.5)
            )
        self.settling.pop(one.token, None)

    def _new(self, agent: str, name: str) -> Said:
        self.said.append(Said(agent, f"say-{name}-1"))
        return self.said[-1]

    async def _attempt(self, one: Said, plan: str) -> Outcome:
        how = (
            {"streaming": True, "stream_tokens": self.luck.random() < 0.5}
            if self.luck.random() < 0.5
            else {}
        )
        await self.up.wait()
        outcome: Outcome = "broken"
        with suppress(httpx2.TransportError):
            try:
                async with asyncio.timeout(3 if self.size.hurries else 60):
                    outcome = await self._send(
                        self.luck.choice(self.http), one, self._body(one, plan) | how
                    )
            except TimeoutError:
                outcome = "slow"
        self.outcomes[outcome] += 1
        return outcome

    def _body(self, one: Said, plan: str) -> dict[str, Any]:
        message = {"role": "user", "content": f"{one.token} {plan}".strip()}
        # The otid identifies a repeated message.
        if self.size.kills or sum(one.token.encode()) % 2:
            message["otid"] = f"otid-{one.token}"
        return {"messages": [message], "include_pings": True}

    async def _send(self, http: httpx2.AsyncClient, one: Said, body: dict[str, Any]) -> Outcome:
        async with http.stream("POST", f"/v1/agents/{one.agent}/messages", json=body) as response:
            if "streaming" in body and response.status_code == 200:
                said, error = await self._listen(response, one)
            else:
                await response.aread()
                if (
                    response.status_code == 409
                    and _BUSY in response.text
                    and response.json()["run_id"]
                ):
                    return "busy"
                said, error = self._whole(response, one)
        if any(gone in error for gone in _GONE) and self.size.kills:
            one.acknowledged, one.interrupted = True, not one.answered
            return "interrupted"
        if error or said != f"Done {one.token}.":
            self.faults.append(f"{one.token} was answered by {error or said!r}")
            return "wrong"
        one.answered, one.interrupted = True, False
        return "answered"

    def _whole(self, response: httpx2.Response, one: Said) -> tuple[str, str]:
        if response.status_code != 200:
            return "", f"{response.status_code} {response.text[:300]}"
        one.acknowledged = True
        said = [
            m["content"]
            for m in response.json()["messages"]
            if m["message_type"] == "assistant_message"
        ]
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
        await self._until("no run is open", "SELECT 1 FROM runs WHERE ended_at IS NULL")
        await self._until("all jobs have ended", _WORK)

    async def _until(self, what: str, sql: str) -> None:
        deadline = time.monotonic() + _LIMIT
        while rows := self.tables.rows(sql):
            if time.monotonic() > deadline:
                self.faults.append(f"it never came that {what}: {len(rows)} are left")
                return
            await asyncio.sleep(0.02)
            self._hasten("search.flush")
            self._hasten("deletion")
            if self.size.hurries:
                # No client talks any more: open runs belong to a dead server, and so do unused
                # wake-ups.
                self.tables.rows("UPDATE runs SET lease_expires_at = 0 WHERE ended_at IS NULL")
                self._hasten("expired_runs")
                self.tables.rows(_DROP_IDLE_WAKE_UPS)


async def run_campaign(folder: Path, size: Size, seed: int | None = None) -> SimpleNamespace:
    """Kill and start servers while clients talk; then check all stored data, once all is idle."""
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311
    began = time.monotonic()
    model, luck, asked = (
        FaultyModel(windows={"scripted-1": 10**9}),
        random.Random(seed),  # noqa: S311
        asyncio.Event(),
    )
    database = "postgresql" if size.servers > 1 else "sqlite"
    async with (
        ModelServer(_slowed(model, luck, asked), keeps=False) as provider,
        opened_servers(folder, provider.url, count=size.servers, database=database) as (
            servers,
            tables,
        ),
    ):
        campaign = _Campaign(servers, tables, size, luck, asked)
        watching = asyncio.create_task(campaign.watch())
        await campaign.run()
        watching.cancel()
        faults = [*campaign.faults, *model.faults]
        for server in servers:
            if code := await asyncio.to_thread(server.stop):
                faults.append(f"a server ended with {code}")
            words = ("ERROR", "Traceback", *(("locked",) if campaign.is_alone else ()))
            faults += [
                line
                for line in server.log_text().splitlines()
                if any(word in line for word in words)
            ]
        killed = {pid: moment for server in servers for pid, moment in server.killed.items()}
        faults += await audit(tables, campaign.said, campaign.jobs, killed, folder)
    assert not faults, f"seed {seed}: {len(faults)} faults:\n" + "\n".join(faults[:12])
    return SimpleNamespace(
        seed=seed,
        turns=len(campaign.said),
        kills=campaign.kills,
        answered=sum(one.answered for one in campaign.said),
        interrupted=sum(one.interrupted for one in campaign.said),
        outcomes=dict(campaign.outcomes),  # outcomes of the attempts to send a message
        repeated=campaign.repeated,
        late=len(campaign.late),
        jobs=len(campaign.jobs),
        transcripts=model.count,
        most_connections=campaign.most_connections,
        restart_seconds=round(
            statistics.median(start for server in servers for start in server.starts), 3
        ),
        seconds=round(time.monotonic() - began, 1),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Size()).items():
        if isinstance(value, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--seed", type=int)
    options = vars(parser.parse_args())
    chosen_seed = options.pop("seed")
    with tempfile.TemporaryDirectory() as place:
        try:
            print(asyncio.run(run_campaign(Path(place), Size(**options), chosen_seed)))
        finally:
            stop_server()
