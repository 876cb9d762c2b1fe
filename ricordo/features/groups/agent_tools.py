"""Tools by which an agent sends messages to others.

Their results are texts in Python notation, as clients expect.
"""

from collections.abc import Sequence
from typing import Any

from ricordo.domain.agent import AgentState
from ricordo.domain.scope import Scope
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT
from ricordo.errors import RicordoError, require_others_failure
from ricordo.features.groups.agent_calls import (
    ANSWERED,
    ONE_WAY,
    ask,
    caller_of,
    new_request,
    require_may_ask,
)
from ricordo.features.groups.agent_jobs import delivery_of
from ricordo.storage import agent_lookup, agents
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext

MOST_ASKED = 100  # agents of one call
_LONGEST_ANSWER = 20_000  # characters of one agent's answer
_CUT = " … [the rest was cut]"
# A wire fact of the retired Letta V1 server.
SENT = "Successfully sent message"


async def send_message_to_agent_and_wait_for_reply(
    context: ToolContext, message: str, other_agent_id: str
) -> str:
    """Send a message to another agent and wait for its answer, which is the result.

    Args:
        message: What the other agent shall read. It knows nothing of this conversation.
        other_agent_id: The id of the other agent, which begins with "agent-".
    """
    request = await new_request(context, other_agent_id, message, ANSWERED)
    texts = await ask(context, request)
    limit = _limit_of_each(context, "send_message_to_agent_and_wait_for_reply", 1)
    return repr(_fitted(request.agent_id, texts, limit))


async def send_message_to_agents_matching_tags(
    context: ToolContext, message: str, match_all: list[str], match_some: list[str]
) -> str:
    """Send a message to all agents with certain tags, one after the other, and wait for their
    answers.

    Args:
        message: What the other agents shall read. They know nothing of this conversation.
        match_all: Tags that an agent must have, each of them. An empty list asks for none.
        match_some: Tags of which an agent must have one. An empty list asks for none.
    """  # noqa: D205 - the model reads this sentence
    require_may_ask(context)
    scope = caller_of(context)
    own_id = context.state.agent.id
    others = await context.store.read(
        lambda tx: _matching(tx, scope, own_id, match_all=match_all, match_some=match_some)
    )
    answers = [
        (agent_id, await _ask_or_report_error(context, agent_id, message)) for agent_id in others
    ]
    limit = _limit_of_each(context, "send_message_to_agents_matching_tags", len(answers))
    return repr([_fitted(agent_id, texts, limit) for agent_id, texts in answers])


async def send_message_to_agent_async(
    context: ToolContext, message: str, other_agent_id: str
) -> str:
    """Send a message to another agent without waiting for an answer: none will come.

    Args:
        message: What the other agent shall read. It knows nothing of this conversation.
        other_agent_id: The id of the other agent, which begins with "agent-".
    """
    context.step.jobs.append(
        delivery_of(await new_request(context, other_agent_id, message, ONE_WAY))
    )
    return SENT


# The first two tools start turns of other agents, which are saved even if the calling step fails.
TOOLS = (
    ServerTool(
        send_message_to_agent_and_wait_for_reply, "letta_multi_agent_core", acts_outside=True
    ),
    ServerTool(send_message_to_agents_matching_tags, "letta_multi_agent_core", acts_outside=True),
    ServerTool(send_message_to_agent_async, "letta_multi_agent_core"),
)


async def _ask_or_report_error(context: ToolContext, agent_id: str, message: str) -> list[str]:
    try:
        return await ask(context, await new_request(context, agent_id, message, ANSWERED))
    except RicordoError as error:
        require_others_failure(error)
        return [f"<error: {error}>"]


def _matching(
    tx: Transaction,
    scope: Scope,
    own_id: str,
    *,
    match_all: Sequence[str],
    match_some: Sequence[str],
) -> list[str]:
    """Return the ids of the first `MOST_ASKED` agents with these tags, oldest first.

    Only agents that the caller may use are returned. The sender is excluded. If no tags are given,
    hidden agents and sleeptime agents are excluded too.
    """
    conditions = [agent_lookup.is_other_than(own_id)]
    if match_some:
        conditions.append(agent_lookup.has_any_tag(match_some))
    is_any = not (match_all or match_some)
    listed: list[str] = []
    after: str | None = None
    while len(listed) < MOST_ASKED:
        page = Page(MOST_ASKED, after=after, order="asc")
        states = agents.page(tx, scope, page, *conditions, tags=list(match_all), all_tags=True)
        listed += [state.agent.id for state in states if not (is_any and _is_in_background(state))]
        if len(states) < MOST_ASKED:
            break
        after = states[-1].agent.id
    return listed[:MOST_ASKED]


def _is_in_background(state: AgentState) -> bool:
    return state.agent.hidden or "sleeps_for" in state.agent.settings


def _limit_of_each(context: ToolContext, name: str, count: int) -> int:
    """Return how many characters each of `count` answers may have in this tool's result."""
    limit = next(
        (tool.return_limit for tool in context.state.tools if tool.name == name),
        DEFAULT_RETURN_LIMIT,
    )
    return min(_LONGEST_ANSWER, limit // max(count, 1) - len(", []"))


def _fitted(agent_id: str, texts: Sequence[str], limit: int) -> dict[str, Any]:
    """Return the answer in at most `limit` characters, with its longest texts cut first."""
    response = list(texts)
    answer = {"agent_id": agent_id, "response": response}
    while (excess := len(repr(answer)) - limit) > 0 and response != [_CUT]:
        longest = max(range(len(response)), key=lambda index: len(response[index]))
        shorter = response[longest].removesuffix(_CUT)[: -(excess + len(_CUT))]
        response[longest] = shorter + _CUT
        if not shorter and len(response) > 1:
            del response[longest]
    return answer
