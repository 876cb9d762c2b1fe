"""Lexical search over messages and passages. Filters apply before the limit; a query is data, never syntax."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Select,
    TableClause,
    bindparam,
    column,
    delete,
    func,
    insert,
    literal_column,
    select,
    table,
)

from ricordo.domain.passage import Relevance
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import messages, passages, passages_tags

_IDS = each(bindparam("ids", type_=messages.c.parts.type))
_messages_fts = table("messages_fts", column("rowid"), column("text"))
_passages_fts = table("passages_fts", column("rowid"), column("text"))
_INDEX_MESSAGES = insert(_messages_fts).from_select(
    ["rowid", "text"],
    select(messages.c.seq, messages.c.text).where(messages.c.id.op("IN")(_IDS), messages.c.text != ""),
)
_INDEX_PASSAGES = insert(_passages_fts).from_select(
    ["rowid", "text"], select(passages.c.seq, passages.c.text).where(passages.c.id.op("IN")(_IDS))
)
_FORGET_MESSAGES = delete(_messages_fts).where(
    _messages_fts.c.rowid.in_(select(messages.c.seq).where(messages.c.id.op("IN")(_IDS)))
)
_FORGET_AGENT = delete(_messages_fts).where(
    _messages_fts.c.rowid.in_(select(messages.c.seq).where(messages.c.agent_id == bindparam("agent_id")))
)
_FORGET_PASSAGES = delete(_passages_fts).where(
    _passages_fts.c.rowid.in_(select(passages.c.seq).where(passages.c.id.op("IN")(_IDS)))
)
# Words so common that a hit on them alone says nothing.
_COMMON = frozenset(
    """a about am an and any are as at be been but by can could did do does for from had has have he her his how i if in is it
    its know me my of on or our she so that the their them there they this to us was we were what when where which who will
    with would you your""".split()
)

# Letters and digits, with accents that are written as signs of their own.
_WORD = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u036f])*")


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: the id of a message or passage, and why it was found."""

    id: str
    relevance: Relevance


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages may be found. Times are microseconds, both ends included; empty means: any."""

    agent_id: str
    conversation_id: str | None = None
    roles: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class PassageFilter:
    """Which passages may be found, in any of these archives."""

    archive_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()
    all_tags: bool = False
    start: int | None = None
    end: int | None = None


def index_messages(tx: Transaction, ids: Sequence[str]) -> None:
    """Make these stored messages findable, in the transaction that stored them."""
    tx.run(_INDEX_MESSAGES, {"ids": list(ids)})


def index_passages(tx: Transaction, ids: Sequence[str]) -> None:
    """Make these stored passages findable, in the transaction that stored them."""
    tx.run(_INDEX_PASSAGES, {"ids": list(ids)})


def forget_messages(tx: Transaction, ids: Sequence[str]) -> None:
    """Take these messages out of the index, before they are deleted."""
    tx.run(_FORGET_MESSAGES, {"ids": list(ids)})


def forget_agent(tx: Transaction, agent_id: str) -> None:
    """Take every message of the agent out of the index, before they are deleted."""
    tx.run(_FORGET_AGENT, {"agent_id": agent_id})


def forget_passages(tx: Transaction, ids: Sequence[str]) -> None:
    """Take these passages out of the index, before they are deleted."""
    tx.run(_FORGET_PASSAGES, {"ids": list(ids)})


def find_messages(tx: Transaction, query: str, wanted: MessageFilter, limit: int) -> list[Hit]:
    """The best matching messages, best first; a query without a word gives the newest."""
    statement = select(messages.c.id).where(messages.c.agent_id == wanted.agent_id, messages.c.text != "")
    if wanted.conversation_id:
        statement = statement.where(messages.c.conversation_id == wanted.conversation_id)
    if wanted.roles:
        statement = statement.where(messages.c.role.in_(wanted.roles))
    if wanted.start is not None:
        statement = statement.where(messages.c.created_at >= wanted.start)
    if wanted.end is not None:
        statement = statement.where(messages.c.created_at <= wanted.end)
    return _ranked(tx, statement, query, _messages_fts, messages, limit)


def find_passages(tx: Transaction, query: str, wanted: PassageFilter, limit: int) -> list[Hit]:
    """The best matching passages, best first; a query without a word gives the newest."""
    statement = select(passages.c.id).where(passages.c.archive_id.in_(wanted.archive_ids))
    if wanted.tags:
        tagged = select(passages_tags.c.passage_id).where(
            passages_tags.c.archive_id.in_(wanted.archive_ids), passages_tags.c.tag.in_(wanted.tags)
        )
        if wanted.all_tags:
            tagged = tagged.group_by(passages_tags.c.passage_id).having(func.count() == len(set(wanted.tags)))
        statement = statement.where(passages.c.id.in_(tagged))
    if wanted.start is not None:
        statement = statement.where(passages.c.created_at >= wanted.start)
    if wanted.end is not None:
        statement = statement.where(passages.c.created_at <= wanted.end)
    return _ranked(tx, statement, query, _passages_fts, passages, limit)


def match_expression(query: str) -> str | None:
    """The query's words for FTS5, each quoted so that none is an operator, joined by OR; None without a word."""
    # The index folds case and accents by its own rules, so words reach it as they were written.
    words = {word.lower(): word for word in _WORD.findall(query)}
    telling = [word for key, word in words.items() if key not in _COMMON] or list(words.values())
    return " OR ".join(f'"{word}"' for word in telling[:64]) or None


def _ranked(
    tx: Transaction, statement: Select[Any], query: str, index: TableClause, documents: Any, limit: int
) -> list[Hit]:
    expression = match_expression(query)
    if expression is None:
        rows = tx.all(statement.order_by(documents.c.created_at.desc(), documents.c.seq.desc()).limit(limit))
        return [Hit(row.id, Relevance(0.0)) for row in rows]
    name: Any = literal_column(index.name)
    rank = func.bm25(name)
    statement = (
        statement.add_columns(rank.label("rank"))
        .join(index, index.c.rowid == documents.c.seq)
        .where(name.op("MATCH")(expression))
        .order_by(rank, documents.c.created_at.desc(), documents.c.seq.desc())
        .limit(limit)
    )
    # bm25() is smaller the better the match; turned around, a score grows with it.
    return [
        Hit(row.id, Relevance(round(-row.rank, 6), fts_rank=place)) for place, row in enumerate(tx.all(statement), 1)
    ]
