"""Servers are killed while sleeping agents work.

Every message is in exactly one transcript, of its user, and no run stays open.
"""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.sizes import KILLS
from tests.support.kill_campaign import OPEN_RUNS, KillCampaign, begun
from tests.support.model_server import Answer, Seen, completion, tool_call
from tests.support.server_process import CAN_FORK

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not CAN_FORK, reason="the campaign's helper forks"),
]
USERS = ("", "ada", "ben")
FREQUENCY = 3
VOICE_BUFFER = {"max_message_buffer_length": 8, "min_message_buffer_length": 5}
LAST_TURNS = 6  # This number of messages moves all earlier messages out of a voice agent's window.
_SAID = re.compile(r"user: (say-(\w*)-\d{5})")
_WORK = "SELECT id FROM jobs WHERE status IN ('waiting', 'running') AND key LIKE 'sleeptime:%'"


@dataclass
class Sleepers(KillCampaign):
    """The agents with their users, the sent messages, and the transcripts with these messages."""

    pause = (0.05, 0.5)
    rest = (_WORK, OPEN_RUNS)

    agents: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    is_voice: bool = False

    async def make_agents(self, count: int) -> None:
        for number in range(count):
            agent = await self.new_agent(
                f"tutor-{number}",
                memory_blocks=[{"label": "human", "value": "Begin."}],
                enable_sleeptime=True,
                **({"agent_type": "voice_convo_agent"} if self.is_voice else {}),
            )
            group = agent["multi_agent_group"]["id"]
            config = {"manager_type": "sleeptime", "sleeptime_agent_frequency": FREQUENCY}
            if self.is_voice:
                config = {"manager_type": "voice_sleeptime", **VOICE_BUFFER}
            await self.call("PATCH", f"/v1/groups/{group}", json={"manager_config": config})
            self.agents.append(agent["id"])

    async def talk(self, agent: str, user: str) -> None:
        """Send the messages one by one, each until it is answered."""
        while not self.is_over:
            token = f"say-{user}-{len(self.said):05d}"
            self.said.append(token)
            await self.say(agent, user, token)

    async def say(self, agent: str, user: str, token: str) -> None:
        headers = {"x-ricordo-user": user} if user else {}
        await self.settle(f"/v1/agents/{agent}/messages", token, headers=headers)

    def free_jobs(self, pid: int) -> None:
        sql = "UPDATE jobs SET heartbeat_at = 0 WHERE status = 'running' AND worker LIKE ?"
        self.tables.rows(sql, f"%-{pid}-%")

    def hasten(self) -> None:
        self.tables.rows(
            "UPDATE jobs SET not_before = 0 WHERE status = 'waiting' AND key LIKE 'sleeptime:%'"
        )

    def audit(self) -> Counter[str]:
        """Return how often each message of a user is in a stored transcript."""
        counts: Counter[str] = Counter()
        for user, text in self.tables.rows(
            "SELECT user_id, CAST(parts AS TEXT) FROM messages WHERE role = 'user' AND group_id "
            "IS NOT NULL"
        ):
            # Messages in a voice agent's window are read later, when they have left the window.
            found = _SAID.findall(text.partition("(Newer) In-Context Messages:")[0])
            counts.update(token for token, _ in found)
            whose = {name for _, name in found}
            if len(whose) > 1 or (whose and bool(user) != bool(whose.pop())):
                self.faults.append(f"a transcript of {user} holds words of {whose}")
        self.faults += [
            f"{token} is in {counts[token]} transcripts" for token in self.said if counts[token] > 1
        ]
        return counts


def answer(seen: Seen) -> Answer:
    """A model that needs two steps for transcripts, and answers users at once."""
    messages = seen.body["messages"]
    told = [str(message.get("content") or "") for message in messages]
    if any("(Older) Evicted Messages:" in text for text in told):
        return keeper_answer(seen, len(messages))
    if not any("<system-reminder>" in text for text in told):
        return completion("Noted.")
    if messages[-1]["role"] == "tool":
        return completion(None, [tool_call("memory_finish_edits", {}, f"call_{len(messages)}")])
    edit = {"label": "human", "new_memory": f"Known: {len(messages)}."}
    return completion(None, [tool_call("memory_rethink", edit, f"call_{len(messages)}")])


def keeper_answer(seen: Seen, length: int) -> Answer:
    """Return the memory agent's next call: the one tool that its rules offer, and then the end."""
    names = [tool["function"]["name"] for tool in seen.body["tools"]]
    arguments: dict[str, Any] = {}
    if names == ["store_memories"]:
        arguments = {"chunks": [{"start_index": 0, "end_index": 0, "context": "Said."}]}
    elif names == ["rethink_user_memory"]:
        arguments = {"new_memory": f"Known: {length}."}
    return completion(None, [tool_call(names[-1], arguments, f"call_{length}")])


@pytest.mark.parametrize("is_voice", [False, True])
@pytest.mark.parametrize(
    ("kills", "database"),
    [
        pytest.param(1, "sqlite", id="short"),
        pytest.param(KILLS, "sqlite", id="long-sqlite", marks=pytest.mark.soak),
        pytest.param(KILLS, "postgresql", id="long-postgresql", marks=pytest.mark.soak),
    ],
)
async def test_every_message_is_in_one_transcript_however_often_servers_are_killed(
    tmp_path: Path, kills: int, database: str, is_voice: bool
) -> None:
    async with begun(Sleepers, answer, tmp_path, database, is_voice=is_voice) as campaign:
        await campaign.make_agents(2)
        talking = [
            asyncio.create_task(campaign.talk(agent, user))
            for agent in campaign.agents
            for user in USERS
        ]
        await campaign.kill(kills)
        await asyncio.gather(*talking)
        # Everybody takes a few more turns, so that the last messages are due too.
        for agent in campaign.agents:
            for user in USERS:
                for number in range(LAST_TURNS):
                    await campaign.say(agent, user, f"last-{user}-{number}-{agent[-4:]}")
        await campaign.come_to_rest()
        counts = campaign.audit()
        campaign.faults += [
            f"{token} is in no transcript" for token in campaign.said if not counts[token]
        ]
        if is_voice:
            ((made,),) = campaign.tables.rows("SELECT COUNT(*) FROM sleep_transcripts")
            ((kept,),) = campaign.tables.rows("SELECT COUNT(*) FROM passages")
            campaign.faults += (
                [] if made == kept else [f"of {made} transcripts {kept} pieces were kept"]
            )
    assert len(campaign.said) > kills
