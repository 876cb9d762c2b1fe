"""Labels of egress policies on stored texts (`domain/egress.py`)."""

from sqlalchemy import Column, Table, select, update

from ricordo.domain.egress import join
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations, messages, passages


def label_conversation(
    tx: Transaction, conversation_id: str, old: str | None, new: str | None
) -> None:
    """Give a conversation this label, and its stored messages too.

    A message without a label, or with exactly the old label, gets the new label. A message with
    further sources keeps the limits of all its sources.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        old: Its label until now; None: it had no policy.
        new: Its new label; None: it has no policy any more.
    """
    tx.run(update(conversations).where(conversations.c.id == conversation_id).values(egress=new))
    _relabel(tx, messages, messages.c.conversation_id, conversation_id, old, new)


def label_archive(tx: Transaction, archive_id: str, old: str | None, new: str | None) -> None:
    """Give the passages of an archive this label, as `label_conversation` does.

    Args:
        tx: The transaction.
        archive_id: The archive.
        old: The label until now; None: there was no policy.
        new: The new label; None: there is no policy any more.
    """
    _relabel(tx, passages, passages.c.archive_id, archive_id, old, new)


def _relabel(
    tx: Transaction, table: Table, owner: Column[str], id: str, old: str | None, new: str | None
) -> None:
    # There are few different labels, so each takes one statement.
    labels = [row.egress for row in tx.all(select(table.c.egress).where(owner == id).distinct())]
    for label in labels:
        changed = new if label in (None, old) else join(label, new)
        if changed == label:
            continue
        is_label = table.c.egress.is_(None) if label is None else table.c.egress == label
        tx.run(update(table).where(owner == id, is_label).values(egress=changed))
