"""Find facts that match a query, by their words or by the messages on which they are based.

Facts are not in the index, but these messages are. So a fact is also found if one of its messages
is among the first hits of a search. Facts that have ended get a lower score.
"""

from collections.abc import Sequence

from ricordo.domain.known_facts import FactQuery, KnownFact
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.knowledge.facts.wording import text_of
from ricordo.memory.line_scores import line_scores
from ricordo.storage.engine.store import Transaction

_MOST_SEARCHED = 2_000
# The score of an ended fact is multiplied by this factor.
_ENDED = 0.8
# The most facts that a search of messages shows with its hits, and their least score. A fact is
# much shorter than a message, so a weak match costs little (docs/internals/retrieval.md). An ended
# fact that only the last of `_HITS` finds has just this score.
MOST_BESIDE = 8
_LEAST_SCORE = 0.04
# A message finds its facts only if it is among this many first hits. The last of these hits gives a
# fact the score `_STEP`, and each better one gives `_STEP` more.
_HITS = 6
_STEP = 0.05


def matching_facts(
    tx: Transaction, user_id: str, query: str, limit: int
) -> list[tuple[UserFact, float]]:
    """Return the user's facts that match a query, best first, each with a score from 0 to 1.

    Args:
        tx: The transaction.
        user_id: The user.
        query: The words to look for.
        limit: The most facts.
    """
    facts = queries.of_states(tx, user_id, "current", "ended", limit=_MOST_SEARCHED)
    return ranked(facts, query)[:limit]


def ranked(
    facts: Sequence[UserFact], query: str, message_ids: Sequence[str] = ()
) -> list[tuple[UserFact, float]]:
    """Return the facts that match a query, best first, each with its score from 0 to 1. Pure.

    Args:
        facts: The facts to compare with the query.
        query: The words to look for.
        message_ids: The best messages for the query, best first. Facts based on them match too.
    """
    by_words = line_scores([fact.sentence for fact in facts], query)
    by_message = {id: _STEP * (_HITS - rank) for rank, id in enumerate(message_ids[:_HITS])}
    scored: list[tuple[UserFact, float]] = []
    for fact, words in zip(facts, by_words, strict=True):
        messages = max(
            (by_message.get(piece.message_id, 0.0) for piece in fact.evidence), default=0
        )
        if score := max(words, messages):
            scored.append((fact, score * (_ENDED if fact.state == "ended" else 1)))
    return sorted(scored, key=lambda pair: -pair[1])


def beside(
    facts: Sequence[UserFact], query: str, message_ids: Sequence[str] = ()
) -> list[UserFact]:
    """Return the facts that match well enough to be shown with the hits, best first. Pure.

    Args:
        facts: The facts to compare with the query.
        query: The words to look for.
        message_ids: As in `ranked`.
    """
    return [fact for fact, score in ranked(facts, query, message_ids) if score >= _LEAST_SCORE]


def beside_hits(tx: Transaction, query: FactQuery) -> list[KnownFact]:
    """Return the facts to show with the hits of a search of messages, best first."""
    facts = queries.of_states(tx, query.user_id, "current", "ended", limit=_MOST_SEARCHED)
    matching = beside(facts, query.text, query.message_ids)
    asked_facts = [fact for fact in matching if _is_asked(fact, query)]
    return [
        KnownFact(
            fact.id,
            text_of(fact),
            fact.said_at,
            fact.evidence[0].quote if fact.evidence else "",
            tuple(dict.fromkeys(piece.message_id for piece in fact.evidence)),
            fact.state == "ended",
            f"/ui/people/{fact.user_id}/facts#{fact.id}",
            egress=fact.egress,
        )
        for fact in asked_facts[:MOST_BESIDE]
    ]


def _is_asked(fact: UserFact, query: FactQuery) -> bool:
    if query.agent_id not in (None, fact.agent_id) and fact.source != "user":
        return False
    is_early = query.start is not None and fact.said_at < query.start
    is_late = query.end is not None and fact.said_at > query.end
    return not is_early and not is_late
