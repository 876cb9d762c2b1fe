"""One request's body in the form that its model was learned to need. Pure; `conform` is the one place that makes it valid."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from ricordo.llm.learned_dialect import NOTHING_LEARNED, LearnedDialect, Refused

Json = dict[str, Any]
# Models whose roles alternate want a conversation to begin and to end with the user.
OPENING = "(The conversation goes on.)"
# Between a tool's result and what the user says next.
BETWEEN = "OK."
_BUDGETS = ("max_tokens", "max_completion_tokens")
_ALWAYS_SENT = frozenset({"model", "messages", "tools", "stream"})
_PARTS_SENT = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def conform(body: Json, learned: LearnedDialect) -> Json:
    """Return the body as this model takes it; the body itself where nothing was learned."""
    if learned is NOTHING_LEARNED or learned == NOTHING_LEARNED:
        return body
    rows = _messages(body["messages"], learned)
    body = body | {"messages": rows}
    if learned.stream == "always":
        body["stream"] = True
    elif learned.stream == "never":
        body.pop("stream", None)
        body.pop("stream_options", None)
    if learned.takes_no_tools:
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            body.pop(name, None)
    if learned.bare:
        body = {name: value for name, value in body.items() if name in _ALWAYS_SENT}
        body["messages"] = [_without_extras(row) for row in rows]
    body = without_refused(body, learned.refused)
    if learned.most_output is not None:
        for name in _BUDGETS:
            if name in body:
                body[name] = min(body[name], learned.most_output)
    return body


# --- fields ---


def kind_of(value: Any) -> str:
    """Return what tells a refused value from others of its field: its type where it is an object, else the value."""
    if isinstance(value, dict):
        return str(value.get("type", "object"))
    return orjson.dumps(value, default=str).decode()[:100]


def without_refused(body: Json, refused: Iterable[Refused]) -> Json:
    """Return the body without what was refused; where a field has another way to say the same, that is taken."""
    refused = frozenset(refused)
    if not refused:
        return body
    body = _other_budget_name(_other_choice(_other_format(body, refused), refused), refused)
    for path, kind in sorted(refused):
        body = _without(body, path.split("."), kind)
    if "logprobs" not in body and "top_logprobs" in body:
        # The second asks for more of the first, and is refused alone.
        body = {name: value for name, value in body.items() if name != "top_logprobs"}
    return body


def is_refused(refused: frozenset[Refused], name: str, value: Any) -> bool:
    """Return whether this field was refused, at all or with this value."""
    return (name, "") in refused or (name, kind_of(value)) in refused


def _other_budget_name(body: Json, refused: frozenset[Refused]) -> Json:
    for name, other in (_BUDGETS, _BUDGETS[::-1]):
        if name in body and (name, "") in refused and (other, "") not in refused:
            return {(other if key == name else key): value for key, value in body.items()}
    return body


def _other_choice(body: Json, refused: frozenset[Refused]) -> Json:
    """A tool by its name may be forced as the only one that is offered; where none can be forced, the model chooses."""
    choice = body.get("tool_choice")
    if choice is None or ("tool_choice", "") in refused:
        return body
    if isinstance(choice, dict) and is_refused(refused, "tool_choice", choice):
        name = (choice.get("function") or {}).get("name")
        tools = [tool for tool in body.get("tools", ()) if tool["function"]["name"] == name]
        body = body | {"tool_choice": "required"} | ({"tools": tools} if tools else {})
    if body["tool_choice"] == "required" and is_refused(refused, "tool_choice", "required"):
        body = body | {"tool_choice": "auto"}
    return body


def _other_format(body: Json, refused: frozenset[Refused]) -> Json:
    form = body.get("response_format")
    if (
        isinstance(form, dict)
        and form.get("type") == "json_schema"
        and is_refused(refused, "response_format", form)
    ):
        return body | {"response_format": {"type": "json_object"}}
    return body


def _without(value: Any, path: Sequence[str], kind: str) -> Any:
    """Return the value without the field at this path, in which "*" stands for all of a list."""
    name, *rest = path
    if name == "*":
        return (
            [_without(each, rest, kind) for each in value]
            if isinstance(value, list) and rest
            else value
        )
    if not isinstance(value, dict) or name not in value:
        return value
    if rest:
        return value | {name: _without(value[name], rest, kind)}
    if kind in ("", kind_of(value[name])):
        return {key: inner for key, inner in value.items() if key != name}
    return value


def _without_extras(row: Json) -> Json:
    return {name: value for name, value in row.items() if name in _PARTS_SENT}


# --- messages ---


def _messages(rows: list[Json], learned: LearnedDialect) -> list[Json]:
    if learned.one_message:
        return [{"role": "user", "content": _as_one_text(rows)}]
    if learned.calls_as_text or learned.takes_no_tools:
        rows = _calls_as_text(rows)
    if learned.one_system or learned.by_turns or learned.system_as_user:
        rows = [*rows[:1], *(_as_user(row) if row["role"] == "system" else row for row in rows[1:])]
    if learned.system_as_user and rows and rows[0]["role"] == "system":
        rows = _with_prompt_as_user(rows)
    if learned.by_turns:
        rows = _by_turns(rows)
    if learned.no_null or learned.by_turns:
        rows = [row | {"content": ""} if row.get("content") is None else row for row in rows]
    return rows


def _with_prompt_as_user(rows: Sequence[Json]) -> list[Json]:
    """Return the rows with the system's text at the beginning of what the user says first."""
    prompt, *rest = rows
    if rest and rest[0]["role"] == "user":
        return [_merged(_as_user(prompt), rest[0]), *rest[1:]]
    return [_as_user(prompt), *rest]


def _as_user(row: Json) -> Json:
    return row | {"role": "user"}


def _by_turns(rows: Sequence[Json]) -> list[Json]:
    """Return the rows in turns: neighbours of one role joined, a user's line where one is missing at an end."""
    turns: list[Json] = []
    for row in rows:
        role = row["role"]
        before = turns[-1]["role"] if turns else "system"
        if role == before and role in ("user", "assistant"):
            turns[-1] = _merged(turns[-1], row)
            continue
        if role == "user" and before == "tool":
            turns.append({"role": "assistant", "content": BETWEEN})
        elif role == "assistant" and before == "system":
            turns.append({"role": "user", "content": OPENING})
        turns.append(row)
    if not turns or turns[-1]["role"] in ("assistant", "system"):
        turns.append({"role": "user", "content": OPENING})
    return turns


def _merged(first: Json, second: Json) -> Json:
    merged = (
        first | second | {"content": _merged_content(first.get("content"), second.get("content"))}
    )
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return merged | ({"tool_calls": calls} if calls else {})


def _merged_content(first: Any, second: Any) -> Any:
    if not (first and second):
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _calls_as_text(rows: Sequence[Json]) -> list[Json]:
    """Return the rows with calls in words, in the notation that is read back as a call, and results in the user's voice."""
    names = {
        call["id"]: call["function"]["name"] for row in rows for call in row.get("tool_calls", ())
    }
    plain: list[Json] = []
    for row in rows:
        if row["role"] == "tool":
            name = names.get(row.get("tool_call_id"), "the tool")
            plain.append({"role": "user", "content": f"Result of {name}: {row['content']}"})
        elif calls := row.get("tool_calls"):
            written = "\n".join(map(_written_call, calls))
            content = _merged_content(row.get("content"), written)
            plain.append({"role": "assistant", "content": content})
        else:
            plain.append(row)
    return plain


def _written_call(call: Json) -> str:
    function = call["function"]
    return f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'


_SPEAKERS = {"user": "User", "assistant": "Assistant"}


def _as_one_text(rows: Sequence[Json]) -> str:
    """Return the whole conversation as one text, with who speaks before each message."""
    plain = _calls_as_text(rows)
    lines = []
    for row in plain:
        words = _words(row.get("content"))
        speaker = _SPEAKERS.get(row["role"])
        if words:
            lines.append(f"{speaker}: {words}" if speaker else words)
    return "\n\n".join(lines)


def _words(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "(a picture)")) for part in content)
    return content or ""
