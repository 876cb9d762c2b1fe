"""Pairs: an agent, and a sleeptime agent that works on its memory between turns.

The work is switched on and off at the agent. If the agent is deleted, so is its sleeptime agent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ricordo.agents.agent_types import TRAITS, chosen_system
from ricordo.agents.lifecycle import AgentSpec, BlockSpec, insert_agent
from ricordo.agents.turn_context import (
    TurnContext,
)
from ricordo.domain.agent import (
    ENABLE_SLEEPTIME,
    MANAGES,
    MESSAGE_BUFFER,
    SLEEPS_FOR,
    Agent,
    AgentState,
    AgentType,
)
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.features.groups import queries, service, sleeptime
from ricordo.features.groups.records import ASLEEP, Group
from ricordo.features.groups.responses import groups_json
from ricordo.prompt.texts import text
from ricordo.runtime import Runtime
from ricordo.storage import agents
from ricordo.storage.agent_access import keep_to
from ricordo.storage.engine.store import Transaction

FREQUENCY = 5  # turns; the default of the retired Letta V1 server


@dataclass(frozen=True, slots=True)
class PairKind:
    """The parts of a new pair.

    These are the sleeptime agent's type, the name of the text in its block `memory_persona`, the
    fields of the group of both agents, and further settings of the sleeptime agent.
    """

    agent_type: AgentType
    persona: str
    group: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)


_USUAL = PairKind(
    "sleeptime_agent",
    "sleep_persona",
    {"manager_type": "sleeptime", "sleeptime_agent_frequency": FREQUENCY},
)
# These are wire facts, except for the last.
_VOICE = PairKind(
    "voice_sleeptime_agent",
    "voice_persona",
    {
        "manager_type": "voice_sleeptime",
        "description": "Low latency voice chat with async memory management.",
        "max_message_buffer_length": service.VOICE_BUFFER[0],
        "min_message_buffer_length": service.VOICE_BUFFER[1],
    },
    {MESSAGE_BUFFER: [20, 10]},
)


class PairFollower:
    """Creates, switches and deletes the pairs of agents: see `AgentFollower`."""

    def set_sleeptime(
        self, tx: Transaction, runtime: Runtime, scope: Scope, state: AgentState, *, is_on: bool
    ) -> None:
        """Create the agent's pair, or switch an existing one on or off.

        Args:
            tx: The transaction.
            runtime: The running server.
            scope: The caller, who becomes the creator of a new pair.
            state: The agent with the users who may use it; a new sleeptime agent has the same
                users.
            is_on: False stops the work; the sleeptime agent and the group stay.

        Raises:
            Conflict: if the agent manages a group of another kind.
            NotFound: if the provider of the agent's model is unknown, which the sleeptime agent
                would use.
        """
        agent = state.agent
        group = queries.of_manager(tx, agent.organization_id, agent.id)
        if not is_on or (group and group.manager_type in ASLEEP):
            service.change_settings(tx, scope, agent.id, **{ENABLE_SLEEPTIME: is_on or None})
            return
        if group:
            raise Conflict(
                f"The agent manages the group {group.id}. Delete the group first, or leave "
                "enable_sleeptime out."
            )
        _make(tx, runtime, scope, state)

    def delete(self, tx: Transaction, scope: Scope, agent: Agent) -> Sequence[str]:
        """Delete the group of a deleted agent, and return the ids of its sleeptime agents.

        If the deleted agent is a sleeptime agent, sleeptime is switched off for the other agent of
        the pair.

        Args:
            tx: The transaction.
            scope: The caller; only its organization matters.
            agent: The agent that is deleted.

        Raises:
            Conflict: if the agent manages a group of another kind.
        """
        organization = Scope(scope.organization_id)
        sleeping_ids: list[str] = []
        if MANAGES in agent.settings and (
            group := queries.of_manager(tx, agent.organization_id, agent.id)
        ):
            if group.manager_type not in ASLEEP:
                raise Conflict(f"The agent manages the group {group.id}. Delete the group first.")
            sleeping_ids = [
                id for id in group.agent_ids if _sleeps_for(tx, organization, id) == agent.id
            ]
            service.delete(tx, organization, group.id)
        if SLEEPS_FOR in agent.settings:
            for group in queries.of_member(tx, agent.id):
                if group.manager_type in ASLEEP and group.manager_agent_id:
                    service.delete(tx, organization, group.id)
                    service.change_settings(
                        tx, organization, group.manager_agent_id, **{ENABLE_SLEEPTIME: None}
                    )
        return sleeping_ids

    def groups(
        self, tx: Transaction, organization_id: str, agent_ids: Sequence[str]
    ) -> Mapping[str, dict[str, Any]]:
        """Return the groups that these agents manage as JSON, by the manager's id.

        Args:
            tx: The transaction.
            organization_id: The organization of the agents.
            agent_ids: The agents; those without a group are left out of the result.
        """
        groups_by_manager = queries.of_managers(tx, organization_id, agent_ids)
        answers = groups_json(tx, Scope(organization_id), [*groups_by_manager.values()])
        return dict(zip(groups_by_manager, answers, strict=True))

    def end_turn(
        self, tx: Transaction, turn: TurnContext, run: Run, new: Sequence[Message]
    ) -> Sequence[str]:
        """Plan the runs of sleeptime agents that follow this turn, and return their ids.

        Args:
            tx: The transaction that ends the turn.
            turn: The turn.
            run: Its run in its last state.
            new: The messages of its last step, which are not yet in the turn's window.
        """
        return sleeptime.end_turn(tx, turn, run, new)


def _sleeps_for(tx: Transaction, scope: Scope, agent_id: str) -> str | None:
    agent = agents.find(tx, scope, agent_id)
    return agent.is_asleep_for if agent else None


def spec_beside(
    runtime: Runtime, agent: Agent, agent_type: AgentType, prompt_key: str, **fields: Any
) -> AgentSpec:
    """Return the spec of a new agent that uses the models of this agent.

    Args:
        runtime: The running server, which may have a changed system prompt.
        agent: The agent whose models, window and time zone are copied.
        agent_type: The type of the new agent.
        prompt_key: The name of its system prompt, as in `TypeTraits.prompt_key`.
        **fields: The other fields of the spec, such as its name and blocks.
    """
    return AgentSpec(
        agent_type=agent_type,
        system=chosen_system(None, prompt_key, runtime.settings.data_dir),
        model=agent.model,
        embedding=agent.embedding,
        model_settings=agent.model_settings,
        context_window=agent.context_window,
        timezone=agent.timezone,
        beginning=(),
        **fields,
    )


def _make(tx: Transaction, runtime: Runtime, scope: Scope, state: AgentState) -> Group:
    """Create the sleeptime agent of an agent, and the group of both."""
    agent = state.agent
    now = tx.clock.now()
    model_info = runtime.organization_providers.known(agent.organization_id).get(agent.model).info
    if agent.agent_type == "voice_convo_agent":
        pair = _VOICE
    else:
        pair = _USUAL
    persona = BlockSpec(
        label="memory_persona",
        description="How this agent works on the memory of the other agent.",
        value=text(pair.persona),
        read_only=True,  # it defines this agent, and says nothing about a person
    )
    spec = spec_beside(
        runtime,
        agent,
        pair.agent_type,
        TRAITS[pair.agent_type].prompt_key,
        name=f"{agent.name}-sleeptime",
        metadata={"course": agent.course} if agent.course else {},
        settings={SLEEPS_FOR: agent.id, **pair.settings},
        blocks=(persona,),
    )
    sleeper = insert_agent(
        tx, runtime, Scope(scope.organization_id, user_id=scope.user_id), spec, model_info
    ).agent
    if state.user_ids:
        keep_to(tx, scope, sleeper.id, state.user_ids)
    group = Group(
        id=new_id("group"),
        organization_id=agent.organization_id,
        agent_ids=(sleeper.id,),
        manager_agent_id=agent.id,
        created_by=scope.user_id,
        created_at=now,
        updated_at=now,
        **pair.group,
    )
    return service.store_new(tx, scope, group, [sleeper])


FOLLOWER = PairFollower()
