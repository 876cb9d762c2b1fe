"""What a turn is asked for, and the state it works on."""

import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ricordo.domain.agent import AgentState
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Part
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.llm.chat import ChatModel
from ricordo.memory.working import WorkingMemory

DEFAULT_MAX_STEPS = 50


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message as it comes in."""

    role: Literal["user", "system", "assistant"]
    parts: tuple[Part, ...]
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn: these messages, for this agent, in this thread (its default where None).

    `body_hash` names the request as it was sent; with `is_retry` an equal one of the last minutes is taken up again.
    """

    scope: Scope
    agent_id: str
    messages: tuple[NewMessage, ...]
    conversation_id: str | None = None
    max_steps: int = DEFAULT_MAX_STEPS
    streams_tokens: bool = False
    body_hash: str | None = None
    is_retry: bool = False
    request_config: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TurnContext:
    """A running turn's state, which each saved step moves on.

    `window` are the in-context messages, the system message first; `unsaved` counts messages that are stored but not yet in the
    stored window.
    """

    request: TurnRequest
    run: Run
    state: AgentState
    model: ChatModel
    window: list[Message]
    unsaved: int
    prompt_key: str
    prompt_changed: bool = False

    def refresh_system(self, text: str, key: str, now: int) -> None:
        """Give the system message another text; the next save stores it."""
        self.window[0] = replace(self.window[0].with_text(text), created_at=self.window[0].created_at or now)
        self.prompt_key = key
        self.prompt_changed = True


@dataclass(slots=True)
class StepDraft:
    """A step while it is made. Times are nanoseconds; `message_id` is allocated before the model is asked."""

    number: int
    memory: WorkingMemory
    started_at: int
    id: str = field(default_factory=lambda: new_id("step"))
    message_id: str = field(default_factory=lambda: new_id("message"))
    began_ns: int = field(default_factory=time.monotonic_ns)
    first_ns: int | None = None
    model_ns: int = 0
    tools_ns: int = 0
