"""In whose name, and in what circumstances, a step of a turn edits memory; and what of memory it had before it."""

from ricordo.agents.request import NewMessage, TurnContext, TurnRequest
from ricordo.domain.agent import Conversation
from ricordo.domain.clock import SECOND
from ricordo.domain.message import Message
from ricordo.memory.edit_guard import EditGuard, GuardSources, search_results
from ricordo.memory.schemas import schemas_in
from ricordo.memory.working_memory import WorkingMemory
from ricordo.runtime import Runtime
from ricordo.settings import Settings

DAY = 86_400 * SECOND


def memory_of(runtime: Runtime, turn: TurnContext) -> WorkingMemory:
    return WorkingMemory(turn.state, guard_of(turn), schemas_in(runtime.settings.data_dir))


def said_in(turn: TurnContext) -> tuple[str, ...]:
    """What the conversation's user said in this turn, which began before the calls that waited for an answer."""
    begins = turn.first
    if turn.approval:
        begins = min(begins, len(turn.window) - 1)  # a compaction may have left nothing of the turn
    while turn.approval and begins > 1 and not _is_said(turn.window[begins]):
        begins -= 1
    return tuple(one.text for one in turn.window[begins:] if _is_said(one) and not one.is_untrusted)


def guard_of(turn: TurnContext) -> EditGuard:
    """What keeps the agent from filing what it only looked up, or its own instructions."""

    def read() -> GuardSources:
        system = (turn.state.agent.system, turn.request.system or "")
        # A quote, by which memory is written, has to be of this turn; that the words are hers is true for longer.
        in_view = [one.text for one in turn.window if _is_said(one) and not one.is_untrusted]
        recalled, again = (search_results(turn.window, said_by_user=by_user) for by_user in (False, True))
        return GuardSources(system, recalled, said_in(turn), in_view, again)

    return EditGuard(read)


def is_others(said: NewMessage, request: TurnRequest, conversation: Conversation) -> bool:
    """Whether somebody else than the conversation's user says this: another sender, or, where none is named, another name."""
    if said.role != "user":
        return False
    scope = request.scope
    users = {scope.subject_id, conversation.user_id} - {None} or {scope.user_id}
    if said.sender_id:
        return said.sender_id not in users
    return bool(said.name) and said.name not in users | {scope.user_name}


def _is_said(message: Message) -> bool:
    return message.role == "user" and not message.is_event


def expiry_of(settings: Settings) -> int | None:
    """How long proposals wait, in microseconds; None: for ever."""
    return int(settings.proposal_expiry * DAY) or None


def is_untrusted(turn: TurnContext) -> bool:
    is_read = any(message.is_untrusted for message in turn.window)
    return is_read or any(block.is_untrusted for block in turn.state.blocks)
