"""The request for a turn: new messages, the turn's settings, and its delivery."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.domain.agent import CompactionSettings
from ricordo.domain.egress import join
from ricordo.domain.message import Message, Part, Role, TextPart
from ricordo.domain.model import ToolSchema
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.domain.tool import ClientSkill, ToolRule
from ricordo.prompt.transcript import local_time, task_event
from ricordo.storage.engine.store import Transaction

DEFAULT_MAX_STEPS = 50
# Clients such as Open WebUI search for passages and send them with the question, in a form that
# their operator chooses. The passages are recognized by their XML elements, or by the instruction
# that comes with them. Their authors are unknown.
_ELEMENTS = (
    "context|documents?|document_content|sources?|search_results?|retrieved_\\w+|passages?"
    "|knowledge|user_files"
)
_RETRIEVED = re.compile(
    rf"^[ \t]*<(?:{_ELEMENTS})(?:\s[^<>]*)?>"
    r"|<(?:source|document)\s[^<>]*\b(?:id|index|name)\s*="
    r"|^\#{2,3} Task:[ \t]{0,9}\r?\n\s{0,9}Respond to the user query using the provided context",
    re.MULTILINE | re.IGNORECASE,
)


def holds_retrieved(text: str) -> bool:
    """Return True if the message may hold passages by other authors.

    >>> holds_retrieved('<source id="1" name="plan.pdf">The plan.</source>')
    True
    >>> holds_retrieved("What is a source?")
    False

    Args:
        text: The text of one part of a message.
    """
    return _RETRIEVED.search(text) is not None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A new message.

    Attributes:
        otid: An id that the client chose, unique in the conversation; None for none.
        name: The name of its author, if the client gave one.
        sender_id: The id of its author, if the client gave one.
        is_untrusted: It contains text of others, such as passages of documents.
        egress: The egress label of the texts from which it was made (`domain/egress.py`).
    """

    role: Role
    parts: tuple[Part, ...]
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    is_untrusted: bool = False
    egress: str | None = None

    @classmethod
    def of(cls, message: Message) -> "NewMessage":
        """Return a stored message as the input of another turn."""
        return cls(
            message.role,
            message.parts,
            otid=message.otid,
            name=message.name,
            sender_id=message.sender_id,
            group_id=message.group_id,
            is_untrusted=message.is_untrusted,
            egress=message.egress,
        )

    def signed(
        self, message: Message, *, is_untrusted: bool = False, label: str | None = None
    ) -> Message:
        """Return the message with this one's sender, group, otid and egress label.

        Args:
            message: The unsaved message that was made from this one.
            is_untrusted: Whether the message is stored as untrusted. It replaces this message's
                mark; see `is_others`.
            label: The egress label of the conversation, if the message was made by a run; None or
                "" for none. It is joined with those of both messages.
        """
        egress = self.egress
        if label or message.egress:
            egress = join(egress, message.egress, label)
        return replace(
            message,
            is_untrusted=is_untrusted,
            egress=egress,
            otid=self.otid,
            name=self.name,
            sender_id=self.sender_id,
            group_id=self.group_id,
        )

    def is_others(self, scope: Scope, user_id: str | None) -> bool:
        """Return whether the text is by another author than the conversation's user.

        The author of a user message differs if it names another sender, or if it has no sender and
        another name. A message of any role that is untrusted or holds retrieved passages also
        counts as another author's.

        Args:
            scope: The caller.
            user_id: The user of the conversation, or None. The caller's user counts as its author
                too; if there is neither, the author is the user who asks.
        """
        texts = (part.text for part in self.parts if isinstance(part, TextPart))
        if self.is_untrusted or any(map(holds_retrieved, texts)):
            return True
        if self.role != "user":
            return False
        users = {scope.subject, user_id} - {None} or {scope.user_id}
        if self.sender_id:
            return self.sender_id not in users
        return bool(self.name) and self.name not in users | {scope.user_name}


def task_message(name: str, instructions: str, *, at: int, timezone: str, otid: str) -> NewMessage:
    """Return the message that asks an agent to carry out a background task.

    Args:
        name: The task's name.
        instructions: The text that says what to do.
        at: The time of the task, in microseconds.
        timezone: The agent's time zone, in which the model reads the time.
        otid: The message's id, unique in the conversation.
    """
    event = task_event(name, instructions, local_time(at, timezone))
    return NewMessage("user", (event,), otid=otid)


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to waiting calls: ApprovalParts, and ToolReturnParts of tools of the client.

    Older clients decide on all calls at once, with `approves` and `reason`; `request_id` is the
    message that asked.
    """

    parts: tuple[Part, ...] = ()
    otid: str | None = None
    approves: bool | None = None
    reason: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class TurnOverrides:
    """The turn's settings: some replace the agent's, others are added to them.

    Attributes:
        model: The handle of a model that replaces the agent's.
        system: A system prompt that replaces the agent's.
        response_format: A response format that replaces the agent's.
        instructions: Text after the system message.
        max_steps: The most steps of the turn. The course of a tutoring agent may allow fewer.
        client_tools: Tools that the client runs.
        client_skills: Skills that the prompt shows.
        wanted_tools: Tools of the client; the agent must call one of them before the turn ends.
        only_tools: Names of stored tools that replace the agent's.
        added_tools: Names of tools that the server has but does not store; `added_rules` are their
            rules.
        streams_tokens: Ask the provider to stream tokens.
        logprobs: Return probabilities of tokens, with this number of alternatives; None: none.
    """

    model: str | None = None
    system: str | None = None
    response_format: dict[str, Any] | None = None
    instructions: str = ""
    max_steps: int = DEFAULT_MAX_STEPS
    client_tools: tuple[ToolSchema, ...] = ()
    client_skills: tuple[ClientSkill, ...] = ()
    wanted_tools: frozenset[str] = frozenset()
    only_tools: tuple[str, ...] | None = None
    added_tools: tuple[str, ...] = ()
    added_rules: tuple[ToolRule, ...] = ()
    streams_tokens: bool = False
    logprobs: int | None = None


AS_THE_AGENT_IS = TurnOverrides()


@dataclass(frozen=True, slots=True)
class TurnDelivery:
    """Settings for the turn's record and for the delivery of its result.

    Attributes:
        is_background: No reader waits for the answer.
        purpose: The run's purpose (see domain/run.py). `callback`, `metadata` and
            `request_config` are stored with the run too.
        body_hash: The hash of the request's body as sent.
        is_retry: The request may repeat an earlier one. If an equal request came within the last
            ten minutes, its run is returned.
        also_save: Called in the transaction that starts the run, and in the transaction that ends
            it. The latter passes the turn's messages if a step ended the run.
        callers: The agents whose calls led to this turn, from the first one on.
        planned_run: The id of a run that was announced to the client. The turn becomes that run if
            the run has not begun yet.
    """

    is_background: bool = False
    purpose: str | None = None
    callback: dict[str, Any] = field(default_factory=dict)
    request_config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    body_hash: str | None = None
    is_retry: bool = False
    also_save: Callable[[Transaction, Run, Sequence[Message]], None] | None = None
    callers: tuple[str, ...] = ()
    planned_run: str | None = None


TO_THE_CALLER = TurnDelivery()


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """The request for one turn: messages, or an answer to waiting calls.

    Attributes:
        conversation_id: The conversation's id; None for the agent's default conversation.
        compaction: With these settings, the turn only shrinks the window.
        overrides: Settings for this turn alone.
        delivery: The record of the run, and the receivers of its result.
    """

    scope: Scope
    agent_id: str
    messages: tuple[NewMessage, ...] = ()
    approval: Approval | None = None
    conversation_id: str | None = None
    compaction: CompactionSettings | None = None
    overrides: TurnOverrides = AS_THE_AGENT_IS
    delivery: TurnDelivery = TO_THE_CALLER
