"""Broken transcripts, made by changing rows.

Bugs, imports, restored backups and manual changes of the database cause them. Each kind takes a
conversation with a few successful turns, and breaks it. No repair may change `words_of`.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import text

from ricordo.domain.agent import Agent, Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.message import (
    CompactionPart,
    Message,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.run import Run
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, runs
from ricordo.storage.engine.store import Transaction
from tests.seams import make


@dataclass
class Broken:
    """A conversation that is being broken.

    `window` has its messages: system, user, call, result, answer, user, answer.
    """

    tx: Transaction
    agent: Agent
    thread: Conversation
    window: list[Message]

    @property
    def ids(self) -> list[Any]:
        return [message.id for message in self.window]

    def put(self, role: Role, *parts: Part, **fields: Any) -> Message:
        placed = {
            "conversation_id": self.thread.id,
            "created_at": self.tx.clock.now(),
            "parts": parts,
        }
        one = make.message(self.agent, role=role, **placed | fields)
        insert_messages(self.tx, [one])
        return one

    def show(self, ids: Sequence[Any]) -> None:
        self.write("conversations", "window", orjson.dumps(list(ids)).decode(), self.thread.id)

    def add(self, role: Role, *parts: Part, **fields: Any) -> Message:
        """Store a message at the window's end."""
        one = self.put(role, *parts, **fields)
        self.window.append(one)
        self.show(self.ids)
        return one

    def write(self, table: str, column: str, value: Any, id: str) -> None:
        """Write a value that the product would never write."""
        is_json = column in ("window", "parts") and self.tx.connection.dialect.name != "sqlite"
        to = "CAST(:value AS JSON)" if is_json else ":value"
        self.tx.connection.execute(
            text(f'UPDATE {table} SET "{column}" = {to} WHERE id = :id'),  # noqa: S608 - words of this file
            {"value": value, "id": id},
        )

    def run(self, **fields: Any) -> Run:
        now = self.tx.clock.now()
        run = make.run(
            self.agent,
            conversation_id=self.thread.id,
            created_at=now,
            lease_expires_at=now,
            **fields,
        )
        runs.open_run(self.tx, run)
        return run

    def stranger(self) -> Message:
        other = replace(
            self.thread, id=new_id("conv"), is_default=False, window=(), message_count=2
        )
        conversations.insert_one(self.tx, other)
        system = self.put("system", TextPart("Another prompt."), conversation_id=other.id)
        said = self.put("user", TextPart("Said elsewhere."), conversation_id=other.id)
        conversations.change(self.tx, other.id, window=[system.id, said.id])
        return said


Kind = Callable[[Broken], object]


def _call(id: str = "lost", arguments: str = '{"query": "tea"}') -> ToolCallPart:
    return ToolCallPart(id, "conversation_search", arguments)


def _result(id: str = "lost") -> ToolReturnPart:
    return ToolReturnPart(id, "conversation_search", "success", "Nothing.")


def _rows(*rows: tuple[Any, ...]) -> Kind:
    return lambda it: [it.add(*row) for row in rows]


def _shown(choose: Callable[[list[Any]], list[Any]]) -> Kind:
    return lambda it: it.show(choose(it.ids))


def _parts(role: Role, parts: str, *more: tuple[Any, ...]) -> Kind:
    return lambda it: [
        it.write("messages", "parts", parts, it.add(role, TextPart("Look.")).id),
        _rows(*more)(it),
    ]


def _with_run(*rows: tuple[Any, ...], status: str | None = None, **fields: Any) -> Kind:
    """Add a run, open unless the fields say otherwise, and messages of it."""

    def work(it: Broken) -> None:
        ended = {"ended_at": it.tx.clock.now()} if "ended_at" in fields else {}
        run = it.run(**fields | ended)
        if status:
            it.write("runs", "status", status, run.id)
        for role, *parts in rows:
            it.add(role, *parts, run_id=run.id)

    return work


def _placed(at: int, role: Role, *parts: Part) -> Kind:
    return lambda it: it.show([*it.ids[:at], it.put(role, *parts).id, *it.ids[at:]])


def _open_run_without_owner(it: Broken, parts: str | None = None) -> None:
    one = it.put("user", TextPart("Is anybody there?"), run_id=it.run().id)
    if parts:
        it.write("messages", "parts", parts, one.id)


def _everything_at_once(it: Broken) -> None:
    for kind in (
        *(
            "open_run_with_open_call",
            "approval_passed_over",
            "call_ids_twice_in_a_message",
            "unknown_part",
        ),
        *("empty_messages", "result_without_call"),
    ):
        KINDS[kind](it)
    it.show([*it.ids[1:4], "message-gone", 3, *it.ids[3:], it.stranger().id])
    KINDS["wrong_count"](it)


_GATED = replace(_call(), is_gated=True)
_WELL = ("user", TextPart("Well?"))
_OF_MISSING = CompactionPart("window", ("message-gone-1", "message-gone-2"), 10, 5, 1000, 3, 2)
_DEEP_FILM = f'{{"kind": "film", "cuts": {"[" * 300}{"]" * 300}}}'
_FILM = '{"kind": "film", "caption": "My words."}'
_OBJECT = (
    '[{"kind": "tool_call", "call_id": "x", "name": "conversation_search", "arguments": {"query": '
    '"tea"}}]'
)
KINDS: dict[str, Kind] = {
    "orphaned_call": _rows(("assistant", _call())),
    "orphaned_calls_in_the_middle": _rows(
        ("assistant", TextPart("Wait."), _call("a"), _call("b")), _WELL
    ),
    "half_of_the_results": _rows(
        ("assistant", _call("a"), _call("b")), ("tool", _result("b")), _WELL
    ),
    "result_without_call": _rows(("tool", _result())),
    "result_right_after_the_prompt": _placed(1, "tool", _result()),
    "call_left_and_result_stayed": _shown(lambda ids: [ids[0], *ids[3:]]),
    "result_left_and_call_stayed": _shown(lambda ids: [*ids[:3], *ids[4:]]),
    "doubled_result": lambda it: _placed(4, "tool", *it.window[3].parts)(it),
    "late_result": _shown(lambda ids: [*ids[:3], ids[4], ids[5], ids[3], ids[6]]),
    "result_before_its_call": _shown(lambda ids: [*ids[:2], ids[3], ids[2], *ids[4:]]),
    "no_system_message": _shown(lambda ids: ids[1:]),
    "system_message_deleted": lambda it: it.tx.run(
        text("DELETE FROM messages WHERE id = :id"), {"id": it.ids[0]}
    ),
    "system_message_in_the_middle": _shown(lambda ids: [*ids[1:4], ids[0], *ids[4:]]),
    "empty_window": _shown(lambda _ids: []),
    "missing_messages": _shown(lambda ids: [*ids[:5], "message-00000000-gone", *ids[5:]]),
    "message_of_another_thread": lambda it: it.show([*it.ids, it.stranger().id]),
    "window_of_another_thread": lambda it: it.show(
        conversations.get(it.tx, it.stranger().conversation_id).window
    ),  # type: ignore[union-attr]
    "doubled_ids": _shown(lambda ids: [*ids, *ids[1:]]),
    "ids_that_are_none": _shown(lambda ids: [*ids, 7, None, {"id": "message"}]),
    "window_is_no_list": lambda it: it.write(
        "conversations", "window", '"message-1"', it.thread.id
    ),
    "empty_messages": _rows(("user",), ("assistant",), ("user", TextPart("   "))),
    "tool_message_without_results": _rows(("tool", TextPart("What was this?"))),
    "call_in_a_user_message": _rows(("user", TextPart("My words."), _call())),
    "result_in_an_assistant_message": _rows(("assistant", TextPart("Here."), _result())),
    "unknown_role": _rows(("function", TextPart("Of another time."))),
    "unknown_part": _parts("user", f'[{_FILM}, {{"kind": "text", "text": "Look."}}]'),
    "deep_part": _parts("user", f'[{_DEEP_FILM}, {{"kind": "text", "text": "Look."}}]'),
    "parts_are_text": _parts("user", '"My words."'),
    "text_is_null": _parts("assistant", '[{"kind": "text", "text": null}]'),
    "arguments_are_an_object": _parts("assistant", _OBJECT, ("tool", _result("x"))),
    "broken_arguments": _rows(("assistant", _call("x", '{"query": "te')), _WELL),
    "call_ids_twice_in_a_message": _rows(
        ("assistant", _call("x"), _call("x")), ("tool", _result("x"))
    ),
    "call_without_an_id": _rows(("assistant", _call("")), ("tool", _result(""))),
    "call_ids_used_again": _rows(
        *(
            ("assistant", _call("x")),
            ("tool", _result("x")),
            ("user", TextPart("Again.")),
            ("assistant", _call("x")),
        ),
        _WELL,
    ),
    "open_run_without_owner": _open_run_without_owner,
    "open_run_with_open_call": _with_run(("user", TextPart("Do it.")), ("assistant", _call())),
    "open_run_with_unreadable_message": lambda it: _open_run_without_owner(it, f"[{_FILM}]"),
    "ended_run_called_running": _with_run(ended_at=0),
    "approval_of_a_failed_run": _with_run(
        *(("user", TextPart("Do it.")), ("approval", _GATED)),
        status="failed",
        ended_at=0,
        stop_reason="error",
    ),
    "approval_passed_over": _rows(("approval", _GATED), ("user", TextPart("Never mind."))),
    "answer_without_request": _rows(
        ("approval", ToolReturnPart("nothing", "theirs", "success", "Done."))
    ),
    "summary_of_missing": _placed(1, "summary", TextPart("They spoke of tea."), _OF_MISSING),
    "wrong_count": lambda it: it.write("conversations", "message_count", 4711, it.thread.id),
    "absurd_token_percent": lambda it: it.write(
        "conversations", "token_percent", 1_000_000, it.thread.id
    ),
    "everything_at_once": _everything_at_once,
}


def words_of(tx: Transaction) -> dict[str, str]:
    """Return a hash of every readable text of a user, by the message's id."""
    rows = tx.connection.execute(
        text("SELECT id, CAST(parts AS TEXT) FROM messages WHERE role = 'user'")
    ).all()
    found = {}
    for id, parts in rows:
        items = orjson.loads(parts)
        if isinstance(items, list) and all(
            item["kind"] in ("text", "image", "tool_call") for item in items
        ):
            words = "\n".join(item["text"] for item in items if item["kind"] == "text")
            found[id] = hashlib.sha256(words.encode()).hexdigest()
    return found
