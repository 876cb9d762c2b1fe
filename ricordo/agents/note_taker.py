"""Take notes for agents with the profile `notes`: one short model call for each message.

A job takes the notes after the turn has ended. So no answer waits for the notes, and an error does
not fail a turn. The policies for an agent's edits also apply to notes, and the ledger counts their
tokens.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from ricordo.agents.agent_types import profile_of
from ricordo.agents.budgets import put_off
from ricordo.agents.turn_context import (
    TurnContext,
)
from ricordo.domain.agent import (
    AgentState,
    effective,
)
from ricordo.domain.egress import join, permits
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import Message, TextPart
from ricordo.domain.model import ModelReply, ModelRequest, ModelSettings
from ricordo.domain.run import Run
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.usage import Purpose
from ricordo.errors import ModelError, RicordoError
from ricordo.llm.chat import ChatModel
from ricordo.llm.egress import whole_reply
from ricordo.memory.commit import commit
from ricordo.memory.edits import EditContext, EditGuard, EditReason, GuardSources, WorkingMemory
from ricordo.memory.fact_lines import FactEdit, person_block, with_correction, with_fact
from ricordo.memory.schemas import schemas_in
from ricordo.memory.statements import notes_in, stated, to_forget, unnoted
from ricordo.prompt.texts import text
from ricordo.runtime import Runtime
from ricordo.storage import agents, jobs, messages
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore
from ricordo.storage.model_costs import ReplyAccount
from ricordo.tools.builtin.facts import NEW_DESCRIPTION, NEW_LABEL

log = logging.getLogger(__name__)
# The write function of a store; a job may pass its fenced one.
Write = Callable[[Callable[[Transaction], None]], Awaitable[None]]
KIND = "take_notes"
PURPOSE: Purpose = "notes"
ANSWER_TOKENS = 120
TIMEOUT = 180.0  # seconds for one call
_ATTEMPTS = 3  # with growing pauses, as for all jobs
_SHORT_ANSWER = 4  # words: a message as short as this may answer a question
_REASON = "Noted from a message."


def wants_notes(turn: TurnContext) -> bool:
    """Return whether a job takes notes on this turn's messages."""
    return turn.profile == "notes" and turn.run.purpose is None and bool(turn.request.messages)


def add_note_job(tx: Transaction, run: Run, *, is_local_user: bool) -> None:
    """Add the job that takes notes on this run.

    Jobs of one conversation never overlap, so notes keep their order.

    Args:
        tx: The transaction that ends the run.
        run: The run.
        is_local_user: The run belongs to the local user of a server without keys.
    """
    jobs.add(tx, _job(run, is_local_user=is_local_user))


def _job(run: Run, *, is_local_user: bool = False) -> Job:
    payload = {
        "run_id": run.id,
        "agent_id": run.agent_id,
        "conversation_id": run.conversation_id,
        "is_local_user": is_local_user,
    }
    key = f"notes:{run.conversation_id}"
    return Job(
        KIND, run.organization_id, payload, key, most_attempts=_ATTEMPTS, user_id=run.user_id
    )


async def take_notes(runtime: Runtime, job: Job, report: Report) -> None:
    """Take a job's notes, if the day's budget does not postpone them.

    Args:
        runtime: The server's parts.
        job: The job, whose payload names the run, its agent and its conversation.
        report: Gets the number of messages that are done, and of all.
    """
    if not await put_off(runtime, job, job.payload["agent_id"]):
        await _take(runtime, job, FencedStore(runtime.store, job).write, report=report)


async def note_run(runtime: Runtime, run: Run, *, fills_gaps: bool = True) -> None:
    """Take notes on a run immediately.

    Args:
        runtime: The server's parts.
        run: The run. If its agent does not have the profile `notes`, nothing is done.
        fills_gaps: Also note statements that the model left out. False: take only the model's
            notes.

    Raises:
        NotFound: The agent or its conversation does not exist.
        ModelError: The model failed, or did not answer one message within three minutes.
    """
    await _take(runtime, _job(run), runtime.store.write, fills_gaps=fills_gaps)


async def _take(
    runtime: Runtime,
    job: Job,
    write: Write,
    *,
    fills_gaps: bool = True,
    report: Report = lambda _done, _total: None,
) -> None:
    """Ask the agent's model for the facts in each message of the run, and write them.

    Facts that the model invented are dropped.
    """
    run_id = job.payload["run_id"]
    state = await runtime.store.read(lambda tx: _load(tx, job))
    window = await runtime.store.read(lambda tx: _messages_with_context(tx, state, run_id))
    model = (await runtime.organization_providers.of(job.organization_id)).get(state.agent.model)
    if profile_of(state.agent, model.info, runtime.settings.model_profile) != "notes":
        return
    indexes = [
        index
        for index, entry in enumerate(window)
        if entry.run_id == run_id and _is_of_user(entry, state)
    ]
    payer = ReplyAccount(
        runtime.store, job.organization_id, PURPOSE, agent_id=state.agent.id, user_id=job.user_id
    )
    for number, index in enumerate(indexes, 1):
        message = window[index]
        previous_answer = _answer_with_question(window, index)
        if previous_answer and not permits(
            previous_answer.egress, runtime.networks.of_model(model.info)
        ):
            previous_answer = None
        question = _question_in(previous_answer)
        label = previous_answer.egress if previous_answer else None
        statements = stated(message.text)
        notes: list[str] = []
        if statements:
            try:
                request = _request(state, message, statements, question, label)
                reply = await _reply_in_time(model, request, runtime, payer)
                notes = notes_in(_text(reply), [*statements, question])
            except ModelError:
                if job.attempts < _ATTEMPTS:
                    raise
                log.warning("no notes were taken by the model", extra={"run": run_id})
            notes += unnoted(statements, notes) if fills_gaps else []
        await write(
            partial(
                _write,
                runtime=runtime,
                job=job,
                message=message,
                previous_answer=previous_answer,
                notes=notes,
            )
        )
        report(number, len(indexes))


async def _reply_in_time(
    model: ChatModel, request: ModelRequest, runtime: Runtime, payer: ReplyAccount
) -> ModelReply:
    """Return the model's reply. Raises ModelError if the model fails or takes too long."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await whole_reply(model, request, runtime.new_clearance(), payer)
    except TimeoutError as error:
        raise ModelError(
            "llm_timeout", f"{model.info.handle} did not answer within {TIMEOUT:g} seconds."
        ) from error


def _is_of_user(message: Message, state: AgentState) -> bool:
    """Return whether the conversation's user wrote the whole message.

    Texts of other people, of programs and of retrieved documents are no facts about the user.
    """
    return (
        message.is_said
        and not message.is_untrusted
        and bool(message.text.strip())
        and message.user_id == state.conversation.user_id
    )


def _load(tx: Transaction, job: Job) -> AgentState:
    scope = Scope(job.organization_id)
    return effective(
        agents.load(tx, scope, job.payload["agent_id"], job.payload["conversation_id"])
    )


def _messages_with_context(tx: Transaction, state: AgentState, run_id: str) -> list[Message]:
    """Return the last messages in view before the run, then the run's messages.

    Of the window, only the last 20 messages are read. They may contain a question that a message of
    the run answers.
    """
    window = messages.by_ids(tx, state.conversation.window[-20:])
    of_run = messages.of_run(tx, run_id)
    run_message_ids = {message.id for message in of_run}
    return [
        *(
            message
            for message in window
            if message.id not in run_message_ids and _is_before(message, of_run)
        ),
        *of_run,
    ]


def _is_before(message: Message, of_run: Sequence[Message]) -> bool:
    return bool(of_run) and message.created_at < of_run[0].created_at


def _answer_with_question(window: Sequence[Message], index: int) -> Message | None:
    """Return the answer with the question that a short message answers; None without one."""
    if len(window[index].text.split()) > _SHORT_ANSWER:
        return None
    before = next(
        (
            message
            for message in reversed(window[:index])
            if message.role == "assistant" and message.text.strip()
        ),
        None,
    )
    return before if before and before.text.strip().endswith("?") else None


def _question_in(previous_answer: Message | None) -> str:
    """Return the question with which an answer ends; "" without an answer."""
    spoken = previous_answer.text.strip() if previous_answer else ""
    return spoken.replace("\n", " ").rsplit(". ", 1)[-1]


def _request(
    state: AgentState, message: Message, statements: Sequence[str], question: str, label: str | None
) -> ModelRequest:
    prompt = f"Message: {' '.join(statements)}"
    if question:
        prompt = f"Asked: {question}\n{prompt}"
    system = state.conversation.new_message(
        "system", (TextPart(text("note_taker")),), message.created_at
    )
    user = state.conversation.new_message("user", (TextPart(prompt),), message.created_at)
    user = replace(user, egress=join(user.egress, message.egress, label))
    settings = ModelSettings(
        temperature=0, max_output_tokens=ANSWER_TOKENS, reasoning_effort="none"
    )
    return ModelRequest((system, user), settings=settings, user_id=message.user_id)


def _text(reply: ModelReply) -> str:
    return "\n".join(part.text for part in reply.parts if isinstance(part, TextPart))


def _write(
    tx: Transaction,
    *,
    runtime: Runtime,
    job: Job,
    message: Message,
    previous_answer: Message | None,
    notes: Sequence[str],
) -> None:
    """Write the notes on one message."""
    state = _load(tx, job)
    settings = runtime.settings
    schemas = schemas_in(settings.data_dir)
    # Notes quote the user, so a message with an egress label gives no notes for a block that more
    # readers may see.
    clearance = runtime.new_clearance()
    clearance.show(f"message:{message.id}", message.egress, message.text)
    if previous_answer:
        clearance.know(
            f"message:{previous_answer.id}", previous_answer.egress, _question_in(previous_answer)
        )
    guard = EditGuard(GuardSources, clearance)
    memory = WorkingMemory(state, guard, schemas)
    for phrase in to_forget(message.text):
        _edit(memory, phrase, None)
    for note in notes:
        _edit(memory, None, note)
    if not memory.edits:
        return
    context = EditContext(
        Actor("agent", state.agent.id, state.agent.name),
        message.run_id,
        is_untrusted=message.is_untrusted,
        egress=join(message.egress, previous_answer.egress if previous_answer else None),
        user_texts=lambda: (message.text,),
        proposal_days=settings.proposal_expiry,
        schemas=schemas,
    )
    is_local_user = job.payload.get("is_local_user", False)
    scope = Scope(job.organization_id, is_local_user=is_local_user)
    commit(tx, state, memory, scope, context)


def _edit(memory: WorkingMemory, old: str | None, new: str | None) -> None:
    """Note a fact, or remove the line that `old` names; refused edits are dropped."""
    block = person_block(memory.current())
    block_text = block.value if block else ""
    if old is None:
        edit: FactEdit | None = with_fact(block_text, new or "")
    else:
        edit = with_correction(block_text, old, "")
    if edit is None:
        return
    try:
        if block:
            memory.write(
                block.shown_label,
                edit.value,
                new_id("call"),
                result_kind="nothing",
                reason=EditReason(_REASON),
            )
        elif edit.after:
            memory.create(
                NEW_LABEL, edit.value, NEW_DESCRIPTION, new_id("call"), EditReason(_REASON)
            )
    except RicordoError as error:
        log.info("a note was not taken", extra={"reason": type(error).__name__})


HANDLER = JobHandler(KIND, take_notes)
