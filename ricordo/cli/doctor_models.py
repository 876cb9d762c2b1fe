"""`ricordo doctor models`: tests whether models can run an agent.

Each model gets a few tasks as real turns, in a temporary database. Only the tested models are
called, and the data of the installation is not changed. A task is a few short calls.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import typer

from ricordo.agents.agent_types import PROFILE
from ricordo.agents.lifecycle import AgentSpec, BlockSpec, create_agent
from ricordo.agents.note_taker import note_run
from ricordo.agents.request import (
    NewMessage,
    TurnOverrides,
    TurnRequest,
)
from ricordo.agents.turn import collect, run_turn
from ricordo.app import open_models, open_runtime
from ricordo.domain.egress import Clearance
from ricordo.domain.message import Message, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import LIBRARIAN, ModelProfile, ModelReply, ModelRequest, TextChunk
from ricordo.domain.scope import Scope
from ricordo.errors import RicordoError, Unavailable
from ricordo.features import FEATURES
from ricordo.llm.adaptation import learned_of
from ricordo.llm.chat import ChatModel
from ricordo.llm.egress import ask
from ricordo.llm.registry.models import Models
from ricordo.plugins import load_plugins
from ricordo.runtime import Runtime
from ricordo.settings import ProviderSettings, Settings, load_settings
from ricordo.storage import agents

TASK_SECONDS = 180.0
MOST_STEPS = 5
# If no model is named, all models of a provider with at most this many are tried. Of a provider
# with more, only the default model is tried, since more calls would cost the user money and time.
MOST_OF_ONE = 6
CAN = "can run an agent"
_SEARCHES = ("conversation_search", "archival_memory_search", "search")


@dataclass(slots=True)
class ModelReport:
    """The results of one model.

    `fails` and `weak` hold the faults in required and in other tasks, as the table shows them.
    """

    handle: str
    answers: bool = False
    streams: bool = False
    calls: int = 0
    right: int = 0
    seconds: float = 0.0
    fails: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    error: str | None = None
    # The first profile with which the model passed every required task; None if there is none.
    profile: ModelProfile | None = None

    @property
    def can_run_an_agent(self) -> bool:
        return self.answers and not self.fails and self.error is None

    @property
    def result(self) -> str:
        if not self.can_run_an_agent:
            return f"no: {self.error or ', '.join(self.fails or ['does not answer'])}"
        return f"{CAN}, but {', '.join(self.weak)}" if self.weak else CAN

    def line(self, width: int) -> str:
        """Return the model's line of the table.

        Args:
            width: The characters of the first column.
        """
        answers, calls, streams = (
            "yes" if is_able else "no" for is_able in (self.answers, self.calls, self.streams)
        )
        right = f"{self.right}/{self.calls}"
        return (
            f"{self.handle:<{width}} {answers:<8} {calls:<6} {right:<10} {streams:<8} "
            f"{self.seconds:>7.1f}  {self.profile or '-':<8} {self.result}"
        )


class ModelTask(NamedTuple):
    """A task with a message to the model, a check, and an initial block.

    The check gets the text of the agent's blocks after the task, and the names of the model's
    calls.
    """

    fault: str
    says: str
    is_done: Callable[[str, Sequence[str]], bool]
    is_needed: bool = True
    notes: str = "Her name is Ada."


TASKS = (
    ModelTask(
        "does not note a fact",
        "I work as a gardener. Please keep that in your memory.",
        lambda notes, _calls: "gardener" in notes and "Ada" in notes,
    ),
    ModelTask(
        "does not correct a fact",
        "My favourite colour is not blue any more, it is green. Please correct it in your memory.",
        lambda notes, _calls: "green" in notes and "colour is blue" not in notes,
        notes="Her name is Ada.\nMy favourite colour is blue.",
    ),
    ModelTask(
        "does not make two calls in a row",
        "Please keep two things in your memory. My dog is called Rex. I live in Oslo.",
        lambda notes, _calls: "Rex" in notes and "Oslo" in notes,
    ),
    ModelTask(
        "does not search",
        "What did I tell you last month about my holiday? Look it up, please.",
        lambda _notes, calls: any(name in _SEARCHES for name in calls),
        is_needed=False,
    ),
    ModelTask(
        "calls tools for nothing", "Thank you!", lambda _notes, calls: not calls, is_needed=False
    ),
)


async def examine_model(
    runtime: Runtime, model: ChatModel, *, limit: float = TASK_SECONDS
) -> ModelReport:
    """Give a model all tasks, with one profile after the other, until a profile fits.

    An error of the model is not raised: the report contains it.

    Args:
        runtime: A runtime with a temporary database, in which the agents of the tasks stay.
        model: The model.
        limit: The time limit of one task, in seconds.
    """
    report = ModelReport(model.info.handle)
    began = time.monotonic()
    first: ModelReport | None = None
    try:
        async with asyncio.timeout(limit):
            await _greet(model, report)
        for profile in _profiles(model) if report.answers else ():
            tried = replace(report, profile=profile, fails=[], weak=[])
            first = first or tried
            for task in TASKS:
                async with asyncio.timeout(limit):
                    is_done = await _try_task(runtime, tried, task)
                if not is_done:
                    (tried.fails if task.is_needed else tried.weak).append(task.fault)
            if not tried.fails:
                report = tried
                break
        else:
            report = replace(first, profile=None) if first else report
    except TimeoutError:
        report = replace(
            first or report, profile=None, error=f"took longer than {limit:.0f} s for one task"
        )
    except RicordoError as error:
        report = replace(first or report, profile=None, error=" ".join(str(error).split()))
    report.seconds = time.monotonic() - began
    return report


def _profiles(model: ChatModel) -> Sequence[ModelProfile]:
    """Return the profiles to try, from the fullest to the smallest.

    A small model is not tried with the full profile.
    """
    if model.info.handle == LIBRARIAN:
        return ("full",)
    return ("small", "notes") if model.info.is_small else ("full", "small", "notes")


async def _greet(model: ChatModel, report: ModelReport) -> None:
    parts = (TextPart("Say hello in one short sentence."),)
    message = Message(
        id="", agent_id="", conversation_id="", role="user", parts=parts, created_at=0
    )
    chunks = 0
    request = ModelRequest((message,), stream=True)
    async for event in ask(model, request, Clearance(), payer=None):
        if isinstance(event, ModelReply):
            report.answers = any(
                isinstance(part, TextPart) and part.text.strip() for part in event.parts
            )
        chunks += isinstance(event, TextChunk)
    report.streams = chunks > 1


async def _try_task(runtime: Runtime, report: ModelReport, task: ModelTask) -> bool:
    scope = Scope()
    blocks = (BlockSpec("human", task.notes),)
    spec = AgentSpec(blocks=blocks, model=report.handle, settings={PROFILE: report.profile})
    agent = (await create_agent(runtime, scope, spec)).agent
    message = NewMessage("user", (TextPart(task.says),))
    turn = await run_turn(
        runtime,
        TurnRequest(scope, agent.id, (message,), overrides=TurnOverrides(max_steps=MOST_STEPS)),
    )
    try:
        answer = await collect(turn)
    except asyncio.CancelledError:
        # Otherwise a slow model would continue while the next one is measured.
        await turn.cancel()
        raise
    if answer.failure:
        raise Unavailable(answer.failure.message)
    if report.profile == "notes":
        await note_run(runtime, answer.run, fills_gaps=False)
    blocks_after = (await runtime.store.read(lambda tx: agents.load(tx, scope, agent.id))).blocks
    parts = [part for message in answer.messages for part in message.parts]
    calls = [part.name for part in parts if isinstance(part, ToolCallPart)]
    report.calls += len(calls)
    report.right += sum(
        isinstance(part, ToolReturnPart) and part.status == "success" for part in parts
    )
    has_spoken = bool(answer.messages and answer.messages[-1].text.strip())
    memory = "".join(block.value for block in blocks_after)
    return has_spoken and task.is_done(memory, calls)


async def _handles(models: Models) -> tuple[list[str], list[str]]:
    """Return the handles to try, and sentences about the skipped handles."""
    chosen = (await models.find_default()).handle
    by_provider: dict[str, list[str]] = {}
    for info in await models.list():
        by_provider.setdefault(info.provider, []).append(info.handle)
    handles = [chosen]
    sentences = []
    for provider, listed in by_provider.items():
        others = [handle for handle in listed if handle not in (chosen, LIBRARIAN)]
        if len(others) > MOST_OF_ONE:
            sentences.append(
                f"{provider} lists {len(listed)} models. Try one of them with: --model {others[0]}"
            )
        else:
            handles += others
    return handles, sentences


def _lessons(model: ChatModel) -> list[str]:
    """Return sentences about the lessons that were learned about the model."""
    learned = learned_of(model)
    return learned.lines() if learned else []


def open_trial(
    settings: Settings, providers: ProviderSettings, folder: Path
) -> AbstractAsyncContextManager[Runtime]:
    """Open a runtime with an empty database, for tests of models.

    Args:
        settings: The settings of the installation. The trial uses all but the data folder, the
            database and the embedding model.
        providers: The keys and addresses of model providers.
        folder: The data folder of the trial, which the caller deletes.

    Raises:
        Invalid: A setting or a plugin cannot be used.
    """
    trial = settings.model_copy(
        update={"data_dir": folder, "database_url": None, "embedding": "none"}
    )
    return open_runtime(trial, providers)


async def examine_models(
    handle: str | None = None, *, say: Callable[[str], None] = typer.echo
) -> bool:
    """Try the configured models, or one by its handle, and print the table.

    Args:
        handle: The handle of one model; None tries the default model, and all models of each
            provider that lists few.
        say: Gets each line of the table.

    Returns:
        True if all can run an agent.

    Raises:
        NotFound: There is no such model.
        Invalid: A setting or a plugin cannot be used.
    """
    settings, providers = load_settings()
    models = open_models(settings, providers, load_plugins(FEATURES))
    try:
        if handle is not None:
            await models.require(handle)
            handles = [handle]
            sentences: list[str] = []
        else:
            handles, sentences = await _handles(models)
    finally:
        await models.close()
    width = max(len(cell) for cell in [*handles, "model"])
    say(
        f"{'model':<{width}} {'answers':<8} {'calls':<6} {'arguments':<10} {'streams':<8} "
        f"{'seconds':>7}  {'profile':<8} result"
    )
    can_all = True
    with tempfile.TemporaryDirectory(prefix="ricordo-doctor-") as folder:
        async with open_trial(settings, providers, Path(folder)) as runtime:
            # Use the lessons that the running server learned about these models.
            runtime.models.learned.read(settings.data_dir)
            await runtime.models.find_local()
            for tried_handle in handles:
                model = runtime.models.get(tried_handle)
                report = await examine_model(runtime, model)
                can_all &= report.can_run_an_agent
                say(report.line(width))
                for line in _lessons(model):
                    say(f"  {line}")
    for sentence in sentences:
        say(sentence)
    return can_all
