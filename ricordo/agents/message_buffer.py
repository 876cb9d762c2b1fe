"""The window of an agent that keeps few messages in view, as one that speaks aloud: pure.

Once a turn has ended with more than the greatest number in the window, the oldest leave it until the least number is left, from
a user's message on. They stay in the history; an agent that works on this one's memory reads them.
"""

from collections.abc import Sequence

from ricordo.domain.agent import Agent
from ricordo.domain.message import Message


def first_kept(window: Sequence[Message], agent: Agent) -> int:
    """Return the place in the window from which messages stay; 1, right after the system message, where all do."""
    buffer = agent.message_buffer
    if buffer is None or len(window) <= buffer[0]:
        return 1
    first = max(1, len(window) - buffer[1])
    users = [place for place, message in enumerate(window) if place and message.role == "user"]
    later = [place for place in users if place >= first]
    # A turn that alone is longer than the buffer stays whole.
    if later:
        return later[0]
    return (users or [first])[-1]


def evicted(window: Sequence[Message], agent: Agent) -> Sequence[Message]:
    """Return the messages that leave the window when the turn ends."""
    return window[1 : first_kept(window, agent)]
