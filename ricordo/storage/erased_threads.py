"""What other people's rows show of a user who is to be forgotten: windows, summaries, prompts, and results that quoted her.

Nothing that others said is deleted. Words that hold hers are replaced by a sentence that says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select, update

from ricordo.domain.erasure import Erasure
from ricordo.search import index
from ricordo.storage.repository import setter
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import conversations, messages

FORGOTTEN = "(This held words of a user who has been forgotten.)"
_JSON = messages.c.parts.type
_IDS = each(bindparam("ids", type_=_JSON))
_ROWS = select(messages).where(messages.c.id.op("IN")(_IDS))
_THERE = select(messages.c.id).where(messages.c.id.op("IN")(_IDS))
_THREAD = select(conversations).where(conversations.c.id == bindparam("thread_id")).with_for_update()
_SHOWING = select(messages.c.id).where(
    messages.c.conversation_id == bindparam("thread_id"),
    messages.c.role.op("IN", is_comparison=True)(each(bindparam("roles", type_=_JSON))),
    messages.c.created_at >= bindparam("since"),
)
_OWN_COUNT = select(func.count()).where(messages.c.conversation_id == bindparam("thread_id"))
_REWRITE = setter(messages, "parts", "text", where=messages.c.id == bindparam("message_id"))
_SET = setter(
    conversations,
    "window",
    "prompt_key",
    "forked_from",
    "forked_seq",
    where=conversations.c.id == bindparam("thread_id"),
)
_ANEW = setter(conversations, "prompt_key", where=conversations.c.id == bindparam("thread_id"))
_COUNT = setter(conversations, "message_count", where=conversations.c.id == bindparam("thread_id"))
_FREE = (
    update(conversations)
    .where(conversations.c.id == bindparam("thread_id"), conversations.c.user_id == bindparam("of_user"))
    .values(user_id=None, summary=None, description=None)
)


def quoting(rows: Sequence[Any], gone: frozenset[str]) -> Iterator[str]:
    """Those among these messages whose results name one of the texts that go."""
    for row in rows:
        if any(not gone.isdisjoint(part.get("sources", ())) for part in row.parts):
            yield row.id


def cover_quotes(tx: Transaction, erasure: Erasure, ids: Sequence[str], gone: frozenset[str]) -> Erasure:
    """Replace the results in these messages that quote what goes."""
    rows = tx.all(_ROWS, {"ids": list(ids)})
    index.unindex_messages(tx, [row.id for row in rows])
    for row in rows:
        parts = [_covered(part) if not gone.isdisjoint(part.get("sources", ())) else part for part in row.parts]
        # Results of searches are not searched themselves; where another tool's are, the rest of its words is found no more.
        _write(tx, row, parts, "" if not row.text else FORGOTTEN)
    return erasure.rewritten("quotes", len(rows)).spread("messages", (row.agent_id for row in rows if row.text))


def tidy_thread(tx: Transaction, erasure: Erasure, thread_id: str, since: int) -> Erasure:
    """Take what is gone out of the thread's window, and cover the summaries and prompts that were written since then.

    A prompt without words is made anew at the thread's next turn.
    """
    thread = tx.first(_THREAD, {"thread_id": thread_id})
    if thread is None:
        return erasure
    there = {row.id for row in tx.all(_THERE, {"ids": list(thread.window)})}
    window = [id for id in thread.window if id in there]
    showing = _written_since(tx, thread_id, since, "summary", "system")
    for row in tx.all(_ROWS, {"ids": [*showing, *window[:1]]}):
        if row.role == "summary":
            erasure = _cover(tx, erasure, "summaries", row, [_said(part) for part in row.parts])
        elif row.role == "system":
            erasure = _cover(tx, erasure, "prompts", row, [{"kind": "text", "text": ""}])
    is_fork = thread.forked_from is not None and len(window) < len(thread.window)
    origin = (None, None) if is_fork else (thread.forked_from, thread.forked_seq)
    tx.run(
        _SET,
        {
            "thread_id": thread_id,
            "new_window": window,
            "new_prompt_key": "",
            "new_forked_from": origin[0],
            "new_forked_seq": origin[1],
        },
    )
    if is_fork:
        count = tx.all(_OWN_COUNT, {"thread_id": thread_id})[0][0]
        tx.run(_COUNT, {"thread_id": thread_id, "new_message_count": count})
    return erasure


def cover_prompts(tx: Transaction, erasure: Erasure, thread_id: str, since: int) -> Erasure:
    """Cover the thread's prompts that were written since then: they show an archive's tags, and some of those were hers."""
    for row in tx.all(_ROWS, {"ids": _written_since(tx, thread_id, since, "system")}):
        erasure = _cover(tx, erasure, "prompts", row, [{"kind": "text", "text": ""}])
    tx.run(_ANEW, {"thread_id": thread_id, "new_prompt_key": ""})
    return erasure


def free_thread(tx: Transaction, erasure: Erasure, thread_id: str) -> Erasure:
    """Let an agent's own thread be nobody's, without what it was called."""
    return erasure.rewritten("threads of agents", tx.run(_FREE, {"thread_id": thread_id, "of_user": erasure.user_id}))


def _written_since(tx: Transaction, thread_id: str, since: int, *roles: str) -> list[str]:
    values = {"thread_id": thread_id, "since": since, "roles": list(roles)}
    return [row.id for row in tx.all(_SHOWING, values)]


def _cover(tx: Transaction, erasure: Erasure, what: str, row: Any, parts: list[dict[str, Any]]) -> Erasure:
    if row.parts == parts:
        return erasure
    # Neither is searched, so there is nothing of them in the index.
    tx.run(_REWRITE, {"message_id": row.id, "new_parts": parts, "new_text": ""})
    return erasure.rewritten(what, 1)


def _write(tx: Transaction, row: Any, parts: Sequence[Mapping[str, Any]], text: str) -> None:
    tx.run(_REWRITE, {"message_id": row.id, "new_parts": list(parts), "new_text": text})
    if text:
        index.index_messages(tx, [row._asdict() | {"text": text}])


def _covered(part: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: part[name] for name in ("kind", "call_id", "name", "status") if name in part}
    return {**kept, "content": FORGOTTEN}


def _said(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "text", "text": FORGOTTEN} if part["kind"] == "text" else dict(part)
