"""The tool by which a supervisor asks all members of its group at once.

It exists only in the turns of a talk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from ricordo.agents.conversations import DEFAULT, open_conversation
from ricordo.agents.request import (
    NewMessage,
)
from ricordo.agents.turn import Answer, collect
from ricordo.domain.message import Part, TextPart
from ricordo.domain.tool import ToolRule
from ricordo.errors import Invalid, RicordoError, require_others_failure
from ricordo.features.groups.agent_calls import answer_texts
from ricordo.features.groups.talk_plan import Speaker, TalkPlan
from ricordo.features.groups.talk_prompts import message_of_supervisor
from ricordo.runtime import Runtime
from ricordo.storage import messages
from ricordo.tools.toolbox import ServerTool, ToolContext

if TYPE_CHECKING:  # the talk imports this module
    from ricordo.features.groups.talk import Talk

ASK_ALL = "send_message_to_all_agents_in_group"
AT_ONCE = 50
_SECONDS = 1200.0
# The tool rules let the supervisor ask once and then answer.
SUPERVISOR_RULES = (
    ToolRule(ASK_ALL, "run_first"),
    ToolRule(ASK_ALL, "max_count_per_step", options={"max_count_limit": 1}),
)
AskAll = Callable[[ToolContext, str], Awaitable[list[str]]]
# The function by which the tool asks the group of the running talk.
SUPERVISED: ContextVar[AskAll | None] = ContextVar("SUPERVISED", default=None)


async def send_message_to_all_agents_in_group(context: ToolContext, message: str) -> list[str]:
    """Send one message to every agent of your group, and get all their answers.

    Args:
        message: What all of them are asked. They see nothing else of this conversation, so say all
            that they need to know.
    """
    ask = SUPERVISED.get()
    if ask is None:
        raise Invalid("This tool only works in a talk with a group that you supervise.")
    return await ask(context, message)


# `acts_outside` is not set. If the process is killed, the call is rolled back with its step and
# made again. No member gets its message twice.
TOOL = ServerTool(send_message_to_all_agents_in_group, "letta_multi_agent_core", is_stored=False)


async def ask_all(talk: "Talk", plan: TalkPlan, context: ToolContext, message: str) -> list[str]:
    """Ask all members at once; return a JSON text for each, in their order.

    Args:
        talk: The running talk.
        plan: Its plan, which names the members and the supervisor.
        context: The supervisor's call of the tool. Its results become untrusted if an answer is.
        message: The question that the supervisor wrote. A member that was asked before a kill
            answers the earlier question.

    Returns:
        For each member an object with `agent_id`, and as `response` its texts. The last text
        explains a failure.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(member: Speaker) -> Answer | list[str]:
        async with gate:
            try:
                async with asyncio.timeout(_SECONDS):
                    return await _ask(talk, plan, member, context=context, message=message)
            except TimeoutError:
                return [f"<error: no answer within {_SECONDS:g} seconds>"]
            except RicordoError as error:
                require_others_failure(error)
                return [f"<error: {error}>"]

    answers = [
        replace(answer, messages=tuple(context.readable(answer.messages)))
        if isinstance(answer, Answer)
        else answer
        for answer in await asyncio.gather(*(ask(member) for member in plan.members))
    ]
    texts = [
        orjson.dumps(
            {
                "agent_id": member.id,
                "response": answer if isinstance(answer, list) else answer_texts(answer),
            }
        ).decode()
        for member, answer in zip(plan.members, answers, strict=True)
    ]
    context.quoted.is_untrusted |= any(
        message.is_untrusted
        for answer in answers
        if isinstance(answer, Answer)
        for message in answer.messages
    )
    return texts


async def _ask(
    talk: "Talk", plan: TalkPlan, member: Speaker, *, context: ToolContext, message: str
) -> Answer:
    runtime: Runtime = context.runtime
    manager = plan.manager or member
    otid = f"{plan.key}-{member.id}"
    conversation = await open_conversation(runtime, talk.scope, DEFAULT, member.id)
    earlier = await runtime.store.read(lambda tx: messages.by_otids(tx, conversation.id, [otid]))
    # After a kill the supervisor may phrase its message differently; then the first message to a
    # member counts.
    parts: tuple[Part, ...] = (TextPart(message_of_supervisor(manager.name, manager.id, message)),)
    question = NewMessage(
        "system",
        earlier[0].parts if earlier else parts,
        otid,
        name=manager.name,
        sender_id=manager.id,
        group_id=plan.group_id,
        is_untrusted=context.step.is_untrusted(),
        egress=context.clearance.label,
    )
    request = talk.request_for(
        member,
        [question],
        lambda record, run_id: record.with_asked(member.id, run_id),
        overrides=talk.members_overrides,
        callers=(*context.step.callers, manager.id),
    )
    turn = await talk.begin(request)
    try:
        return await collect(turn)
    except asyncio.CancelledError:
        await turn.cancel()
        raise
