"""Copies of an agent with its messages, or of an archive with its passages, made in SQL.

The copies include the index and the vectors.
"""

from typing import Any

from sqlalchemy import Table, insert, literal, select

from ricordo.search.reader import read_documents
from ricordo.search.write_buffer import fingerprint
from ricordo.storage import conversations
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import (
    agents,
    archives,
    messages,
    passages,
    passages_tags,
    search_documents,
    search_partitions,
    search_postings,
    search_terms,
    search_vectors,
)
from ricordo.storage.schema.core_tables import conversations as conversation_rows


class Copies:
    """Makes the copy with this number of a template.

    The template must be flushed, so that the write buffer holds nothing of it.
    """

    def __init__(self, template: str, number: int) -> None:
        self._template = template
        self._number = number
        self._owner = self._renamed(template)

    def of_agent(self, tx: Transaction) -> None:
        """Copy an agent with its default conversation, its messages and their index."""
        conversation = conversations.default_id(self._owner)
        _copy(tx, agents, agents.c.id == self._template, id=self._owner)
        _copy(
            tx,
            conversation_rows,
            conversation_rows.c.agent_id == self._template,
            id=conversation,
            agent_id=self._owner,
        )
        self._copy_rows(
            tx, messages, messages.c.agent_id, agent_id=self._owner, conversation_id=conversation
        )
        self._copy_index(tx, messages, messages.c.agent_id, conversation)

    def of_archive(self, tx: Transaction) -> None:
        """Copy an archive with its passages and their index."""
        _copy(tx, archives, archives.c.id == self._template, id=self._owner)
        self._copy_rows(tx, passages, passages.c.archive_id, archive_id=self._owner)
        tags = passages_tags.c.archive_id == self._template
        passage_id = passages_tags.c.passage_id + self._ending
        _copy(tx, passages_tags, tags, passage_id=passage_id, archive_id=self._owner)
        self._copy_index(tx, passages, passages.c.archive_id, None)

    @property
    def _ending(self) -> str:
        return f"-{self._number}"

    def _renamed(self, id: str) -> str:
        # The id has the usual length, since some values are cut from ids.
        return f"{id[:-6]}{self._number:06x}"

    def _copy_rows(self, tx: Transaction, table: Table, owner: Any, **changed: Any) -> None:
        _copy(tx, table, owner == self._template, id=table.c.id + self._ending, **changed)

    def _copy_index(
        self, tx: Transaction, table: Table, owner: Any, conversation: str | None
    ) -> None:
        old = _partition(tx, self._template)
        _copy(tx, search_partitions, search_partitions.c.seq == old, owner_id=self._owner)
        new = _partition(tx, self._owner)
        first = {
            name: _first_number(tx, table, owner, name) for name in (self._template, self._owner)
        }
        shift = first[self._owner] - first[self._template]
        for row in tx.all(select(search_documents).where(search_documents.c.partition == old)):
            records = read_documents(row.data).copy()
            records["number"] += shift
            if conversation:
                records["conversation"] = fingerprint(conversation)
            tx.run(
                insert(search_documents).values(
                    partition=new, chunk=row.chunk, data=records.tobytes()
                )
            )
        for part in (search_postings, search_terms, search_vectors):
            _copy(tx, part, part.c.partition == old, partition=new)


def _copy(tx: Transaction, table: Table, where: Any, **changed: Any) -> None:
    columns = [column for column in table.c if column.name != "seq"]
    values = [
        (
            changed[c.name]
            if hasattr(changed[c.name], "label")
            else literal(changed[c.name], c.type)
        ).label(c.name)
        if c.name in changed
        else c
        for c in columns
    ]
    rows = select(*values).where(where)
    # The copies get their numbers in the order of the template's, so that all differ by the same
    # shift.
    rows = rows.order_by(table.c.seq) if "seq" in table.c else rows
    tx.run(insert(table).from_select([column.name for column in columns], rows))


def _partition(tx: Transaction, owner_id: str) -> int:
    return int(
        tx.first(
            select(search_partitions.c.seq).where(search_partitions.c.owner_id == owner_id)
        ).seq
    )


def _first_number(tx: Transaction, table: Table, owner: Any, owner_id: str) -> int:
    statement = select(table.c.seq).where(owner == owner_id).order_by(table.c.seq).limit(1)
    return int(tx.first(statement).seq)
