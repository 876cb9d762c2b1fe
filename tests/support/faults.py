"""The fault campaign: faults at random awaits of turns, again and again.

After each fault the next message is answered, nothing acknowledged is lost, and every request that
a provider got is valid. `await run_campaign(folder, faults=500)` returns what was done, or raises
AssertionError with the seed and the errors. The seed chooses the faults; threads also have some
influence on what is interrupted. On PostgreSQL connections are cut too, and another server takes a
run over while its turn continues.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ricordo.agents.lifecycle import cancel_runs
from ricordo.agents.request import (
    Approval,
    NewMessage,
    TurnRequest,
)
from ricordo.agents.run_end import close_expired
from ricordo.agents.turn import run_turn
from ricordo.domain.event import Compacted, Failed, StepSaved
from ricordo.domain.message import ApprovalPart, Message, Part, TextPart, ToolReturnPart
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, RicordoError, Unavailable
from ricordo.runtime import LiveTurn
from ricordo.storage import runs
from tests.seams.stage import turn_request
from tests.support.faults_cast import (
    GATE,
    THEIRS,
    TOOLS,
    Subject,
    audit,
    flood,
    make_subject,
    waiting_of,
)
from tests.support.faults_model import FAILING, MALFORMED, FaultyModel
from tests.support.faults_world import World, opened
from tests.support.model_server import ModelServer

LIMIT = 60.0  # seconds until anything ends, on a machine with other work
LEASE, EXPIRY = 31, 86_401
_FAULTS_OF_A_SUBJECT = 20
_TRIES = 4
_MOST_WRONG = 12
_PLANS = (
    *(
        "",
        "insert",
        "search",
        "archive/lookup",
        "ring",
        "insert+ring/archive",
        "boom",
        "big/big",
        "search+lookup/insert",
    ),
    *(
        "guarded",
        "guarded+guarded",
        "insert+guarded/ring",
        "theirs",
        "theirs+guarded/search",
        "nap+nap/insert",
    ),
)
_WAITING_PLANS = tuple(plan for plan in _PLANS if "guarded" in plan or "theirs" in plan)
_KINDS = {"kill": 40, "cancel": 8, "disk": 8, "leave": 3, "failing": 14, "malformed": 12}
_KINDS |= {"hang": 5, "unanswered": 5, "summary": 8, "flood": 2}
# Further faults if several servers share a database over a network.
_SHARED_KINDS = {"cut": 15, "overtaken": 10}


@dataclass
class _Campaign:
    world: World
    model: FaultyModel
    seed: int
    luck: random.Random
    chances: Mapping[str, int]
    wrong: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    subjects: list[Subject] = field(default_factory=list)
    turns: int = 0
    said: int = 0
    usual: dict[str, int] = field(default_factory=dict)

    async def fault(self) -> None:
        """Cause one fault, recover from it, and check the stored data."""
        subject = await self._subject()
        kind = self.luck.choices(list(self.chances), list(self.chances.values()))[0]
        await self._survive(subject, kind, self._play(subject, kind))

    async def sweep(self, plan: str, step: int) -> None:
        """Kill the process at each `step`-th suspension of a turn, from the first to the last.

        Each is tried twice: the open transaction is committed, or is not.
        """
        for commits in (False, True):
            at = 1
            while len(self.wrong) < _MOST_WRONG:
                subject = await self._subject()
                self.world.store.commits = commits
                struck = self.kinds["kill"]
                await self._survive(subject, "kill", self._kill(subject, plan, at))
                if self.kinds["kill"] == struck:
                    break  # the turn ended before
                at += step

    async def _kill(self, subject: Subject, plan: str, at: int) -> tuple[str, int]:
        self.world.life.arm(at, self.world.life.freeze)
        await self._talk(subject, self._message(subject, plan))
        struck = self.world.life.happens is None
        if self.world.life.is_frozen:
            await self.world.restart()
        else:
            self.world.life.disarm()
        return f"{subject.name}: kill in {plan!r} at {at}", int(struck)

    async def _survive(
        self, subject: Subject, kind: str, play: Coroutine[Any, Any, tuple[str, int]]
    ) -> None:
        """Let the fault happen, and check that the next message is answered and nothing is lost."""
        note = f"{subject.name}: {kind}"
        try:
            async with asyncio.timeout(LIMIT * 3):
                note, happened = await play
            self.model.trouble.clear()
            self.model.summary_trouble = None
            GATE.open()
            await self._settle(subject)
            await self._let_out(subject)
            await self._require_an_answer(subject)
            self.wrong += [
                f"{note}: {one}"
                for one in await audit(self.world.runtime, subject.id, subject.told)
            ]
        except Exception as error:
            self.wrong.append(f"{note}: {type(error).__name__}: {error}")
            self.subjects.remove(subject)
            if self.world.life.is_frozen:
                await self.world.restart()  # so that the other agents can continue
            return
        self.wrong += [f"{note}: {one}" for one in self.model.faults]
        self.model.faults.clear()
        self.kinds[kind] += happened

    async def _subject(self) -> Subject:
        """Return an agent of a random kind.

        Each agent is used for long, so that one fault can follow the effects of an earlier one.
        """
        known = [subject for subject in self.subjects if subject.faults < _FAULTS_OF_A_SUBJECT]
        self.subjects = known
        if len(known) < 12:
            known.append(await make_subject(self.world.runtime, self.luck))
            chosen = known[-1]
        else:
            chosen = self.luck.choice(known)
        chosen.faults += 1
        return chosen

    async def _play(self, subject: Subject, kind: str) -> tuple[str, int]:
        """Let a turn fail once; return the kind of fault, and whether it happened."""
        plan = self.luck.choice(_WAITING_PLANS if kind == "unanswered" else _PLANS)
        if kind == "hang":
            plan = "hang"
        if kind in ("summary", "flood"):
            await flood(self.world.runtime, subject, 10 if kind == "flood" else 1.2)
        request = self._message(subject, plan)
        if plan in _WAITING_PLANS and kind != "unanswered" and self.luck.random() < 0.6:
            await self._talk(subject, request)
            request = await self._answer(subject) or self._message(subject, plan)
        self._trouble(kind)
        played = self.model.played.total()
        note = f"{subject.name}: {kind} in {plan!r} {self.model.trouble or self.model.summary_trouble or ''}"
        self.world.store.commits = self.luck.random() < 0.5
        match kind:
            case "kill" | "cancel" | "disk" | "cut" | "overtaken":
                at, struck = await self._strike(subject, kind, plan, request)
                return f"{note} at {at}", int(struck)
            case "hang":
                await self._hang(subject, request)
            case "leave":
                await self._talk(subject, request, leaves_after=self.luck.randrange(3))
            case _:
                await self._talk(subject, request)
        happened = kind in ("hang", "leave", "unanswered") or self.model.played.total() > played
        return note, int(happened)

    def _trouble(self, kind: str) -> None:
        if kind in ("failing", "malformed"):
            trouble = self.luck.choice(FAILING if kind == "failing" else MALFORMED)
            before = [None] * self.luck.choice((0, 0, 1, 2))
            self.model.trouble = [*before, *[trouble] * self.luck.choice((1, 1, 2, 12))]
        elif kind in ("summary", "flood"):
            self.model.summary_trouble = self.luck.choice(
                ("500", "empty", "too_long", "401", "garbage", "time_out")
            )

    async def _strike(
        self, subject: Subject, kind: str, plan: str, request: TurnRequest
    ) -> tuple[int, bool]:
        """Kill, cancel, fail or disconnect the turn at one suspension, or take it over.

        Returns the number of the suspension, and whether the turn reached it.
        """
        usual = self.usual.get(plan, 30)
        at = self.luck.randint(1, max(2, usual))
        life, store = self.world.life, self.world.store
        strikes = {
            "kill": life.freeze,
            "disk": lambda: setattr(store, "fails", self.luck.choice((1, 1, 2, 4))),
            "cut": self.world.cut,
            "overtaken": self._overtake,
            "cancel": self._cancel_soon,
        }
        life.arm(at, strikes[kind])
        await self._talk(subject, request)
        struck = life.happens is None
        self.usual[plan] = usual + 5 if struck else max(10, (usual + life.count) // 2)
        if not life.is_frozen:
            life.disarm()
            self.world.store.fails = 0
            await self.world.others()
        else:
            await self.world.restart()
        return at, struck

    def _cancel_soon(self) -> None:
        for turn in list(self.world.runtime.live.values()):
            asyncio.get_running_loop().create_task(turn.cancel())  # the world keeps a reference

    def _overtake(self) -> None:
        self.world.clock.advance(LEASE)
        self.world.overtake()

    async def _hang(self, subject: Subject, request: TurnRequest) -> None:
        """A tool never returns: its turn is cancelled, or the server is killed."""
        GATE.shut()
        talking = asyncio.create_task(self._follow(subject, request, None))
        hanging = asyncio.create_task(GATE._reached.wait())
        await asyncio.wait([talking, hanging], timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        hanging.cancel()
        if self.luck.random() < 0.5:
            await cancel_runs(self.world.runtime, Scope(), subject.id)
            await asyncio.wait([talking], timeout=LIMIT)
        else:
            self.world.life.freeze()
            await self.world.restart()

    async def _talk(
        self, subject: Subject, request: TurnRequest, leaves_after: int | None = None
    ) -> None:
        """Send a message and read to the end, or until the process is killed."""
        talking, asked = (
            asyncio.create_task(self._follow(subject, request, leaves_after)),
            self.model.count,
        )
        loop = asyncio.get_running_loop()
        frozen = asyncio.Task(self.world.life.froze.wait(), loop=loop)
        done, _ = await asyncio.wait(
            [talking, frozen], timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED
        )
        frozen.cancel()
        if not done:
            raise TimeoutError(
                f"the turn does not end; it made {self.model.count - asked} requests"
            )
        if talking in done and not (
            self.world.life.is_frozen and isinstance(talking.exception(), Unavailable)
        ):
            talking.result()  # A reader of a dead process gets this error.

    async def _follow(
        self, subject: Subject, request: TurnRequest, leaves_after: int | None
    ) -> None:
        self.turns += 1
        try:
            turn: LiveTurn = await run_turn(self.world.runtime, request)
        except RicordoError as error:
            subject.told.refused = error
            return
        subject.told.acknowledge(request)
        seen, subject.told.failed = 0, None
        async for event in turn.events():
            if isinstance(event, Failed):
                subject.told.failed = event.kind
            if isinstance(event, StepSaved):
                subject.told.messages += event.messages
            elif isinstance(event, Compacted):
                subject.told.messages.append(event.summary)
            seen += 1
            if leaves_after is not None and seen > leaves_after:
                return

    async def _settle(self, subject: Subject) -> None:
        """Wait until nothing runs.

        If a run could not be closed, its lease has to expire first.
        """
        deadline = time.monotonic() + LIMIT
        while self.world.runtime.live:
            if time.monotonic() > deadline:
                raise TimeoutError("a turn does not end by itself")
            await asyncio.sleep(0.002)
        if await self._open_runs(subject):
            self.world.clock.advance(LEASE)
            if self.luck.random() < 0.5:
                await self.world.store.write(close_expired)

    async def _open_runs(self, subject: Subject) -> list[Run]:
        return await self.world.store.read(lambda tx: runs.open_runs(tx, agent_id=subject.id))

    async def _let_out(self, subject: Subject) -> None:
        """End calls that wait for approval, which block other messages, in one of three ways."""
        for _ in range(6):
            waiting = await waiting_of(self.world.runtime, subject.id)
            if waiting is None:
                return
            if self.luck.random() < 0.5:
                await self._require_conflict(subject)
            way = self.luck.choice(("expire", "cancel", "answer"))
            if way == "expire":
                self.world.clock.advance(EXPIRY)
                return
            if way == "cancel":
                await cancel_runs(self.world.runtime, Scope(), subject.id)
            elif request := await self._answer(subject):
                await self._talk(subject, request)
        raise AssertionError("some calls still wait after every way to end them")

    async def _require_conflict(self, subject: Subject) -> None:
        if await self._open_runs(subject):
            return  # The message would close that run, and so deny the calls.
        subject.told.refused = None
        await self._talk(subject, self._message(subject, ""))
        if not isinstance(subject.told.refused, Conflict):
            self.wrong.append(
                f"{subject.name}: a message went past calls that wait: {subject.told.refused}"
            )

    async def _require_an_answer(self, subject: Subject) -> None:
        """Check that the next message is answered.

        If the machine was too slow for the short time-out, another message must be answered.
        """
        for _ in range(_TRIES):
            subject.told.refused = None
            request = self._message(subject, "")
            token, before = subject.told.sent[-1], len(subject.told.messages)
            await self._talk(subject, request)
            await self._settle(subject)
            if subject.told.failed != "llm_timeout":
                break
        told = [_spoken(message) for message in subject.told.messages[before:]]
        if (
            subject.told.refused
            or subject.told.failed
            or not any(f"Done {token}." in said for said in told)
        ):
            why = subject.told.refused or subject.told.failed
            self.wrong.append(f"{subject.name}: {token} is answered by {told} ({why!r})")

    def _message(self, subject: Subject, plan: str) -> TurnRequest:
        self.said += 1
        token = f"say-w{self.said:05d}x{self.seed % 1000}-1"
        subject.told.sent.append(token)
        new = [NewMessage("user", (TextPart(f"{token} {plan}".strip()),), f"otid-{token}")]
        return self._request(subject, messages=tuple(new))

    async def _answer(self, subject: Subject) -> TurnRequest | None:
        """Return an answer to the calls that wait; None if none does."""
        waiting = await waiting_of(self.world.runtime, subject.id)
        if waiting is None:
            return None
        gated = [call for call in waiting.tool_calls if call.is_gated]
        if self.luck.random() < 0.2 and all(call.name != THEIRS.name for call in gated):
            decided = Approval(
                approves=self.luck.random() < 0.5, reason="Because.", request_id=waiting.id
            )
            return self._request(subject, approval=decided)
        parts: list[Part] = []
        for call in gated:
            if call.name == THEIRS.name and self.luck.random() < 0.9:
                parts.append(
                    ToolReturnPart(
                        call.call_id, call.name, self.luck.choice(("success", "error")), "Theirs."
                    )
                )
            else:
                parts.append(ApprovalPart(call.call_id, self.luck.random() < 0.6, "Because."))
        return self._request(subject, approval=Approval(tuple(parts)))

    def _request(self, subject: Subject, **sent: Any) -> TurnRequest:
        streams, is_background = self.luck.random() < 0.5, self.luck.random() < 0.3
        how = {
            "client_tools": (THEIRS,),
            "streams_tokens": streams,
            "is_background": is_background,
            "max_steps": 12,
        }
        return turn_request(Scope(), subject.id, *sent.pop("messages", ()), **how | sent)


def _spoken(message: Message) -> str:
    return message.text + "".join(
        call.arguments for call in message.tool_calls if call.name == "send_message"
    )


async def run_campaign(
    folder: Path,
    *,
    faults: int,
    seed: int | None = None,
    database: str = "sqlite",
    swept: Sequence[str] = (),
    step: int = 1,
) -> SimpleNamespace:
    """Cause this number of faults, one after the other, on SQLite or "postgresql".

    First the process is killed at each `step`-th suspension of a turn with each plan of `swept`.
    """
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311
    began = time.monotonic()
    model = FaultyModel(windows={"scripted-large": 120_000, "scripted-small": 16_000})
    logging.disable()
    try:
        async with (
            ModelServer(model.answer, keeps=False) as provider,
            opened(folder, provider.root, TOOLS, is_shared=database == "postgresql") as world,
        ):
            chances = _KINDS | (_SHARED_KINDS if database == "postgresql" else {})
            campaign = _Campaign(world, model, seed, random.Random(seed), chances)  # noqa: S311
            for plan in swept:
                await campaign.sweep(plan, step)
            while campaign.kinds.total() < faults and len(campaign.wrong) < _MOST_WRONG:
                await campaign.fault()
    finally:
        logging.disable(logging.NOTSET)
    assert not campaign.wrong, f"seed {seed}: {len(campaign.wrong)} wrong:\n" + "\n".join(
        campaign.wrong[:_MOST_WRONG]
    )
    return SimpleNamespace(
        seed=seed,
        kinds=dict(campaign.kinds),
        turns=campaign.turns,
        requests=model.count,
        # Requests that were refused because they were too long.
        refused=model.refused,
        summaries=model.summaries,
        restarts=world.restarts,
        seconds=round(time.monotonic() - began, 1),
    )
