"""Change a request's body to the form that its model needs, as learned from refusals.

The functions are pure. `conform` is the entry point.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from ricordo.llm.learned_dialect import NOTHING_LEARNED, LearnedDialect, Refused

Json = dict[str, Any]
# Models with alternating roles need a user's message at the beginning and the end.
OPENING = "(The conversation goes on.)"
# The assistant's text between a tool's result and the next message of the user.
BETWEEN = "OK."
_BUDGETS = ("max_tokens", "max_completion_tokens")
_NEEDED_FIELDS = frozenset({"model", "messages", "tools", "stream"})
_NEEDED_IN_MESSAGE = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def conform(body: Json, learned: LearnedDialect) -> Json:
    """Return the body in the form that this model accepts.

    It is the same body if nothing was learned.

    Args:
        body: The body of a chat completion, which is not changed.
        learned: The lessons about the model.
    """
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
        body = {name: field for name, field in body.items() if name in _NEEDED_FIELDS}
        body["messages"] = [_without_extras(row) for row in rows]
    body = without_refused(body, learned.refused)
    if learned.most_output is not None:
        for name in _BUDGETS:
            if name in body:
                body[name] = min(body[name], learned.most_output)
    return body


# --- fields ---


def kind_of(field: Any) -> str:
    """Return the kind of a refused value: the type of an object, else the value itself.

    Args:
        field: Any JSON value of a request's body.

    Returns:
        For an object its `type`, or "object"; for another value its JSON, of at most 100
        characters.
    """
    if isinstance(field, dict):
        return str(field.get("type", "object"))
    return orjson.dumps(field, default=str).decode()[:100]


def without_refused(body: Json, refused: Iterable[Refused]) -> Json:
    """Return the body without refused fields, or with a different field of the same meaning.

    Args:
        body: The body of a chat completion, which is not changed.
        refused: The refused fields, each with the kind of its value.
    """
    refused = frozenset(refused)
    if not refused:
        return body
    body = _other_budget_name(_other_choice(_other_format(body, refused), refused), refused)
    for path, kind in sorted(refused):
        body = _without(body, path.split("."), kind)
    if "logprobs" not in body and "top_logprobs" in body:
        # Servers refuse `top_logprobs` without `logprobs`.
        body = {name: field for name, field in body.items() if name != "top_logprobs"}
    return body


def is_refused(refused: frozenset[Refused], name: str, value: Any) -> bool:
    """Return whether this field was refused, entirely or with this value.

    Args:
        refused: The refused fields of the model.
        name: The field's path in the body.
        value: The field's value in the body to send.
    """
    return (name, "") in refused or (name, kind_of(value)) in refused


def _other_budget_name(body: Json, refused: frozenset[Refused]) -> Json:
    for name, other in (_BUDGETS, _BUDGETS[::-1]):
        if name in body and (name, "") in refused and (other, "") not in refused:
            return {(other if key == name else key): field for key, field in body.items()}
    return body


def _other_choice(body: Json, refused: frozenset[Refused]) -> Json:
    """Return the body with another form of a refused `tool_choice`.

    A tool can be forced by offering it alone. If no tool can be forced, the model chooses.
    """
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
    is_schema = isinstance(form, dict) and form.get("type") == "json_schema"
    if is_schema and is_refused(refused, "response_format", form):
        return body | {"response_format": {"type": "json_object"}}
    return body


def _without(json: Any, path: Sequence[str], kind: str) -> Any:
    """Return the JSON without the field at this path.

    "*" means all elements of a list.
    """
    name, *rest = path
    if name == "*":
        if not isinstance(json, list) or not rest:
            return json
        return [_without(element, rest, kind) for element in json]
    if not isinstance(json, dict) or name not in json:
        return json
    if rest:
        return json | {name: _without(json[name], rest, kind)}
    if kind in ("", kind_of(json[name])):
        return {key: inner for key, inner in json.items() if key != name}
    return json


def _without_extras(row: Json) -> Json:
    return {name: field for name, field in row.items() if name in _NEEDED_IN_MESSAGE}


# --- messages ---


def _messages(rows: list[Json], learned: LearnedDialect) -> list[Json]:
    if learned.one_message:
        return [{"role": "user", "content": _as_one_text(rows)}]
    if learned.calls_as_text or learned.takes_no_tools:
        rows = _calls_as_text(rows)
    if learned.one_system or learned.by_turns or learned.system_as_user:
        rows = [*rows[:1], *map(_without_system_role, rows[1:])]
    if learned.system_as_user and rows and rows[0]["role"] == "system":
        rows = _with_prompt_as_user(rows)
    if learned.by_turns:
        rows = _by_turns(rows)
    if learned.no_null or learned.by_turns:
        rows = [_without_null(row) for row in rows]
    return rows


def _without_system_role(row: Json) -> Json:
    if row["role"] == "system":
        return _as_user(row)
    return row


def _without_null(row: Json) -> Json:
    if row.get("content") is None:
        return row | {"content": ""}
    return row


def _with_prompt_as_user(rows: Sequence[Json]) -> list[Json]:
    """Return the rows with the system's text at the start of the first user message."""
    prompt, *rest = rows
    if rest and rest[0]["role"] == "user":
        return [_merged(_as_user(prompt), rest[0]), *rest[1:]]
    return [_as_user(prompt), *rest]


def _as_user(row: Json) -> Json:
    return row | {"role": "user"}


def _by_turns(rows: Sequence[Json]) -> list[Json]:
    """Return the rows in alternating turns.

    Neighbours of one role are joined. A user message is added at an end that lacks one.
    """
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
    content = _merged_content(first.get("content"), second.get("content"))
    merged = first | second | {"content": content}
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return merged | ({"tool_calls": calls} if calls else {})


def _merged_content(first: Any, second: Any) -> Any:
    if not (first and second):
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content)


def _calls_as_text(rows: Sequence[Json]) -> list[Json]:
    """Return the rows with calls and tool results as text.

    Calls are written in a notation that is read back as a call; results become user messages.
    """
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
    return (
        f'<tool_call>\n{{"name": "{function["name"]}", "arguments": '
        f"{function['arguments']}}}\n</tool_call>"
    )


_SPEAKERS = {"user": "User", "assistant": "Assistant"}


def _as_one_text(rows: Sequence[Json]) -> str:
    """Return the whole conversation as one text, with the speaker's name before each message."""
    plain = _calls_as_text(rows)
    lines = []
    for row in plain:
        text = _text_of(row.get("content"))
        speaker = _SPEAKERS.get(row["role"])
        if text:
            lines.append(f"{speaker}: {text}" if speaker else text)
    return "\n\n".join(lines)


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "(a picture)")) for part in content)
    return content or ""
