"""The window campaign: turns of random sizes with models of 4,000 to 200,000 tokens.

The providers count tokens differently from our estimate. No turn ends because a request exceeded a
window. No pair of call and result is split. Each message is in the window or in exactly one
summary, and recall finds all messages. `await run_campaign(folder, turns=10_000)` returns what was
done, or raises AssertionError with the seed and the errors. Each model counts tokens in its way,
refuses requests that are too long, and checks the other requests.
"""

import base64
import logging
import math
import random
import string
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from ricordo.agents.lifecycle import AgentSpec, create_agent
from ricordo.agents.request import (
    NewMessage,
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.turn import collect, run_turn
from ricordo.app import open_runtime
from ricordo.domain.message import (
    CompactionPart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.openai_format import to_messages
from ricordo.runtime import Runtime
from ricordo.search.index import MessageFilter
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, Toolbox, ToolContext, sync_tools
from tests.campaigns.sizes import short_and_long
from tests.seams.stage import split_pairs
from tests.support.faults_cast import whole_history
from tests.support.faults_wire import faults_of

TURNS_OF_AN_AGENT = 40
SMALLEST, LARGEST = 4_000, 200_000
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(24)).decode()
_LETTERS = string.ascii_lowercase
_AS_LETTERS = str.maketrans("0123456789", "bcfhjklmnp")
_MODES = ("all", "sliding_window", "self_compact_all", "self_compact_sliding_window")


@dataclass
class Counted:
    """Counts of requests.

    `refused` were too long; `open` were refused and are not answered yet.
    """

    requests: int = 0
    refused: int = 0
    refused_summaries: int = 0
    open: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class CountingModel:
    """A model with a window of `window` tokens, where our estimate is off by the factor `rate`.

    Its answers are drawn at random.
    """

    def __init__(
        self, name: str, window: int, rate: float, counted: Counted, luck: random.Random
    ) -> None:
        self.rate = rate
        self.counted = counted
        self.luck = luck
        self.words = 0
        self.info = ModelInfo(f"counting/{name}", "counting", name, "openai", window)
        self._calls = 0

    async def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        """Refuse a request that is too long; otherwise call tools or answer."""
        counted, window = self.counted, self.info.context_window
        size = self.size_of(request)
        is_for_summary = not request.tools or request.tool_choice == "none"
        if size > window:
            if is_for_summary:
                counted.refused_summaries += 1
            else:
                counted.refused += 1
                counted.open[self.info.handle] += 1
            raise ModelError(
                "context_window_exceeded",
                f"This model's maximum context length is {window} tokens.",
            )
        counted.requests += 1
        counted.faults += faults_of({"messages": to_messages(request.messages)})
        if is_for_summary:
            yield self._reply((TextPart(self.text(self.luck.randint(20, 400))),), size)
            return
        counted.open[self.info.handle] = 0
        yield self._reply(self._parts(request), size)

    def size_of(self, request: ModelRequest) -> int:
        """Return the tokens of a request as this model's provider counts them."""
        tools = sum(
            len(orjson.dumps([tool.name, tool.description, tool.parameters]))
            for tool in request.tools
        )
        return int(
            self.rate
            * (
                tools / 4
                + sum(3 + sum(map(_size_of_part, message.parts)) for message in request.messages)
            )
        )

    def text(self, tokens: int) -> str:
        """Return text of about that many tokens, with a unique word at its beginning."""
        self.words += 1
        # The word has only letters, and no ending that a stemmer removes. So search takes it as one
        # word.
        unique = f"q{self.info.name[1:].partition('s')[0]}{self.words:06d}".translate(_AS_LETTERS)
        return f"{unique} " + " ".join(self.luck.choices(_WORDS, k=max(0, tokens * 4 // 7 - 2)))

    def _parts(self, request: ModelRequest) -> tuple[Part, ...]:
        tokens = random_size(self.luck, self.info.context_window)
        since = list(
            takewhile(
                lambda one: one.role != "user" or one.text.startswith("{"),
                reversed(request.messages),
            )
        )
        must_speak = sum(bool(message.tool_calls) for message in since) > 4
        names = [tool.name for tool in request.tools]
        if self.luck.random() < 0.4 and "tell" in names and not must_speak:
            thought = (
                ReasoningPart(self.text(tokens // 3), signature="proof", provider="counting"),
            )
            calls = [self._call(names) for _ in range(self.luck.choice((1, 1, 2, 4)))]
            return (*(thought if self.luck.random() < 0.2 else ()), *calls)
        if "send_message" in names:
            return (self._named("send_message", {"message": self.text(tokens)}),)
        return (TextPart(self.text(tokens)),)

    def _call(self, names: list[str]) -> ToolCallPart:
        given = {
            "tokens": random_size(self.luck, self.info.context_window * 2),
            "mark": self.text(self.luck.choice((2, 2, 300))),
        }
        return self._named(
            "tell", given | ({"request_heartbeat": True} if "send_message" in names else {})
        )

    def _named(self, name: str, given: dict[str, object]) -> ToolCallPart:
        self._calls += 1
        return ToolCallPart(f"call_{self._calls}", name, orjson.dumps(given).decode())

    def _reply(self, parts: tuple[Part, ...], size: int) -> ModelReply:
        has_calls = any(isinstance(part, ToolCallPart) for part in parts)
        # Some providers report no input tokens.
        usage = Usage(size, 50) if self.luck.random() < 0.9 else Usage(0, 50)
        return ModelReply(parts, usage, "tool_calls" if has_calls else "stop", self.info.name)


_WORDS = ["".join(random.Random(number).choices(_LETTERS, k=6)) for number in range(500)]  # noqa: S311


def random_size(luck: random.Random, window: int, most: float = 1.5) -> int:
    """Return a size that is mostly small compared with the window, and sometimes larger."""
    return min(int(window * luck.lognormvariate(-4.2, 1.5)) + 2, int(window * most))


def _size_of_part(part: Part) -> float:
    match part:
        case TextPart() | ReasoningPart():
            return len(part.text) / 4
        case ToolCallPart():
            return (len(part.name) + len(part.arguments)) / 4 + 5
        case ToolReturnPart():
            return len(part.content) / 4 + 5
        case ImagePart():
            return 900
    return 0


@dataclass
class _Campaign:
    runtime: Runtime
    seed: int
    luck: random.Random
    counted: Counted = field(default_factory=Counted)
    wrong: list[str] = field(default_factory=list)
    models: int = 0
    turns: int = 0
    agents: int = 0
    summaries: list[CompactionPart] = field(default_factory=list)
    found: int = 0

    async def live(self, turns: int) -> None:
        """Simulate one agent, sometimes with another model, and check the stored data."""
        self.agents += 1
        model = self._model()
        agent_id = await self._agent(model)
        note = f"agent {self.agents} ({model.info.context_window} tokens, rate {model.rate:.2f})"
        for _ in range(turns):
            if self.luck.random() < 0.04:
                model = await self._other_model(agent_id)
                note = f"{note} -> ({model.info.context_window} tokens, rate {model.rate:.2f})"
            await self._turn(agent_id, model, note)
            if len(self.wrong) > 12:
                return
        rows = await self._look(agent_id, note)
        await self._recall(agent_id, rows, note)

    async def _turn(self, agent_id: str, model: CountingModel, note: str) -> None:
        self.turns += 1
        parts = self._said(model)
        request = TurnRequest(
            Scope(), agent_id, (NewMessage("user", parts),), overrides=TurnOverrides(max_steps=20)
        )
        answer = await collect(await run_turn(self.runtime, request))
        if answer.failure is not None:
            self.wrong.append(
                f"{note}: turn {self.turns}: {answer.failure.kind}: {answer.failure.message}"
            )
        self.wrong += [f"{note}: turn {self.turns}: {fault}" for fault in self.counted.faults]
        self.counted.faults.clear()
        if self.counted.open[model.info.handle]:
            self.wrong.append(f"{note}: turn {self.turns} ended with a request that was too long")
            self.counted.open.clear()

    def _said(self, model: CountingModel) -> tuple[Part, ...]:
        tokens = random_size(self.luck, model.info.context_window, 2)
        said: tuple[Part, ...] = (TextPart(model.text(tokens)),)
        if self.luck.random() < 0.05:
            pictures = [ImagePart("image/png", PICTURE) for _ in range(self.luck.choice((1, 1, 3)))]
            said = (*said, *pictures)
        return said

    def _model(self) -> CountingModel:
        self.models += 1
        window = int(math.exp(self.luck.uniform(math.log(SMALLEST), math.log(LARGEST))))
        name = f"m{self.models}s{self.seed}"
        model = CountingModel(name, window, 2 ** self.luck.uniform(-1, 1), self.counted, self.luck)
        self.runtime.models.add(model)
        return model

    async def _agent(self, model: CountingModel) -> str:
        kind = self.luck.choice(("letta_v1_agent", "memgpt_v2_agent"))
        share = self.luck.choice((0.1, 0.3, 0.3, 0.7))
        settings = {"mode": self.luck.choice(_MODES), "sliding_window_percentage": share}
        spec = AgentSpec(
            agent_type=kind,  # type: ignore[arg-type]
            model=model.info.handle,
            system="You remember.",
            has_base_tools=False,
            tool_names=("tell", *(("send_message",) if kind == "memgpt_v2_agent" else ())),
            settings={"compaction": settings},
        )
        return (await create_agent(self.runtime, Scope(), spec)).agent.id

    async def _other_model(self, agent_id: str) -> CountingModel:
        """Give the agent another model, with another window and another way of counting."""
        model = self._model()

        def work(tx: Transaction) -> None:
            agents.lock(tx, Scope(), agent_id)
            agent = agents.load(tx, Scope(), agent_id).agent
            agents.update(
                tx,
                replace(agent, model=model.info.handle, context_window=model.info.context_window),
            )

        await self.runtime.store.write(work)
        return model

    async def _look(self, agent_id: str, note: str) -> list[Message]:
        def read(tx: Transaction) -> tuple[list[Message], tuple[str, ...], int]:
            thread = agents.load(tx, Scope(), agent_id).conversation
            return whole_history(tx, agent_id), thread.window, thread.message_count

        rows, window, count = await self.runtime.store.read(read)
        if count != len(rows):
            self.wrong.append(f"{note}: {count} messages are counted and {len(rows)} are kept")
        self.wrong += [f"{note}: {fault}" for fault in _misplaced(rows, window)]
        self.summaries += [
            part for row in rows for part in row.parts if isinstance(part, CompactionPart)
        ]
        return rows

    async def _recall(self, agent_id: str, rows: list[Message], note: str) -> None:
        """Check that every text of the history is found by its unique word."""
        for row in rows:
            if row.role not in ("user", "assistant") or not row.text or row.text.startswith("{"):
                continue
            hits = await self.runtime.recall_for(Scope()).messages(
                row.text.split(" ", 1)[0], MessageFilter((agent_id,)), 3, "fts"
            )
            if row.id not in [hit.message.id for hit in hits]:
                instead = [(hit.message.role, hit.message.text[:60]) for hit in hits]
                self.wrong.append(
                    f"{note}: {row.role} {row.text[:40]!r} is not found, and instead {instead}"
                )
            self.found += 1


def _misplaced(rows: list[Message], window: tuple[str, ...]) -> list[str]:
    """Return messages that are misplaced.

    Each must be in the window or in exactly one summary, and the window keeps the order.
    """
    gone = Counter(
        id
        for row in rows
        for part in row.parts
        if isinstance(part, CompactionPart)
        for id in part.evicted
    )
    wrong = [f"{id} left the window {times} times" for id, times in gone.items() if times > 1]
    known = {row.id: row for row in rows}
    wrong += [f"a summary names {id}, which is not there" for id in gone if id not in known]
    wrong += [
        f"{row.role} {row.id} is neither in the window nor in a summary"
        for row in rows
        if (row.id in gone) == (row.id in window)
    ]
    held = [known[id] for id in window if id in known]
    if len(held) != len(window) or not held or held[0].role != "system":
        wrong.append("the window names what is gone, or does not begin with the system message")
    said = [row.seq for row in held if row.role not in ("system", "summary")]
    if said != sorted(said):
        wrong.append("the window has another order than the history")
    if [row.role for row in held[2:] if row.role == "summary"]:
        wrong.append("a summary stands in the middle of the window")
    return wrong + split_pairs(held)


def tell(_context: ToolContext, tokens: int, mark: str) -> str:
    """Tell very much.

    Args:
        tokens: How much.
        mark: How it begins.
    """
    return f"{mark[:20]} {'and so on and on ' * (tokens // 4)}"


async def run_campaign(folder: Path, *, turns: int, seed: int | None = None) -> SimpleNamespace:
    """Let agents of random kinds take this many turns in all."""
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311
    began = time.monotonic()
    logging.disable()
    try:
        settings = Settings(data_dir=folder, find_local_models=False)
        async with open_runtime(settings, ProviderSettings()) as runtime:
            runtime.toolbox = Toolbox([*runtime.toolbox, ServerTool(tell, "custom")])
            await runtime.store.write(lambda tx: sync_tools(tx, Scope(), runtime.toolbox))
            campaign = _Campaign(runtime, seed, random.Random(seed))  # noqa: S311
            while campaign.turns < turns and len(campaign.wrong) <= 12:
                await campaign.live(min(TURNS_OF_AN_AGENT, turns - campaign.turns))
    finally:
        logging.disable(logging.NOTSET)
    assert not campaign.wrong, f"seed {seed}: {len(campaign.wrong)} wrong:\n" + "\n".join(
        campaign.wrong[:12]
    )
    counted = campaign.counted
    return SimpleNamespace(
        seed=seed,
        turns=turns,
        agents=campaign.agents,
        requests=counted.requests,
        # Requests that exceeded a window, were refused by the provider, and were answered in the
        # same turn.
        refused=counted.refused,
        refused_summaries=counted.refused_summaries,
        compactions=len(campaign.summaries),
        evicted=sum(len(part.evicted) for part in campaign.summaries),
        found=campaign.found,
        seconds=round(time.monotonic() - began, 1),
    )


@pytest.mark.campaign
@pytest.mark.parametrize("turns", short_and_long(25, 2_000))
async def test_no_window_is_too_small_for_any_turn_and_recall_finds_what_left_it(
    tmp_path: Path, turns: int
) -> None:
    report = await run_campaign(tmp_path, turns=turns, seed=5)
    print(report)
    # The campaign checks its results. The test only checks that the campaign did something.
    assert report.turns == turns
    assert report.compactions > turns // 6
    assert report.evicted > report.compactions
    assert report.found > turns
