"""The window of an agent that keeps only a few messages in view. Pure.

Agents of voice conversations have one. If a turn leaves more than the maximum in the window, the
oldest leave until the minimum is reached. The window then starts at a user's message. Messages that
leave stay in the history, where the sleep-time agent reads them.
"""

from collections.abc import Sequence

from ricordo.domain.agent import Agent
from ricordo.domain.message import Message


def first_kept(window: Sequence[Message], agent: Agent) -> int:
    """Return the index of the first message that stays in the window.

    It is 1, right after the system message, if all messages stay.
    """
    buffer = agent.message_buffer
    if buffer is None or len(window) <= buffer[0]:
        return 1
    first = max(1, len(window) - buffer[1])
    users = [index for index, message in enumerate(window) if index and message.role == "user"]
    later = [index for index in users if index >= first]
    # A turn that alone exceeds the buffer stays whole.
    if later:
        return later[0]
    return (users or [first])[-1]


def evicted(window: Sequence[Message], agent: Agent) -> Sequence[Message]:
    """Return the messages that leave the window when the turn ends."""
    return window[1 : first_kept(window, agent)]
