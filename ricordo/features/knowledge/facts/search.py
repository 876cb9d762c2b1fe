"""Search for facts that share words with a query; current facts come before ended ones."""

from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.memory.line_scores import line_scores
from ricordo.storage.engine.store import Transaction

_MOST_SEARCHED = 2_000
# The score of an ended fact is multiplied by this.
_ENDED = 0.8


def matching_facts(
    tx: Transaction, user_id: str, query: str, limit: int
) -> list[tuple[UserFact, float]]:
    """Return the user's facts that match a query, best first, each with its score from 0 to 1."""
    facts = queries.of_states(tx, user_id, "current", "ended", limit=_MOST_SEARCHED)
    scores = line_scores([fact.sentence for fact in facts], query)
    scored = [
        (fact, score * (_ENDED if fact.state == "ended" else 1))
        for fact, score in zip(facts, scores, strict=True)
        if score
    ]
    return sorted(scored, key=lambda pair: -pair[1])[:limit]
