"""Facts about a user, as a search of messages shows them with its hits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FactQuery:
    """A search for facts that fit a search of messages and its hits.

    Attributes:
        user_id: The user whom the facts are about.
        text: The words of the search.
        message_ids: The best hits, best first. Facts based on one of them match too.
        agent_id: Only facts that were said to this agent, or written by the user. None: of any.
        start: Only facts stated from this time on, in microseconds.
        end: Only facts stated up to this time, in microseconds.
    """

    user_id: str
    text: str
    message_ids: tuple[str, ...] = ()
    agent_id: str | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class KnownFact:
    """A fact about a user, shown with the hits of a search.

    Attributes:
        id: The id of the fact.
        text: The fact in words. If the fact has ended, the text says until when it held.
        said_at: When it was said, in microseconds.
        quote: The user's words on which it rests; empty if the user wrote the fact.
        message_ids: The messages on which it rests.
        has_ended: It does not hold any more.
        path: The page that shows the fact with its evidence.
        egress: The label of its egress policies.
    """

    id: str
    text: str
    said_at: int
    quote: str = ""
    message_ids: tuple[str, ...] = ()
    has_ended: bool = False
    path: str = ""
    egress: str | None = None
