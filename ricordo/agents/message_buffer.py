"""The window of an agent that keeps few messages in view. Pure.

Agents that speak aloud have one. If a turn ends with more than the greatest number of messages in
the window, the oldest leave it until the least number is left, starting at a user's message. They
stay in the history, where an agent that works on this agent's memory reads them.
"""

from collections.abc import Sequence

from ricordo.domain.agent import Agent
from ricordo.domain.message import Message


def first_kept(window: Sequence[Message], agent: Agent) -> int:
    """Return the index from which messages stay in the window.

    It is 1, behind the system message, if all messages stay.
    """
    buffer = agent.message_buffer
    if buffer is None or len(window) <= buffer[0]:
        return 1
    first = max(1, len(window) - buffer[1])
    users = [index for index, message in enumerate(window) if index and message.role == "user"]
    later = [index for index in users if index >= first]
    # A turn that alone is longer than the buffer stays whole.
    if later:
        return later[0]
    return (users or [first])[-1]


def evicted(window: Sequence[Message], agent: Agent) -> Sequence[Message]:
    """Return the messages that leave the window when the turn ends."""
    return window[1 : first_kept(window, agent)]
