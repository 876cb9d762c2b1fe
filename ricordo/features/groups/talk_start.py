"""Start of a talk: take the lease, fix the plan, store the input.

All of it happens in one transaction. The talk's run is in a hidden conversation of the group's
leader. That conversation's id is derived from the group, its leader and the user. So a user has
only one running talk with a group, and a message with a known otid is not accepted twice.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import NAMESPACE_URL, uuid5

from ricordo.agents.repeats import (
    input_of,
    require_own_otids,
    same_body,
    same_decision,
    was_cut_off,
)
from ricordo.agents.request import (
    Approval,
    NewMessage,
    TurnRequest,
)
from ricordo.agents.turn_start import (
    NOTHING_WAITS,
    STILL_WAITING,
    answered,
    new_run,
    resolve_conflict,
)
from ricordo.domain.agent import Conversation
from ricordo.domain.clock import SECOND
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Collision, Conflict, Invalid
from ricordo.features.groups import queries
from ricordo.features.groups.records import Group
from ricordo.features.groups.talk_plan import TALKING, Entry, Speaker, TalkPlan
from ricordo.features.groups.talk_queries import add_talks
from ricordo.features.groups.talk_record import (
    TalkRecord,
    answers_elsewhere,
    is_resumed_by_itself,
    is_talk,
)
from ricordo.runtime import Runtime
from ricordo.storage import agents, conversations, messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_ATTEMPTS = 5
NOBODY = "The group has no agents, so it cannot answer. Add some with PATCH /v1/groups/{group_id}."


@dataclass(frozen=True, slots=True)
class StartedTalk:
    """A talk at its start.

    It consists of the run, the request, and the record of earlier turns. `leftover` is the run of
    an earlier talk whose texts some members may have missed.
    """

    run: Run
    request: TurnRequest
    record: TalkRecord
    leftover: Run | None = None


def talk_conversation(scope: Scope, group: Group) -> str:
    """Return the id of the conversation for the user's talks with the group.

    Args:
        scope: The caller, whose user the talks belong to; without a user, all callers share one
            conversation.
        group: The group. Another leader gives another id.

    Raises:
        Invalid: as `require_leader` does.
    """
    name = "/".join((group.id, require_leader(group), scope.subject or ""))
    return f"conv-{uuid5(NAMESPACE_URL, name)}"


def require_leader(group: Group) -> str:
    """Return the id of the agent that leads talks.

    Args:
        group: The group with its members.

    Raises:
        Invalid: No member can speak, the manager is missing, or groups of this kind do not talk.
    """
    if group.manager_type not in TALKING:
        if group.manager_agent_id:
            manager = f", {group.manager_agent_id}"
        else:
            manager = ""
        raise Invalid(
            f"A group of the kind {group.manager_type} takes no messages. Send the message to its "
            f"manager{manager}."
        )
    if not group.agent_ids:
        raise Invalid(NOBODY)
    if group.manager_type != "round_robin" and not group.manager_agent_id:
        raise Invalid(
            f"The {group.manager_type} group has no manager. Create a new group that has one."
        )
    return group.leader_id or ""


async def start_talk(
    runtime: Runtime, group_id: str, request: TurnRequest, answered_run: Run | None = None
) -> StartedTalk | str:
    """Start the talk. If the request was accepted before, return the id of its run.

    Args:
        runtime: The running server.
        group_id: The group.
        request: The messages or the approval. It names the group's leader and the conversation of
            talks.
        answered_run: A member's run that continued after an approval. With it, the talk that waited
            for that member is resumed.

    Raises:
        NotFound: if the caller may not use all agents of the group.
        Invalid: if the group cannot talk, or no call waits for the approval.
        Conflict: while a member waits for an approval, or if no talk waits for `answered_run`.
        Busy: while another talk of this user with the group runs.
    """
    require_own_otids(request)
    repeated: Run | None = None
    for _ in range(_ATTEMPTS):
        try:
            opened = partial(
                _open,
                runtime=runtime,
                group_id=group_id,
                request=request,
                answered_run=answered_run,
            )
            return await runtime.store.write(partial(opened, cut_off=repeated))
        except Collision:
            repeated = await runtime.store.write(lambda tx: resolve_conflict(tx, runtime, request))
            if repeated and not was_cut_off(repeated):
                return repeated.id
    raise Busy()


def _open(
    tx: Transaction,
    *,
    runtime: Runtime,
    group_id: str,
    request: TurnRequest,
    answered_run: Run | None,
    cut_off: Run | None,
) -> StartedTalk:
    """Take the lease, and store the input.

    If an interrupted run already has the input, that run's messages are used.
    """
    scope = request.scope
    group = queries.get(tx, scope, group_id)
    conversation = _conversation(tx, scope, group)
    run = new_run(tx, request)
    runs.open_run(tx, run)
    earlier = same_body(tx, request, other_than=run.id)
    if earlier and (cut_off is None or earlier.id != cut_off.id):
        raise Collision("The same request was accepted before.")
    run = replace(run, user_id=run.user_id or conversation.user_id)
    if conversation.window:  # a failed talk may have left ids in it
        conversations.save_window(tx, conversation.id, (), "", added=0)
    previous = _previous(tx, scope, run)
    if previous and _is_leftover(previous):
        leftover = previous
    else:
        leftover = None
    if cut_off:
        stored = messages.move(tx, input_of(tx, cut_off), run.id)
        if not stored:
            raise Collision("Another run already handles this request.")
        record = TalkRecord.from_json(cut_off.metadata)
        if leftover and leftover.id == cut_off.id:
            leftover = None
        request = _as_stored(request, stored)
    elif answered_run:
        record = _after_answer(tx, answered_run, previous)
        leftover = None
    elif request.approval:
        record, request = _after_approval(tx, request, run, previous, conversation.egress)
        leftover = None
    else:
        _require_no_wait(tx, runtime, scope, previous)
        request = _as_stored(request, _save_input(tx, request, run, group, conversation.egress))
        record = TalkRecord(_plan(tx, scope, group, request.messages[0].otid or run.id))
    run = replace(run, metadata=record.to_json())
    runs.save_metadata(tx, run)
    return StartedTalk(run, request, record, leftover)


def _conversation(tx: Transaction, scope: Scope, group: Group) -> Conversation:
    """Return the conversation for the user's talks; create it if it is missing.

    Raises Collision if another request created it first.
    """
    id = talk_conversation(scope, group)
    leader_id = require_leader(group)
    conversation = conversations.get(tx, id)
    if conversation is None:
        now = tx.clock.now()
        conversation = Conversation(
            id=id,
            organization_id=scope.organization_id,
            agent_id=leader_id,
            user_id=scope.subject,
            hidden=True,
            created_by=scope.user_id,
            created_at=now,
            updated_at=now,
        )
        conversations.insert_one(tx, conversation)
        add_talks(tx, group.id, id)
    return conversation


def _previous(tx: Transaction, scope: Scope, run: Run) -> Run | None:
    newest = runs.page(tx, scope, Page(limit=2), conversation_id=run.conversation_id)
    return next((earlier for earlier in newest if earlier.id != run.id), None)


def _plan(tx: Transaction, scope: Scope, group: Group, key: str) -> TalkPlan:
    """Return the plan of a talk with the group in its present state."""
    speakers: dict[str, Speaker] = {}
    for agent_id in group.everyone:
        if agent := agents.find(tx, scope, agent_id):
            speakers[agent_id] = Speaker(agent.id, agent.name, agent.description or "")
    if not any(agent_id in speakers for agent_id in group.agent_ids):
        raise Invalid(NOBODY)
    return TalkPlan(
        kind=group.manager_type,
        group_id=group.id,
        key=key,
        members=tuple(speakers[agent_id] for agent_id in group.agent_ids if agent_id in speakers),
        manager=speakers.get(group.manager_agent_id or ""),
        description=group.description,
        termination_token=group.termination_token,
        max_turns=group.max_turns,
    )


def _save_input(
    tx: Transaction, request: TurnRequest, run: Run, group: Group, label: str | None
) -> list[Message]:
    """Store the request's messages with the egress label of the talk's conversation.

    The messages are not indexed here, since search finds them in the members' conversations.
    """
    now = tx.clock.now()
    stored = []
    for new_message in request.messages:
        signed = replace(
            new_message, otid=new_message.otid or secrets.token_hex(16), group_id=group.id
        )
        message = signed.signed(
            run.new_message(new_message.role, new_message.parts, now), label=label
        )
        stored.append(replace(message, is_untrusted=new_message.is_untrusted))
    messages.insert_all(tx, stored)
    return stored


def _as_stored(request: TurnRequest, stored: Sequence[Message]) -> TurnRequest:
    """Return the request with its stored messages.

    Each message gets its stored otid, which is the same after a kill.
    """
    new_messages = tuple(NewMessage.of(message) for message in stored if message.role != "approval")
    return replace(request, messages=new_messages)


def _after_approval(
    tx: Transaction, request: TurnRequest, run: Run, paused: Run | None, label: str | None
) -> tuple[TalkRecord, TurnRequest]:
    """Return the record of the talk that the answer resumes, and the stored request.

    Raises Invalid, Collision.
    """
    approval = request.approval
    if paused:
        waiting = _waiting(tx, request.scope, paused)
    else:
        waiting = None
    if approval is None or paused is None or waiting is None:
        if same_decision(tx, request):
            raise Collision("This answer was accepted before.")
        raise Invalid(NOTHING_WAITS)
    if approval.otid and messages.by_otids(tx, run.conversation_id, [approval.otid]):
        raise Collision("This answer was accepted before.")
    parts = answered(waiting, approval).parts
    record = TalkRecord.from_json(paused.metadata)
    now = tx.clock.now()
    group_id = record.plan.group_id
    decision = NewMessage("approval", parts, approval.otid).signed(
        run.new_message("approval", parts, now), label=label
    )
    messages.insert_all(tx, [replace(decision, group_id=group_id)])
    group = queries.get(tx, request.scope, group_id)
    request = _as_stored(request, _save_input(tx, request, run, group, label))
    request = replace(request, approval=Approval(parts, approval.otid))
    talks = (*record.talks, (paused.id, len(record.before)))
    return TalkRecord(record.plan, before=record.entries, talks=talks), request


def _after_answer(tx: Transaction, answered_run: Run, paused: Run | None) -> TalkRecord:
    """Return the record of the talk that waited for this run's agent.

    The talk may also have been interrupted after the answer. Raises Conflict.
    """
    if paused and was_cut_off(paused) and is_resumed_by_itself(paused):
        record = TalkRecord.from_json(paused.metadata)
        if answered_run.id in record.before[-1].run_ids:
            return record
    if paused is None or paused.stop_reason != "requires_approval" or not is_talk(paused):
        raise Conflict("No talk of the group waits for an approval.")
    record = TalkRecord.from_json(paused.metadata)
    run_ids = tuple(run.id for run in answers_elsewhere(tx, paused))
    if answered_run.id not in run_ids:
        raise Conflict("The talk of the group waits for another agent.")
    resumed = Entry(record.entries[-1].agent_id, "resumed", run_ids)
    talks = (*record.talks, (paused.id, len(record.before)))
    return TalkRecord(record.plan, before=(*record.entries, resumed), talks=talks)


def _is_leftover(talk: Run) -> bool:
    """Return True if members may have missed texts of an ended talk.

    That is so if it was interrupted, failed, or was never resumed.
    """
    return is_talk(talk) and (talk.status != "completed" or talk.stop_reason == "requires_approval")


def _require_no_wait(tx: Transaction, runtime: Runtime, scope: Scope, previous: Run | None) -> None:
    """Raise Conflict while a member waits for an approval that has not expired."""
    if previous:
        waiting = _waiting(tx, scope, previous)
    else:
        waiting = None
    if waiting and tx.clock.now() - waiting.created_at < runtime.settings.approval_expiry * SECOND:
        raise Conflict(STILL_WAITING)


def _waiting(tx: Transaction, scope: Scope, talk: Run) -> Message | None:
    """Return the approval request that a talk waits for, or None."""
    if talk.stop_reason != "requires_approval" or not is_talk(talk):
        return None
    entries = TalkRecord.from_json(talk.metadata).entries
    run = runs.find(tx, scope, entries[-1].run_ids[-1])
    if run:
        conversation = conversations.get(tx, run.conversation_id)
    else:
        conversation = None
    if run is None or conversation is None or not conversation.waits:
        return None
    for message in messages.by_ids(tx, conversation.window[-1:]):
        if message.is_waiting and message.run_id == run.id:
            return message
    return None
