"""Models as local servers serve them, with faults.

The servers have strict templates, unclear errors, refused fields, clipped counts, calls written as
text, and failures. Each case is a model with faults of one to three families and an agent that
talks with it. After a passing failure is over, the next message must be answered. No answer may be
the text of a call.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ricordo.agents.request import (
    NewMessage,
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.turn import collect, run_turn
from ricordo.domain.event import TextDelta
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelInfo, ModelSettings
from ricordo.domain.scope import Scope
from ricordo.llm.addresses import Connections
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.policy import CallPolicy
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.tools.toolbox import ServerTool, ToolContext
from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.seams.stage import Hooks, Stage, all_events
from tests.support.campaign_record import continued
from tests.support.local_model_server import FAMILIES, LocalModels, Serving, random_model
from tests.support.model_server import ModelServer

WINDOW = 16_000
# The share of turns that are streamed.
_STREAMED = 0.5
# Answers of these models must never hold a call in any notation, or its markers.
_MARKUP = re.compile(r"<[|｜/]?\w|\{\"|\[\{|```|jot\(|\"arguments\"|\[TOOL_CALLS\]")


@dataclass
class Report:
    """The results of a campaign: faults by family, turns by outcome, and errors found."""

    faults: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def jot(_context: ToolContext, text: str) -> str:
    """Write something down.

    Args:
        text: What to write down.
    """
    return f"Noted: {text}"


class Campaign:
    """Talks with one faulty model after another, each with a separate agent."""

    def __init__(
        self, stage: Stage, models: LocalModels, url: str, connections: Connections, seed: int
    ) -> None:
        self.report = Report()
        self._stage = stage
        self._models = models
        self._url = url
        self._connections = connections
        self._seed = seed
        self._luck = random.Random(seed)  # noqa: S311

    async def try_fault(self, number: int) -> None:
        """Build a model with faults, and talk with it."""
        family = list(FAMILIES)[number % len(FAMILIES)]
        name = f"m{number}"
        serving = self._models.add(name, random_model(self._luck, family))
        self.report.faults.update(serving.model.faults)
        info = ModelInfo(f"local/{name}", "local", name, "openai", WINDOW, self._url)
        self._stage.runtime.models.add(OpenAICompatibleModel(info, self._connections, _patient()))
        agent = await self._stage.agent(
            model=info.handle,
            context_window=WINDOW,
            tool_names=("jot",),
            has_base_tools=False,
            model_settings=ModelSettings(
                temperature=0.5,
                max_output_tokens=self._luck.choice((None, 900, WINDOW)),
                parallel_tool_calls=False,
            ),
        )
        for texts in self._messages(serving):
            await self._say(agent, serving, name, texts)
        while serving.passed < len(serving.model.passing):
            await self._say(agent, serving, name, ("Is it over?",))
        await self._say(agent, serving, name, ("Are you there?",), is_last=True)
        self.report.outcomes.update(serving.outcomes)
        del self._models.serving[name]

    def _messages(self, serving: Serving) -> list[tuple[str, ...]]:
        orders = [f'Please do jot {{"text": "line {number}"}} now' for number in range(2)]
        said: list[tuple[str, ...]] = [("Hello.", "One more thing."), (orders[0],), (orders[1],)]
        self._luck.shuffle(said)
        if serving.model.window:
            said += [(f"Part {number}: " + "word " * 2_400,) for number in range(4)]
        return said

    async def _say(
        self,
        agent: str,
        serving: Serving,
        name: str,
        texts: tuple[str, ...],
        *,
        is_last: bool = False,
    ) -> None:
        failures, before = serving.outcomes["passing"], len(serving.bodies)
        new = tuple(NewMessage("user", (TextPart(text),)) for text in texts)
        request = TurnRequest(
            Scope(),
            agent,
            new,
            overrides=TurnOverrides(streams_tokens=self._luck.random() < _STREAMED),
        )
        turn = await run_turn(self._stage.runtime, request)
        events = await all_events(turn)
        answer = await collect(turn)
        note = f"seed {self._seed}, {name} {serving.model}: {texts[0][:40]!r}"
        if answer.failure is not None:
            # A temporary failure may end a turn, but never the last turn.
            has_passed = serving.outcomes["passing"] > failures and not is_last
            self.report.turns["failed in passing" if has_passed else "failed"] += 1
            if not has_passed:
                outcomes = dict(serving.outcomes)
                self.report.wrong.append(
                    f"{note} failed: {answer.failure.message[:300]} ({outcomes})"
                )
            return
        self.report.turns["answered"] += 1
        shown = [
            message.text
            for message in answer.messages
            if message.role == "assistant" and message.text
        ]
        # If a model twice returns nothing after a result, its turn ends.
        if not shown and serving.outcomes["passing"] == failures:
            self.report.wrong.append(f"{note} has no answer")
        streamed = "".join(event.text for event in events if isinstance(event, TextDelta))
        self.report.wrong += [
            f"{note} shows {text[:200]!r}" for text in (*shown, streamed) if _MARKUP.search(text)
        ]
        self.report.outcomes["requests"] += len(serving.bodies) - before


def _patient() -> CallPolicy:
    async def sleep(_seconds: float) -> None:
        return

    return CallPolicy(retries=3, timeout=20, sleep=sleep)


@pytest.mark.campaign
@pytest.mark.parametrize("usual", short_and_long(30, 10_000))
async def test_no_fault_of_a_model_server_makes_an_agent_unusable_or_shows_markup(
    store: SqliteStore,
    tmp_path: Path,
    usual: int,
    request: pytest.FixtureRequest,
    record_property: RecordProperty,
) -> None:
    """`--count N` and `--campaigns FILE` continue after the faults that FILE has counted."""
    first, faults = continued(request, "faults", usual)
    seed = 11 + first
    record_property("seed", seed)
    models = LocalModels()
    connections = Connections(timeout=20)
    stage = await Stage(store, tmp_path, Hooks((ServerTool(jot, "custom"),))).open()
    async with ModelServer(models.answer, keeps=False) as server:
        campaign = Campaign(stage, models, server.url, connections, seed)
        for number in range(first, first + faults):
            await campaign.try_fault(number)
        await stage.close()
        await connections.close()
    report = campaign.report
    print(report.faults, report.turns, report.outcomes)
    record_property("faults", faults)
    assert not report.wrong, f"{len(report.wrong)} wrong:\n" + "\n".join(report.wrong[:12])
    assert report.turns["answered"] > 3 * faults
    assert set(report.faults) == set(FAMILIES)
