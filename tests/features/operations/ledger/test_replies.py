"""Each call of a chat model outside a turn leaves the tokens of its answers in the ledger.

The calls fail for good, after answers that were paid for and could not be used. That no other
module calls a model without an account is checked by `tests/test_architecture.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from ricordo.agents.agent_types import PROFILE
from ricordo.agents.note_taker import note_run
from ricordo.agents.request import NewMessage
from ricordo.domain.agent import CompactionSettings
from ricordo.domain.egress import Clearance
from ricordo.domain.job import Job
from ricordo.domain.message import ImagePart, TextPart
from ricordo.domain.model import Chunk, ModelInfo, ModelReply, ModelRequest
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.features.knowledge.facts import jobs as fact_jobs
from ricordo.features.pictures import jobs as picture_jobs
from ricordo.llm.egress import ask, whole_reply
from ricordo.llm.policy import CallPolicy, answer_by_policy
from ricordo.llm.scripted import ScriptedModel
from ricordo.storage import jobs as job_rows
from ricordo.storage import runs, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.model_costs import ReplyAccount
from ricordo.storage.schema.core_tables import expenses
from tests.agents.conftest import open_stage, stage
from tests.api.conftest import (
    Api,
    api,
    client,
    http,
    running_client,
    running_http,
    running_server,
    server,
)
from tests.seams.server import MODEL
from tests.seams.stage import Stage, soon

__all__ = [
    "api", "client", "http", "open_stage", "running_client", "running_http", "running_server",
    "server", "stage",
]  # fmt: skip
Work = Callable[[Stage], Awaitable[Any]]
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
USED = partial(runs.used_since, organization_id=LOCAL_ORGANIZATION, since=0)


def failure() -> ModelError:
    error = ModelError("llm_empty_response", "The model gave an empty answer.")
    error.discarded = Usage(100, 200)
    return error


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/agents/AGENT/generate", {"prompt": "A title."}, id="generate"),
        pytest.param("/users/ada/ask", {"question": "Where in Graz?", "model": MODEL}, id="ask"),
        pytest.param("/v1/chat/completions", {"said": "### Task:\nA title."}, id="task of a chat"),
        pytest.param("/v1/chat/completions", {"said": "Hello."}, id="temporary chat"),
    ],
)
def test_the_tokens_of_a_request_that_failed_are_in_the_ledger(
    api: Api, path: str, body: dict[str, Any]
) -> None:
    agent = api.client.agents.create(model=MODEL).id
    headers = {"x-ricordo-user": "ada"}
    api.client.agents.messages.create(agent, input="I live in Graz.", extra_headers=headers)
    if said := body.get("said"):
        body = {"model": agent, "messages": [{"role": "user", "content": said}]}
    before = api.server.read(USED)
    api.server.says(failure())
    answer = api.http.post(
        path.replace("AGENT", agent), json=body, headers={"x-openwebui-chat-id": "local:1"}
    )
    api.server.provoked()
    assert "empty answer" in answer.text
    assert api.server.read(USED) - before == 300


async def claimed_job(stage: Stage, kind: str, **payload: str) -> Job:
    def claim(tx: Transaction) -> Job:
        job = job_rows.add(tx, Job(kind, LOCAL_ORGANIZATION, payload))
        assert job
        claimed = job_rows.claim_one(tx, "worker-1", job.id)
        assert claimed
        return claimed

    return await stage.store.write(claim)


def no_report(_done: int, _total: int) -> None:
    pass


async def take_notes(stage: Stage) -> None:
    agent = await stage.agent(settings={PROFILE: "notes"})
    stage.lines += ["Nice.", failure()]
    run = (await stage.say(agent, "I live in Graz.")).run
    await note_run(stage.runtime, run)


async def read_facts(stage: Stage) -> None:
    agent = await stage.agent()
    user = await stage.store.write(lambda tx: users.find_or_make(tx, Scope(), "ada"))
    scope = Scope(subject_id=user.id, user_id=user.id)
    stage.lines += ["Nice.", failure()]
    await stage.say(agent, "I live in Graz.", scope=scope)
    job = await claimed_job(stage, fact_jobs.EXTRACT, user_id=user.id, agent_id=agent)
    await fact_jobs.extract(stage.runtime, job, no_report)


async def read_picture(stage: Stage) -> None:
    agent = await stage.agent()
    stage.lines += ["Nice.", failure()]
    await stage.send(agent, NewMessage("user", (ImagePart("image/png", data=PIXEL),)))
    message = (await stage.history(agent))[-2]
    job = await claimed_job(
        stage, picture_jobs.READ, message_id=message.id, agent_id=agent, conversation_id=""
    )
    await picture_jobs.read_pictures(stage.runtime, job, no_report)


async def compact(stage: Stage) -> None:
    agent = await stage.agent()
    for _ in range(6):
        stage.lines += ["Nice."]
        await stage.say(agent, "I live in Graz.")
    stage.lines += [failure()]
    answer = await stage.say(agent, compaction=CompactionSettings(mode="all"))
    assert answer.run.status == "completed"  # an outline is the summary then
    raise failure()


@pytest.mark.parametrize("work", [take_notes, read_facts, read_picture, compact])
async def test_the_tokens_of_background_work_that_failed_are_in_the_ledger(
    stage: Stage, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_FACTS", "direct")
    monkeypatch.setenv("RICORDO_FACTS_TURNS", "1")
    monkeypatch.setenv("RICORDO_FACTS_IDLE_SECONDS", "0")
    monkeypatch.setenv("RICORDO_PICTURE_TEXT", "model")
    with pytest.raises(ModelError, match="empty answer"):
        await work(stage)
    rows = await stage.store.read(lambda tx: tx.all(expenses.select()))
    assert [(row.model, row.prompt_tokens, row.completion_tokens) for row in rows] == [
        ("scripted/model", 100, 200)
    ]


async def test_an_answer_is_paid_for_also_if_its_user_was_erased_meanwhile(
    stage: Stage,
) -> None:
    model = ScriptedModel([ModelReply((TextPart("Tea."),), Usage(1, 2), discarded=Usage(10, 20))])
    account = ReplyAccount(stage.store, LOCAL_ORGANIZATION, user_id="user-who-was-erased")
    reply = await whole_reply(model, ModelRequest(()), Clearance(), account)
    assert reply.usage == Usage(11, 22)
    (row,) = await stage.store.read(lambda tx: tx.all(expenses.select()))
    assert (row.model, row.user_id, row.prompt_tokens) == ("scripted/model", None, 11)


class HangingModel:
    """A model whose first answer is empty, and whose second never comes."""

    def __init__(self) -> None:
        self.info = ModelInfo("far/model", "far", "model", "openai")
        self._answers = [ModelReply((), Usage(100, 200))]
        self.is_asked_again = asyncio.Event()

    async def _attempt(self, _request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        if self._answers:
            yield self._answers.pop()
        else:
            self.is_asked_again.set()
            await asyncio.Event().wait()

    def answer(self, request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        async def sleep(_seconds: float) -> None:
            pass

        return answer_by_policy(CallPolicy(sleep=sleep), request, self._attempt)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_the_tokens_of_an_unusable_answer_are_in_the_ledger_if_the_next_is_cancelled(
    stage: Stage, is_whole: bool
) -> None:
    model = HangingModel()
    account = ReplyAccount(stage.store, LOCAL_ORGANIZATION)

    async def read() -> None:
        if is_whole:
            await whole_reply(model, ModelRequest(()), Clearance(), account)
        async for _ in ask(model, ModelRequest(()), Clearance(), account):
            pass

    task = asyncio.create_task(read())
    await soon(model.is_asked_again.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await stage.store.read(USED) == 300
