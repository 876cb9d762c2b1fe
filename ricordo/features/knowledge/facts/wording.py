"""Sentences about facts: when they ended, and which facts they would replace. Pure."""

from ricordo.domain.clock import to_datetime
from ricordo.features.knowledge.facts.records import UserFact


def text_of(fact: UserFact) -> str:
    """Return the fact's sentence. If the fact has ended, the sentence says when."""
    if fact.state == "ended" and fact.holds_until is not None:
        return f"Until {to_datetime(fact.holds_until):%d %B %Y}: {fact.sentence}"
    return fact.sentence


def change_of(fact: UserFact, replaced: UserFact | None) -> str | None:
    """Return the sentence that a proposed fact would replace; None if it replaces none."""
    if fact.state != "proposed" or replaced is None or fact.relation is None:
        return None
    return f"replace: {_dated(replaced)} -> {_dated(fact)}"


def _dated(fact: UserFact) -> str:
    is_named = fact.value and fact.value not in ("yes", "no")
    sentence = fact.value if is_named else fact.sentence
    return f"{sentence} ({to_datetime(fact.said_at):%B %Y})"
