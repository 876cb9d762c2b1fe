"""Talks that resume by themselves after an approval was answered outside of the group.

The end of the member's turn resumes the talk at once. The client does not send the message again.
So if a kill interrupts the resumed talk, jobs of `HANDLER` find it by its stored rows.
"""

import logging
from dataclasses import replace

from ricordo.agents.request import (
    TurnRequest,
)
from ricordo.domain.clock import DAY
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import RicordoError
from ricordo.features.groups import queries, talk_queries
from ricordo.features.groups.talk import Talk
from ricordo.features.groups.talk_record import is_answer_elsewhere, resumable_by
from ricordo.features.groups.talk_start import (
    StartedTalk,
    require_leader,
    start_talk,
    talk_conversation,
)
from ricordo.plugins import AfterTurn
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
KIND = "groups.resume"
_SECONDS = 60.0
# An older talk is not resumed.
_LONGEST_PAUSE = 7 * DAY


async def resume_talk(runtime: Runtime, answered_run: Run) -> LiveTurn | None:
    """Resume the talk that waited for this run's agent.

    Args:
        runtime: The running server. A server that is stopping resumes nothing.
        answered_run: The member's run that continued after its approval; its metadata names the
            group.

    Returns:
        The talk, which runs in the background; None if no talk waited for the run, or if it cannot
        be resumed.
    """
    if runtime.is_stopping:
        return None
    for scope in await runtime.store.read(lambda tx: _scopes_of(tx, answered_run)):
        try:
            started = await _start(runtime, scope, answered_run)
        except RicordoError as error:
            log.info(
                "no talk of the group was resumed", extra={"run": answered_run.id, "reason": error}
            )
            continue
        if isinstance(started, StartedTalk):
            talk = Talk(runtime, started)
            talk.start()
            return talk
    return None


async def _start(runtime: Runtime, scope: Scope, answered_run: Run) -> StartedTalk | str:
    group_id = str(answered_run.metadata["group_id"])
    group = await runtime.store.read(lambda tx: queries.get(tx, scope, group_id))
    request = TurnRequest(
        scope, require_leader(group), conversation_id=talk_conversation(scope, group)
    )
    return await start_talk(runtime, group_id, request, answered_run)


async def resume_talks(runtime: Runtime, _job: Job, report: Report) -> None:
    """Resume talks that no server is running, although their member got its answer.

    Such talks were left by a killed server. They run one after the other.

    Args:
        runtime: The running server.
        _job: The periodic job; it is not used.
        report: Counts the resumed talks.
    """

    def find(tx: Transaction) -> list[Run]:
        since = tx.clock.now() - _LONGEST_PAUSE
        unfinished = talk_queries.unfinished(tx, since)
        answered = (resumable_by(tx, organization_id, id) for organization_id, id in unfinished)
        return [run for run in answered if run]

    resumed = 0
    for answered_run in await runtime.store.read(find):
        if talk := await resume_talk(runtime, answered_run):
            resumed += 1
            report(resumed, resumed)
            await talk.wait()


def _scopes_of(tx: Transaction, run: Run) -> list[Scope]:
    """Return the scopes in which the talk may have started.

    The result is empty if the user is disabled or deleted. An agent that was created for one user
    talks with that user, even if another user calls.
    """
    everything = Scope(run.organization_id)
    if run.user_id is None:
        return [everything]
    user = users.find(tx, everything, run.user_id)
    if user is None or user.disabled_at is not None:
        return []
    return [replace(everything, role="user").acting_for(user), everything]


HANDLER = JobHandler(KIND, resume_talks, every_seconds=_SECONDS)


async def resume_after_answer(runtime: Runtime, run: Run) -> None:
    """Resume the talk of an agent whose approval was answered outside of the group.

    Args:
        runtime: The running server.
        run: A run that has ended; other runs than such an answer change nothing.
    """
    if is_answer_elsewhere(run):
        await resume_talk(runtime, run)


RESUMPTION = AfterTurn(resume_after_answer, in_groups=True)
