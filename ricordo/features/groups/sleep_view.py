"""What sleeping agents did for a user: each transcript with the run that worked on it, what it cost and what it changed."""

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
    """An agent with the group of those that work on its memory, and whether the caller said "not now"."""

    agent: Agent
    group: Group
    is_paused: bool


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """A version that a run stored, or a proposal of it that waits."""

    id: str
    status: str
    label: str


@dataclass(frozen=True, slots=True)
class SleepWork:
    """What was done with one transcript. `run` is the last that worked on it; None where it was deleted."""

    transcript: Transcript
    run: Run | None
    changes: list[MemoryChange] = field(default_factory=list)


def pair_of(tx: Transaction, scope: Scope, agent_id: str) -> Pair:
    """Return the pair that the agent belongs to, by the id of either. Raises NotFound."""
    agent = agents.get(tx, scope, agent_id)
    if agent.is_asleep_for:
        agent = agents.get(tx, scope, agent.is_asleep_for)
    group = queries.of_manager(tx, scope.organization_id, agent.id)
    if group is None or group.manager_type not in ASLEEP:
        raise NotFound(
            f"No other agent works on the memory of {agent_id}. Set its enable_sleeptime to make one."
        )
    return Pair(agent, group, sleep_queries.is_paused(tx, group.id, scope.subject))


def set_paused(tx: Transaction, scope: Scope, agent_id: str, *, is_paused: bool) -> Pair:
    """Note that nothing of the caller's is read from now on, or that it is again. Raises NotFound."""
    pair = pair_of(tx, scope, agent_id)
    sleep_queries.set_paused(tx, pair.group.id, scope.subject, is_paused=is_paused)
    return Pair(pair.agent, pair.group, is_paused)


def work_of(tx: Transaction, scope: Scope, group: Group, page: Page) -> list[SleepWork]:
    """Return what the group's sleeping agents did; of a caller who is a user, with what they themselves said."""
    transcripts = sleep_queries.page_of_transcripts(
        tx, scope, page, group_id=group.id, user_id=scope.subject
    )
    run_ids = [transcript.run_id for transcript in transcripts if transcript.run_id]
    known = {run.id: run for run in runs.by_ids(tx, run_ids)} if run_ids else {}
    changes = _changes_of(tx, scope, run_ids)
    return [
        SleepWork(
            transcript, known.get(transcript.run_id or ""), changes.get(transcript.run_id or "", [])
        )
        for transcript in transcripts
    ]


def _changes_of(
    tx: Transaction, scope: Scope, run_ids: Sequence[str]
) -> dict[str, list[MemoryChange]]:
    """Return by run what it changed in blocks, and what it proposed that waits."""
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
