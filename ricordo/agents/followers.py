"""What happens to other agents when one is made, changed, deleted, or ends a turn; plugins do it, in the same transaction.

The hook costs a statement only for agents whose settings say that they have others (`Agent.has_sleeptime`, `MANAGES`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ricordo.agents.request import TurnContext
from ricordo.domain.agent import MANAGES, Agent, AgentState
from ricordo.domain.message import Message
from ricordo.domain.run import RUN_IDS, Run
from ricordo.domain.scope import Scope
from ricordo.errors import Unsupported
from ricordo.runtime import Runtime
from ricordo.storage import runs
from ricordo.storage.engine.store import Transaction


class AgentFollower(Protocol):
    """A plugin's part in the life of agents. Every method works in the transaction of what it follows."""

    def set_sleeptime(
        self, tx: Transaction, runtime: Runtime, scope: Scope, state: AgentState, *, is_on: bool
    ) -> None:
        """Give the agent another that works on its memory, or let that rest. Raises Invalid."""

    def delete(self, tx: Transaction, scope: Scope, agent: Agent) -> Sequence[str]:
        """Prepare for the agent's deletion; returns the ids of agents that go with it. Raises Conflict."""

    def groups(
        self, tx: Transaction, organization_id: str, agent_ids: Sequence[str]
    ) -> Mapping[str, dict[str, Any]]:
        """Return the groups that these agents manage as JSON, by the manager's id."""

    def end_turn(
        self, tx: Transaction, turn: TurnContext, run: Run, new: Sequence[Message]
    ) -> Sequence[str]:
        """Plan what follows the end of a turn; returns the ids of the runs that are planned."""


def set_sleeptime(
    tx: Transaction, runtime: Runtime, scope: Scope, state: AgentState, *, is_on: bool
) -> None:
    """Switch on or off that another agent works on this one's memory. Raises Invalid, Unsupported."""
    followers = runtime.plugins.agent_followers()
    if is_on and not followers:
        raise Unsupported("This server runs no agents in their sleep. Leave enable_sleeptime out.")
    for follower in followers:
        follower.set_sleeptime(tx, runtime, scope, state, is_on=is_on)


def delete_followers(tx: Transaction, runtime: Runtime, scope: Scope, agent: Agent) -> list[str]:
    """Return the ids of the agents that are deleted with this one. Raises Conflict."""
    return [id for one in runtime.plugins.agent_followers() for id in one.delete(tx, scope, agent)]


def with_groups(
    tx: Transaction, runtime: Runtime, states: Sequence[AgentState]
) -> list[AgentState]:
    """Return the agents with the groups that they manage."""
    ids = [state.agent.id for state in states if MANAGES in state.agent.settings]
    if not ids:
        return list(states)
    organization_id = states[0].agent.organization_id
    found: dict[str, dict[str, Any]] = {}
    for follower in runtime.plugins.agent_followers():
        found |= follower.groups(tx, organization_id, ids)
    return [replace(state, group=found.get(state.agent.id)) for state in states]


def end_turn(tx: Transaction, turn: TurnContext, run: Run, new: Sequence[Message]) -> Run:
    """Return the ended run of an agent that has others work on its memory, with the ids of the runs that follow it."""
    if run.purpose is not None:
        return run
    followers = turn.runtime.plugins.agent_followers()
    planned = [id for one in followers for id in one.end_turn(tx, turn, run, new)]
    run = replace(run, metadata={**run.metadata, RUN_IDS: planned})
    if planned:
        runs.save_metadata(tx, run)
    return run
