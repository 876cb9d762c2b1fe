"""Facts whose evidence is forgotten: a fact without remaining quotes is deleted.

A model may have phrased a fact differently, so a search for the forgotten words may not find it. So
facts are deleted together with the messages on which they are based.
"""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.domain.message import Message
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.evidence import stands_in
from ricordo.features.knowledge.facts.records import Evidence, UserFact
from ricordo.features.knowledge.facts.tables import user_facts
from ricordo.features.memory_care.forgetting.belonging_queries import Belongings
from ricordo.features.memory_care.forgetting.needle import MARK, Needle
from ricordo.features.memory_care.forgetting.source_queries import portion
from ricordo.features.memory_care.forgetting.state import Forgetting, Item
from ricordo.storage import messages
from ricordo.storage.engine.store import Transaction


class UnfoundedFacts:
    """The source of facts whose quotes were removed from messages.

    They are not listed for a choice, but deleted together with any item that is forgotten.
    """

    follows = True

    def find(
        self,
        tx: Transaction,
        owned: Belongings,
        needle: Needle,  # noqa: ARG002
        after: int,
    ) -> tuple[list[Item], int | None]:
        """Return the facts among the next rows of which a quote was forgotten.

        Args:
            tx: The transaction.
            owned: The area of the search, of which only the user counts.
            needle: Not used.
            after: The position from the previous call; 0 at the start.

        Returns:
            The items, and the next position; None at the end.
        """
        rows, position = portion(tx, user_facts, queries.ids_of_user(owned.user_id), after)
        facts = queries.by_ids(tx, [row.id for row in rows]) if rows else []
        items = [
            Item("fact", fact.id, "exact", (), created_at=fact.created_at, follows=True)
            for fact, standing in _with_standing(tx, facts)
            if len(standing) < len(fact.evidence)
        ]
        return items, position

    def remove(
        self, tx: Transaction, owned: Belongings, forgetting: Forgetting, items: Sequence[Item]
    ) -> None:
        """Delete the facts without remaining quotes, and shorten the evidence of the others.

        Args:
            tx: The transaction.
            owned: The area of the removal; facts of other users are not changed.
            forgetting: The state of the work, whose counts are changed.
            items: Items that `find` returned.
        """
        facts = queries.by_ids(tx, [item.key for item in items])
        users_facts = [fact for fact in facts if fact.user_id == owned.user_id]
        for fact, standing in _with_standing(tx, users_facts):
            if not standing:
                forgetting.removed[user_facts.name] += queries.remove(tx, fact)
            elif len(standing) < len(fact.evidence):
                queries.update(tx, replace(fact, evidence=standing))
                forgetting.changed[user_facts.name] += 1


def _with_standing(
    tx: Transaction, facts: Sequence[UserFact]
) -> list[tuple[UserFact, tuple[Evidence, ...]]]:
    """Return the facts that are based on messages, each with the evidence that still exists."""
    founded = [fact for fact in facts if fact.evidence]
    ids = {piece.message_id for fact in founded for piece in fact.evidence}
    stored = {message.id: message for message in messages.by_ids(tx, sorted(ids))} if ids else {}
    return [
        (fact, tuple(piece for piece in fact.evidence if not _is_taken_out(piece, stored)))
        for fact in founded
    ]


def _is_taken_out(piece: Evidence, stored: dict[str, Message]) -> bool:
    """Return True if the message still exists, but a mark has replaced the quote."""
    message = stored.get(piece.message_id)
    return message is not None and MARK in message.spoken and not stands_in(piece.quote, message)


SOURCE = UnfoundedFacts()
