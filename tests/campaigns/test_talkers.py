"""Servers are killed while groups talk.

No member speaks twice in a turn, every member hears every message, and no run stays open.
"""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.campaigns.sizes import KILLS
from tests.support.kill_campaign import KillCampaign, begun
from tests.support.model_server import Answer, Seen, completion, tool_call
from tests.support.server_process import CAN_FORK

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks"),
]
KINDS = ("round_robin", "dynamic", "supervisor")
MEMBERS = 3
_ASK = "send_message_to_all_agents_in_group"
_SPEAKER = re.compile(r"You are (\S+) in a group chat")
_TOKEN = re.compile(r"say-\S+-\d{5}")


@dataclass
class Talkers(KillCampaign):
    """The groups with their members, the messages to each group, and the answers."""

    is_patient = True

    groups: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    answers: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    said: Counter[str] = field(default_factory=Counter)

    async def make_groups(self) -> None:
        for kind in KINDS:
            members = [await self._agent(f"{kind}-{number}") for number in range(MEMBERS)]
            config: dict[str, Any] = {"manager_type": kind}
            if kind != "round_robin":
                config["manager_agent_id"] = await self._agent(f"{kind}-manager")
            body = {"agent_ids": members, "description": "They talk.", "manager_config": config}
            group = (await self.call("POST", "/v1/groups/", json=body))["id"]
            self.groups[group] = kind, members

    async def _agent(self, name: str) -> str:
        return str((await self.new_agent(name, include_base_tools=False))["id"])

    async def talk(self, group: str) -> None:
        """Send the messages one by one, each until it is answered."""
        while not self.is_over:
            self.said[group] += 1
            token = f"say-{self.groups[group][0]}-{self.said[group]:05d}"
            if answer := await self.settle(f"/v1/groups/{group}/messages", token):
                self.answers[group, token] = answer

    async def audit(self) -> None:
        """Compare the messages of each member and the messages it got with the sent messages."""
        for group, (kind, members) in self.groups.items():
            tokens = [token for of_group, token in self.answers if of_group == group]
            for member in members:
                said, heard = await self._of_member(group, member)
                for token in tokens:
                    most = 1 if kind != "dynamic" else MEMBERS
                    least = 0 if kind == "dynamic" else 1
                    if not least <= said[token] <= most:
                        self.faults.append(
                            f"{kind}: {member} spoke {said[token]} times about {token}"
                        )
                    if kind != "supervisor" and heard[token] != 1:
                        self.faults.append(f"{kind}: {member} heard {token} {heard[token]} times")
            for token in tokens:
                self._audit_answer(kind, token, self.answers[group, token])

    async def _of_member(self, group: str, member: str) -> tuple[Counter[str], Counter[str]]:
        """Return how often agent and user said each token."""
        said: Counter[str] = Counter()
        heard: Counter[str] = Counter()
        sql = (
            "SELECT role, CAST(parts AS TEXT), step_id FROM messages WHERE group_id = ? AND "
            "agent_id = ? AND conversation_id = ?"
        )
        home = f"conv-{member.removeprefix('agent-')}"
        for role, parts, step_id in self.tables.rows(sql, group, member, home):
            text = "".join(part.get("text", "") for part in orjson.loads(parts))
            if role == "assistant" and step_id:
                said.update(_TOKEN.findall(text))
            elif role == "user":
                heard.update(set(_TOKEN.findall(text)))
        return said, heard

    def _audit_answer(self, kind: str, token: str, answer: dict[str, Any]) -> None:
        names = [
            one["name"] for one in answer["messages"] if one["message_type"] == "assistant_message"
        ]
        expected: dict[str, list[str]] = {
            "round_robin": [f"round_robin-{number}" for number in range(MEMBERS)],
            "supervisor": ["supervisor-manager"],
        }
        if kind == "dynamic":
            speakers = [name for name in names if name != "dynamic-manager"]
            if len(speakers) != MEMBERS or any(one == other for one, other in pairwise(speakers)):
                self.faults.append(f"{token} was answered by {names}")
        elif names != expected[kind]:
            self.faults.append(f"{token} was answered by {names}")


def answer(seen: Seen) -> Answer:
    """A model that repeats the newest token that it read.

    Managers choose a speaker, and supervisors ask.
    """
    messages = seen.body["messages"]
    system, last = str(messages[0]["content"]), messages[-1]
    texts = [str(message.get("content") or "") for message in messages]
    token = next(
        (found[-1] for text in reversed(texts) if (found := _TOKEN.findall(text))), "nothing"
    )
    if _SPEAKER.search(system):
        return completion(f"About {token}.")
    if "You moderate" in system:
        names = re.findall(r"dynamic-\d", str(last["content"]).split("?")[0])
        return completion(names[len(messages) % len(names)])
    if "You lead a group" in system and last["role"] != "tool":
        return completion(
            None, [tool_call(_ASK, {"message": f"What of {token}?"}, f"call_{len(messages)}")]
        )
    return completion(f"About {token}.")


@pytest.mark.parametrize(
    ("kills", "database"),
    [
        pytest.param(1, "sqlite", id="short"),
        pytest.param(KILLS, "sqlite", id="long-sqlite", marks=pytest.mark.soak),
        pytest.param(KILLS, "postgresql", id="long-postgresql", marks=pytest.mark.soak),
    ],
)
async def test_nobody_speaks_twice_however_often_servers_are_killed(
    tmp_path: Path, kills: int, database: str
) -> None:
    async with begun(Talkers, answer, tmp_path, database) as campaign:
        await campaign.make_groups()
        talking = [asyncio.create_task(campaign.talk(group)) for group in campaign.groups]
        await campaign.kill(kills)
        await asyncio.gather(*talking)
        await campaign.come_to_rest()
        await campaign.audit()
    assert len(campaign.answers) >= len(KINDS)
