"""Hooks that run when an agent is created, changed or deleted, or ends a turn.

Plugins use them for agents that work with this agent, such as its sleep-time agent. Hooks run in
the transaction of the event. They ask the database only about agents whose settings name other
agents (`Agent.has_sleeptime`, `MANAGES`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ricordo.agents.turn_context import (
    TurnContext,
)
from ricordo.domain.agent import MANAGES, Agent, AgentState
from ricordo.domain.message import Message
from ricordo.domain.run import RUN_IDS, Run
from ricordo.domain.scope import Scope
from ricordo.errors import Unsupported
from ricordo.runtime import Runtime
from ricordo.storage import runs
from ricordo.storage.engine.store import Transaction


class AgentFollower(Protocol):
    """A plugin's hooks for the events of agents.

    Every method runs in the transaction of its event.
    """

    def set_sleeptime(
        self, tx: Transaction, runtime: Runtime, scope: Scope, state: AgentState, *, is_on: bool
    ) -> None:
        """Start or stop the work of another agent on this agent's memory.

        Args:
            tx: The transaction.
            runtime: The server's parts.
            scope: The caller.
            state: The agent whose memory is worked on, with its conversation and its `user_ids`.
            is_on: False stops the work, and has no effect if there is none.

        Raises:
            Conflict: The agent has a part in a group that does not allow it.
        """

    def delete(self, tx: Transaction, scope: Scope, agent: Agent) -> Sequence[str]:
        """Prepare for the agent's deletion.

        Returns the ids of agents that are deleted with it.

        Args:
            tx: The transaction that hides the agent.
            scope: The caller.
            agent: The agent that is deleted.

        Raises:
            Conflict: The agent cannot be deleted now, for example because it manages a group.
        """

    def groups(
        self, tx: Transaction, organization_id: str, agent_ids: Sequence[str]
    ) -> Mapping[str, dict[str, Any]]:
        """Return the groups that these agents manage as JSON, by the manager's id.

        Args:
            tx: The transaction, or a read.
            organization_id: The organization of the agents.
            agent_ids: The agents whose settings say that they manage a group.
        """

    def end_turn(
        self, tx: Transaction, turn: TurnContext, run: Run, new_messages: Sequence[Message]
    ) -> Sequence[str]:
        """Plan the runs that follow the end of a turn; return their ids.

        Args:
            tx: The transaction that ends the turn.
            turn: The turn's state before this transaction.
            run: The ended run.
            new_messages: The messages of the turn's last step.
        """


def set_sleeptime(
    tx: Transaction, runtime: Runtime, scope: Scope, state: AgentState, *, is_on: bool
) -> None:
    """Switch the work of another agent on this agent's memory on or off.

    Args:
        tx: The transaction.
        runtime: The server's parts.
        scope: The caller.
        state: The agent whose memory is worked on, with its conversation and its `user_ids`.
        is_on: False stops the work, and has no effect if there is none.

    Raises:
        Unsupported: It is to be switched on, and no plugin has such agents.
        Conflict: The agent has a part in a group that does not allow it.
    """
    followers = runtime.plugins.agent_followers()
    if is_on and not followers:
        raise Unsupported("This server has no sleep-time agents. Leave enable_sleeptime out.")
    for follower in followers:
        follower.set_sleeptime(tx, runtime, scope, state, is_on=is_on)


def delete_followers(tx: Transaction, runtime: Runtime, scope: Scope, agent: Agent) -> list[str]:
    """Return the ids of the agents that are deleted with this agent.

    The hooks also delete the groups of these agents.

    Args:
        tx: The transaction that hides the agent.
        runtime: The server's parts.
        scope: The caller.
        agent: The agent that is deleted.

    Raises:
        Conflict: The agent manages a group.
    """
    return [
        id
        for follower in runtime.plugins.agent_followers()
        for id in follower.delete(tx, scope, agent)
    ]


def with_groups(
    tx: Transaction, runtime: Runtime, states: Sequence[AgentState]
) -> list[AgentState]:
    """Return the agents with the groups that they manage.

    Args:
        tx: The transaction.
        runtime: The runtime, whose plugins know the groups.
        states: Agents of one organization.

    Returns:
        The agents in the same order; `group` is None for one that manages none.
    """
    ids = [state.agent.id for state in states if MANAGES in state.agent.settings]
    if not ids:
        return list(states)
    organization_id = states[0].agent.organization_id
    groups: dict[str, dict[str, Any]] = {}
    for follower in runtime.plugins.agent_followers():
        groups |= follower.groups(tx, organization_id, ids)
    return [replace(state, group=groups.get(state.agent.id)) for state in states]


def end_turn(tx: Transaction, turn: TurnContext, run: Run, new_messages: Sequence[Message]) -> Run:
    """Plan the runs that follow an agent's turn; return its run with their ids.

    The planned runs are turns of other agents, which work on this agent's memory. No runs follow a
    run with a purpose, such as a sleep-time agent's.

    Args:
        tx: The transaction that ends the run.
        turn: The turn's state before this transaction.
        run: The ended run.
        new_messages: The messages of the turn's last step.
    """
    if run.purpose is not None:
        return run
    followers = turn.runtime.plugins.agent_followers()
    planned = [
        id for follower in followers for id in follower.end_turn(tx, turn, run, new_messages)
    ]
    run = replace(run, metadata={**run.metadata, RUN_IDS: planned})
    if planned:
        runs.save_metadata(tx, run)
    return run
