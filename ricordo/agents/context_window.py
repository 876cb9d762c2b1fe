"""The context window of a running turn, and the changes that are not stored yet."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ricordo.domain.message import Message, TextPart


@dataclass(slots=True)
class ContextWindow:
    """The messages in context, the system message first.

    Attributes:
        prompt_key: Names the prompt from which the system message was rendered.
        first: The index where the turn's own messages begin.
        unsaved: The number of stored messages that the stored window lacks.
        delayed: Messages that came with an answer to calls, until the calls have their results.
        is_resumed: The turn continues after calls that waited for their answer.
        has_new_system: The system message differs from the stored one.
    """

    messages: list[Message]
    prompt_key: str
    first: int = 0
    unsaved: int = 0
    delayed: list[Message] = field(default_factory=list)
    is_resumed: bool = False
    has_new_system: bool = False

    @property
    def waiting(self) -> Message | None:
        """The last message, if its calls wait for an answer."""
        if self.messages and self.messages[-1].is_waiting:
            return self.messages[-1]
        return None

    def append_input(self, preceding: Sequence[Message], new_messages: Sequence[Message]) -> None:
        """Append the turn's stored input; messages sent with an approval follow the results."""
        self.first = len(self.messages)
        self.unsaved = len(preceding) + len(new_messages)
        self.messages += preceding
        if self.is_resumed:
            self.delayed = list(new_messages)
        else:
            self.messages += new_messages

    def replace_system(self, text: str, key: str, now: int) -> None:
        """Put another text into the system message."""
        system = self.messages[0]
        self.messages[0] = replace(
            system, parts=(TextPart(text),), created_at=system.created_at or now
        )
        self.prompt_key = key
        self.has_new_system = True

    def with_step(self, new_messages: Sequence[Message]) -> list[Message]:
        """Return the messages as they are once these of a step are saved."""
        has_results = any(message.role == "tool" for message in new_messages)
        return [*self.messages, *new_messages, *(self.delayed if has_results else ())]

    def append_saved(self, new_messages: Sequence[Message]) -> None:
        """Append the messages of a saved step."""
        self.messages = self.with_step(new_messages)
        if any(message.role == "tool" for message in new_messages):
            self.delayed = []
        self.unsaved = 0
        self.has_new_system = False

    def replace(self, messages: Sequence[Message]) -> None:
        """Put the messages that a compaction saved in place of these."""
        own = self.messages[self.first : self.first + 1]
        self.messages = list(messages)
        self.first = messages.index(own[0]) if own and own[0] in messages else min(2, len(messages))
        self.has_new_system = False

    def evicted_count(self, message_count: int) -> int:
        """Return how many of a conversation's messages are outside the window."""
        return max(0, message_count + self.unsaved - len(self.messages))

    def turn_messages(self) -> Sequence[Message]:
        """Return the messages of this turn.

        Messages before calls that waited for an answer belong to it.
        """
        begins = self.first
        if self.is_resumed:
            # A compaction may have left nothing of the turn.
            begins = min(begins, len(self.messages) - 1)
            while begins > 1 and not self.messages[begins].is_said:
                begins -= 1
        return self.messages[begins:]


def user_texts_in(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the texts of the conversation's user in these messages."""
    return tuple(
        message.text for message in messages if message.is_said and not message.is_untrusted
    )
