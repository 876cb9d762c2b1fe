"""Servers that are killed while agents ask each other.

No message is lost or doubled, and no run stays open.
"""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.campaigns.sizes import KILLS
from tests.support.kill_campaign import BEGUN_RUNS, KillCampaign, begun
from tests.support.model_server import Answer, Seen, completion, tool_call
from tests.support.server_process import CAN_FORK

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks"),
]
SENDERS = 4
WAITS, ASYNC = "send_message_to_agent_and_wait_for_reply", "send_message_to_agent_async"
_ORDER = re.compile(r"(send_message_to_\w+) (agent-\S+) (.+)")
_TOKEN = re.compile(r"ask-\d-\d{5}")
_WORK = "SELECT id FROM jobs WHERE status IN ('waiting', 'running') AND kind = 'groups.message'"
_FAILED = (
    "SELECT id, CAST(error AS TEXT) FROM jobs WHERE status = 'failed' AND kind = 'groups.message'"
)


@dataclass
class Askers(KillCampaign):
    """The chains of agents that ask each other, and the tokens that were sent."""

    rest = (BEGUN_RUNS, _WORK)

    senders: list[str] = field(default_factory=list)
    middle: str = ""
    last: str = ""
    sent: dict[str, str] = field(default_factory=dict)

    async def make_agents(self) -> None:
        self.senders = [
            await self._agent(f"sender-{number}", WAITS, ASYNC) for number in range(SENDERS)
        ]
        self.last = await self._agent("last")
        self.middle = await self._agent("middle", WAITS)

    async def _agent(self, name: str, *tools: str) -> str:
        return str((await self.new_agent(name, include_base_tools=False, tools=tools))["id"])

    async def send(self, number: int) -> None:
        """Let one sender send its messages one by one, each until it is answered."""
        count = 0
        while not self.is_over:
            count += 1
            token = f"ask-{number}-{count:05d}"
            tool = self.luck.choice((WAITS, ASYNC))
            # The middle agent passes these messages on to the last agent, and waits.
            order = self.luck.choice(("", f"{WAITS} {self.last} "))
            place = f"/v1/agents/{self.senders[number]}/messages"
            await self.settle(place, token, f"{tool} {self.middle} {order}{token}")
            self.sent[token] = tool

    def free_jobs(self, pid: int) -> None:  # noqa: ARG002 - what the other server works on is free too
        self.tables.rows("UPDATE jobs SET heartbeat_at = 0 WHERE status = 'running'")

    def hasten(self) -> None:
        # An interrupted turn continues after a pause that grows with the attempts, up to ten
        # minutes.
        self.tables.rows(
            "UPDATE jobs SET not_before = 0 WHERE status = 'waiting' AND kind = 'groups.message'"
        )

    def audit(self) -> None:
        """Compare the messages that each agent got with the sent messages."""
        self.faults += [f"a job failed: {row}" for row in self.tables.rows(_FAILED)]
        got = self._incoming(self.middle)
        for token, tool in self.sent.items():
            # A kill may interrupt a call before or after its effect.
            least = 1 if tool == ASYNC else 0
            if not least <= got[token] <= 1:
                self.faults.append(f"{token} by {tool} came {got[token]} times")
        self.faults += [f"{token} came from nowhere" for token in got if token not in self.sent]
        self.faults += [
            f"{token} came twice to the last"
            for token, n in self._incoming(self.last).items()
            if n > 1
        ]
        self.faults += [
            f"a sender was asked {token}"
            for sender in self.senders
            for token in self._incoming(sender)
        ]

    def _incoming(self, agent: str) -> Counter[str]:
        """Return how often the agent got each token from another agent."""
        got: Counter[str] = Counter()
        sql = (
            "SELECT CAST(parts AS TEXT) FROM messages WHERE agent_id = ? AND role = 'system' AND "
            "sender_id IS NOT NULL"
        )
        for (parts,) in self.tables.rows(sql, agent):
            got.update(
                _TOKEN.findall("".join(part.get("text", "") for part in orjson.loads(parts)))
            )
        return got


def answer(seen: Seen) -> Answer:
    """A model that calls the tools that its message names."""
    messages = seen.body["messages"]
    last: dict[str, Any] = messages[-1]
    if last["role"] != "tool" and (order := _ORDER.search(str(last["content"]))):
        tool, other, text = order.groups()
        return completion(
            None,
            [tool_call(tool, {"message": text, "other_agent_id": other}, f"call_{len(messages)}")],
        )
    return completion("Done.")


@pytest.mark.parametrize(
    ("kills", "database"),
    [
        pytest.param(1, "sqlite", id="short"),
        pytest.param(KILLS, "sqlite", id="long-sqlite", marks=pytest.mark.soak),
        pytest.param(KILLS, "postgresql", id="long-postgresql", marks=pytest.mark.soak),
    ],
)
async def test_no_message_is_lost_or_doubled_however_often_servers_are_killed(
    tmp_path: Path, kills: int, database: str
) -> None:
    async with begun(Askers, answer, tmp_path, database) as campaign:
        await campaign.make_agents()
        sending = [asyncio.create_task(campaign.send(number)) for number in range(SENDERS)]
        await campaign.kill(kills)
        await asyncio.gather(*sending)
        await campaign.come_to_rest()
        campaign.audit()
    assert len(campaign.sent) >= SENDERS
