"""Broken transcripts, by the rows that make them so: what bugs, imports, restored backups and hands in the database leave behind.

Each kind takes a thread in which a few turns went well, and breaks it. `words_of` is what no repair may touch.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import text

from ricordo.domain.agent import Agent, Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.message import CompactionPart, Message, Part, Role, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.run import Run
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, runs
from ricordo.storage.engine.store import Transaction
from tests.seams import make


@dataclass
class Broken:
    """A thread while it is broken; `window` are its messages: system, user, call, result, answer, user, answer."""

    tx: Transaction
    agent: Agent
    thread: Conversation
    window: list[Message]

    @property
    def ids(self) -> list[Any]:
        """The ids in the window."""
        return [message.id for message in self.window]

    def put(self, role: Role, *parts: Part, **fields: Any) -> Message:
        """Store a message, in no window."""
        one = Message(
            new_id("message"),
            self.agent.id,
            self.thread.id,
            role,
            parts,
            self.tx.clock.now(),
            organization_id=self.agent.organization_id,
        )
        one = replace(one, **fields)
        insert_messages(self.tx, [one])
        return one

    def show(self, ids: Sequence[Any]) -> None:
        """Let the window name these."""
        self.write("conversations", "window", orjson.dumps(list(ids)).decode(), self.thread.id)

    def add(self, role: Role, *parts: Part, **fields: Any) -> Message:
        """Store a message at the window's end."""
        one = self.put(role, *parts, **fields)
        self.window.append(one)
        self.show(self.ids)
        return one

    def write(self, table: str, column: str, value: Any, id: str) -> None:
        """Put a value where no code of ours would."""
        is_json = column in ("window", "parts") and self.tx.connection.dialect.name != "sqlite"
        to = "CAST(:value AS JSON)" if is_json else ":value"
        self.tx.connection.execute(
            text(f'UPDATE {table} SET "{column}" = {to} WHERE id = :id'),  # noqa: S608 - words of this file
            {"value": value, "id": id},
        )

    def run(self, **fields: Any) -> Run:
        """A run in the thread, stored; open unless the fields say otherwise."""
        now = self.tx.clock.now()
        run = make.run(self.agent, conversation_id=self.thread.id, created_at=now, lease_expires_at=now, **fields)
        runs.open_run(self.tx, run)
        return run

    def stranger(self) -> Message:
        """A message of another thread of the same agent."""
        other = replace(self.thread, id=new_id("conv"), is_default=False, window=(), message_count=2)
        conversations.insert_one(self.tx, other)
        system = self.put("system", TextPart("Another prompt."), conversation_id=other.id)
        said = self.put("user", TextPart("Said elsewhere."), conversation_id=other.id)
        conversations.change(self.tx, other.id, window=[system.id, said.id])
        return said


def _call(id: str = "lost", arguments: str = '{"query": "tea"}') -> ToolCallPart:
    return ToolCallPart(id, "conversation_search", arguments)


def _result(id: str = "lost") -> ToolReturnPart:
    return ToolReturnPart(id, "conversation_search", "success", "Nothing.")


def _orphaned_call(it: Broken) -> None:
    it.add("assistant", _call())


def _orphaned_calls_in_the_middle(it: Broken) -> None:
    it.add("assistant", TextPart("Wait."), _call("a"), _call("b"))
    it.add("user", TextPart("Well?"))


def _half_of_the_results(it: Broken) -> None:
    it.add("assistant", _call("a"), _call("b"))
    it.add("tool", _result("b"))
    it.add("user", TextPart("Well?"))


def _result_without_call(it: Broken) -> None:
    it.add("tool", _result())


def _result_right_after_the_prompt(it: Broken) -> None:
    lone = it.put("tool", _result())
    it.show([it.ids[0], lone.id, *it.ids[1:]])


def _call_left_and_result_stayed(it: Broken) -> None:
    it.show([it.ids[0], *it.ids[3:]])


def _result_left_and_call_stayed(it: Broken) -> None:
    it.show([*it.ids[:3], *it.ids[4:]])


def _doubled_result(it: Broken) -> None:
    again = it.put("tool", *it.window[3].parts)
    it.show([*it.ids[:4], again.id, *it.ids[4:]])


def _late_result(it: Broken) -> None:
    it.show([*it.ids[:3], it.ids[4], it.ids[5], it.ids[3], it.ids[6]])


def _result_before_its_call(it: Broken) -> None:
    it.show([*it.ids[:2], it.ids[3], it.ids[2], *it.ids[4:]])


def _no_system_message(it: Broken) -> None:
    it.show(it.ids[1:])


def _system_message_deleted(it: Broken) -> None:
    it.tx.connection.execute(text("DELETE FROM messages WHERE id = :id"), {"id": it.ids[0]})


def _system_message_in_the_middle(it: Broken) -> None:
    it.show([*it.ids[1:3], it.ids[3], it.ids[0], *it.ids[4:]])


def _empty_window(it: Broken) -> None:
    it.show([])


def _missing_messages(it: Broken) -> None:
    it.show([*it.ids[:5], "message-00000000-gone", *it.ids[5:]])


def _message_of_another_thread(it: Broken) -> None:
    it.show([*it.ids, it.stranger().id])


def _window_of_another_thread(it: Broken) -> None:
    other = it.stranger()
    it.show(conversations.get(it.tx, other.conversation_id).window)  # type: ignore[union-attr]


def _doubled_ids(it: Broken) -> None:
    it.show([*it.ids, *it.ids[1:]])


def _ids_that_are_none(it: Broken) -> None:
    it.show([*it.ids, 7, None, {"id": "message"}])


def _window_is_no_list(it: Broken) -> None:
    it.write("conversations", "window", '"message-1"', it.thread.id)


def _empty_messages(it: Broken) -> None:
    it.add("user")
    it.add("assistant")
    it.add("user", TextPart("   "))


def _tool_message_without_results(it: Broken) -> None:
    it.add("tool", TextPart("What was this?"))


def _call_in_a_user_message(it: Broken) -> None:
    it.add("user", TextPart("My words."), _call())


def _result_in_an_assistant_message(it: Broken) -> None:
    it.add("assistant", TextPart("Here."), _result())


def _unknown_role(it: Broken) -> None:
    it.add("function", TextPart("Of another time."))  # type: ignore[arg-type]


def _unknown_part(it: Broken) -> None:
    one = it.add("user", TextPart("Look."))
    it.write(
        "messages", "parts", '[{"kind": "film", "caption": "My words."}, {"kind": "text", "text": "Look."}]', one.id
    )


def _parts_are_text(it: Broken) -> None:
    it.write("messages", "parts", '"My words."', it.add("user", TextPart("Look.")).id)


def _text_is_null(it: Broken) -> None:
    it.write("messages", "parts", '[{"kind": "text", "text": null}]', it.add("assistant", TextPart("Look.")).id)


def _arguments_are_an_object(it: Broken) -> None:
    one = it.add("assistant", _call("x"))
    parts = '[{"kind": "tool_call", "call_id": "x", "name": "conversation_search", "arguments": {"query": "tea"}}]'
    it.write("messages", "parts", parts, one.id)
    it.add("tool", _result("x"))


def _broken_arguments(it: Broken) -> None:
    it.add("assistant", _call("x", '{"query": "te'))
    it.add("user", TextPart("Well?"))


def _call_ids_twice_in_a_message(it: Broken) -> None:
    it.add("assistant", _call("x"), _call("x"))
    it.add("tool", _result("x"))


def _call_without_an_id(it: Broken) -> None:
    it.add("assistant", _call(""))
    it.add("tool", _result(""))


def _call_ids_used_again(it: Broken) -> None:
    it.add("assistant", _call("x"))
    it.add("tool", _result("x"))
    it.add("user", TextPart("Again."))
    it.add("assistant", _call("x"))
    it.add("user", TextPart("Well?"))


def _open_run_without_owner(it: Broken) -> None:
    run = it.run()
    it.put("user", TextPart("Is anybody there?"), run_id=run.id)


def _open_run_with_open_call(it: Broken) -> None:
    run = it.run()
    it.add("user", TextPart("Do it."), run_id=run.id)
    it.add("assistant", _call(), run_id=run.id)


def _open_run_with_unreadable_message(it: Broken) -> None:
    run = it.run()
    one = it.put("user", TextPart("Look."), run_id=run.id)
    it.write("messages", "parts", '[{"kind": "film", "caption": "My words."}]', one.id)


def _ended_run_called_running(it: Broken) -> None:
    it.run(ended_at=it.tx.clock.now())


def _approval_of_a_failed_run(it: Broken) -> None:
    run = it.run(ended_at=it.tx.clock.now(), stop_reason="error")
    it.write("runs", "status", "failed", run.id)
    it.add("user", TextPart("Do it."), run_id=run.id)
    it.add("approval", replace(_call(), is_gated=True), run_id=run.id)


def _approval_passed_over(it: Broken) -> None:
    it.add("approval", replace(_call(), is_gated=True))
    it.add("user", TextPart("Never mind."))


def _answer_without_request(it: Broken) -> None:
    it.add("approval", ToolReturnPart("nothing", "theirs", "success", "Done."))


def _summary_of_missing(it: Broken) -> None:
    part = CompactionPart("window", ("message-gone-1", "message-gone-2"), 10, 5, 1000, 3, 2)
    summary = it.put("summary", TextPart("They spoke of tea."), part)
    it.show([it.ids[0], summary.id, *it.ids[1:]])


def _wrong_count(it: Broken) -> None:
    it.write("conversations", "message_count", 4711, it.thread.id)


def _absurd_token_percent(it: Broken) -> None:
    it.write("conversations", "token_percent", 1_000_000, it.thread.id)


def _everything_at_once(it: Broken) -> None:
    _open_run_with_open_call(it)
    _approval_passed_over(it)
    _call_ids_twice_in_a_message(it)
    _unknown_part(it)
    _empty_messages(it)
    _result_without_call(it)
    it.show([*it.ids[1:4], "message-gone", 3, *it.ids[3:], it.stranger().id])
    _wrong_count(it)


Kind = Callable[[Broken], None]
KINDS: dict[str, Kind] = {
    name[1:]: found
    for name, found in list(globals().items())
    if getattr(found, "__annotations__", {}).get("it") is Broken
}


def words_of(tx: Transaction) -> dict[str, str]:
    """A hash of every text of a user that can be read, by the message's id."""
    rows = tx.connection.execute(text("SELECT id, CAST(parts AS TEXT) FROM messages WHERE role = 'user'")).all()
    found = {}
    for id, parts in rows:
        items = orjson.loads(parts)
        if isinstance(items, list) and all(item["kind"] in ("text", "image", "tool_call") for item in items):
            words = "\n".join(item["text"] for item in items if item["kind"] == "text")
            found[id] = hashlib.sha256(words.encode()).hexdigest()
    return found
