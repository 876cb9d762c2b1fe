"""The work of sleeptime agents: transcripts with runs, costs and changes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ricordo.domain.agent import Agent
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.features.groups import queries, sleep_queries
from ricordo.features.groups.records import ASLEEP, Group
from ricordo.features.groups.sleep_queries import Transcript
from ricordo.storage import agents, history, proposals, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_MOST_CHANGES = 1000


@dataclass(frozen=True, slots=True)
class Pair:
    """An agent with its group of sleeptime agents.

    `is_paused` is the caller's choice.
    """

    agent: Agent
    group: Group
    is_paused: bool


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """A version that a run stored, or a waiting proposal of the run."""

    id: str
    status: str
    label: str


@dataclass(frozen=True, slots=True)
class SleepWork:
    """The work on one transcript.

    `run` is the last run; None if it was deleted.
    """

    transcript: Transcript
    run: Run | None
    changes: list[MemoryChange] = field(default_factory=list)


def pair_of(tx: Transaction, scope: Scope, agent_id: str) -> Pair:
    """Return the pair to which this agent belongs, as either of its two agents.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent or its sleeptime agent.

    Raises:
        NotFound: if the caller may not use the agent, or it has no sleeptime agent.
    """
    agent = agents.get(tx, scope, agent_id)
    if agent.is_asleep_for:
        agent = agents.get(tx, scope, agent.is_asleep_for)
    group = queries.of_manager(tx, scope.organization_id, agent.id)
    if group is None or group.manager_type not in ASLEEP:
        raise NotFound(
            f"{agent_id} has no sleeptime agent. Set its enable_sleeptime to create one."
        )
    return Pair(agent, group, sleep_queries.is_paused(tx, group.id, scope.subject))


def set_paused(tx: Transaction, scope: Scope, agent_id: str, *, is_paused: bool) -> Pair:
    """Stop or resume reading the caller's messages from now on.

    Args:
        tx: The transaction.
        scope: The caller; without a user, the choice is for conversations without a user.
        agent_id: Either agent of the pair.
        is_paused: True stops, False resumes.

    Raises:
        NotFound: as in `pair_of`.
    """
    pair = pair_of(tx, scope, agent_id)
    sleep_queries.set_paused(tx, pair.group.id, scope.subject, is_paused=is_paused)
    return Pair(pair.agent, pair.group, is_paused)


def work_of(tx: Transaction, scope: Scope, group: Group, page: Page) -> list[SleepWork]:
    """Return the work of the group's sleeptime agents.

    Args:
        tx: The transaction.
        scope: The caller; a user sees only the work on the user's messages.
        group: The group of the sleeptime agents.
        page: The part of the list of transcripts.
    """
    transcripts = sleep_queries.page_of_transcripts(
        tx, scope, page, group_id=group.id, user_id=scope.subject
    )
    run_ids = [transcript.run_id for transcript in transcripts if transcript.run_id]
    if run_ids:
        runs_by_id = {run.id: run for run in runs.by_ids(tx, run_ids)}
    else:
        runs_by_id = {}
    changes = _changes_of(tx, scope, run_ids)
    return [
        SleepWork(
            transcript,
            runs_by_id.get(transcript.run_id or ""),
            changes.get(transcript.run_id or "", []),
        )
        for transcript in transcripts
    ]


def _changes_of(
    tx: Transaction, scope: Scope, run_ids: Sequence[str]
) -> dict[str, list[MemoryChange]]:
    """Return each run's changes in blocks, and its waiting proposals."""
    changes: dict[str, list[MemoryChange]] = {}
    if not run_ids:
        return changes
    for version in history.of_runs(tx, scope, run_ids, _MOST_CHANGES):
        change = MemoryChange(version.id.hex(), "applied", version.label)
        changes.setdefault(version.run_id or "", []).append(change)
    for proposal in proposals.of_runs(tx, scope, run_ids):
        change = MemoryChange(proposal.id, "waits", proposal.label)
        changes.setdefault(proposal.run_id or "", []).append(change)
    return changes
