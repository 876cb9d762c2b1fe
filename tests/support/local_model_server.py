"""A mock of local model servers with their faults.

The faults are strict templates, odd errors, refused fields, clipped counts and calls as text.

Each model of the mock has one set of faults. Make `servers = LocalModels()`, add models with
`servers.add("m1", LocalModel(...))`, and serve them over real HTTP with
`ModelServer(servers.answer)`. `random_model(luck)` makes a model with faults of all FAMILIES. A new
kind of fault needs a field of `LocalModel` and a family here; a new notation of calls needs one row
in NOTATIONS.

If the user's message says "do NAME ARGUMENTS", a model calls that tool once. It answers all other
messages with text.
"""

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.model_server import Answer, Seen, completion, stream, tool_call
from tests.support.notations import BARE, MARKED, Write

Json = dict[str, Any]
Luck = random.Random
_CHARACTERS_PER_TOKEN = 4
_ORDER = re.compile(r"do (\w+) (\{.*?\})(?=\s|$)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A call that the model means to make."""

    name: str
    arguments: Json
    call_id: str


@dataclass(frozen=True)
class Notation:
    """The form in which a model writes a call.

    `message` returns the fields of the whole message, and `deltas` the pieces of a stream. Without
    `deltas` a stream sends each text of the message in two pieces, and each call in one.
    """

    message: Callable[[Call], Json]
    deltas: Callable[[Call], list[Json]] | None = None


def _proper(call: Call) -> Json:
    return {
        "content": None,
        "tool_calls": [tool_call(call.name, json.dumps(call.arguments), call.call_id)],
    }


def _fenced(call: Call) -> Json:
    written = json.dumps({"name": call.name, "arguments": call.arguments}, indent=2)
    return {"content": f"```json\n{written}\n```"}


def _hermes(call: Call) -> Json:
    written = json.dumps({"name": call.name, "arguments": call.arguments})
    return {"content": f"<tool_call>\n{written}\n</tool_call>"}


def _written(write: Write) -> Notation:
    return Notation(lambda call: {"content": write([(call.name, call.arguments)])})


def _numbered(head: int | None, rest: int | None, *, has_id: bool = True) -> Notation:
    """Return a correct call whose pieces have the server's unusual numbers."""

    def deltas(call: Call) -> list[Json]:
        text = json.dumps(call.arguments)
        begun: Json = {
            "index": head,
            "id": call.call_id if has_id else None,
            "function": {"name": call.name, "arguments": ""},
        }
        rows = [
            {"index": rest, "function": {"arguments": text[at : at + 5]}}
            for at in range(0, len(text), 5)
        ]
        return [
            {"tool_calls": [{key: value for key, value in row.items() if value is not None}]}
            for row in (begun, *rows)
        ]

    return Notation(_proper, deltas)


def _beside_text(call: Call) -> Json:
    """Return a correct call that also has its text in the message."""
    return _proper(call) | _hermes(call)


def _with_copied_result(call: Call) -> Json:
    return {
        "content": f"{_hermes(call)['content']}\n<tool_response>\nNoted.\n</tool_response>\nI noted it."
    }


def _with_broken_one(call: Call) -> Json:
    broken = tool_call(call.name, '{"text": ', f"{call.call_id}_b")
    return {"content": None, "tool_calls": [broken, *_proper(call)["tool_calls"]]}


NOTATIONS: dict[str, Notation] = {
    "proper": Notation(_proper),
    "fenced": Notation(_fenced),
    "hermes": Notation(_hermes),
    "beside its text": Notation(_beside_text),
    "with a copied result": Notation(_with_copied_result),
    "with a broken one": Notation(_with_broken_one),
    "numbered from one": _numbered(1, 1),
    "head and rest apart": _numbered(0, 1),
    "without numbers": _numbered(None, None),
    "numbered in its head": _numbered(0, None, has_id=False),
    **{name: _written(write) for name, write in (MARKED | BARE).items()},
}
"""Calls as models write them, by name. Add rows here; the campaign draws from all of them."""


@dataclass(frozen=True)
class LocalModel:
    """One model with its faults. By default it has no faults.

    Attributes:
        template: The rule of roles, a name in TEMPLATES.
        template_words: The error text if a request breaks the rule of roles; None for the
            template's usual text.
        status: The status of that error.
        body: The form of error bodies, a name in BODIES.
        refused_fields: Paths of refused fields in the request's body, such as "stream_options".
        field_body: The form of errors about such a field, a name in FIELD_BODIES.
        window: The most tokens of a request with its answer; None for no limit.
        window_words: The error text for a request that is too long, with {n}, {limit} and {budget}.
        budget_counts: The output budget counts towards the window.
        most_output: The largest accepted output budget.
        only_streams: The error text for requests of whole answers; None accepts them.
        usage: The form of reported token counts, a name in USAGES.
        passing: The first answers, one for each request; None stands for the answer that the model
            would give otherwise.
        notation: The form of calls, a name in NOTATIONS.
        is_silent: The model returns nothing if the last message is a tool's result.
        copies: The model repeats an unreadable answer that it finds in the messages.
        takes_tools: If False, requests with tools are refused.
        text: The model's answer; None for a sentence that begins with "I heard you".
        refuses: A rule of the test: it selects the bodies to refuse with `refusal_words`.
    """

    template: str = "any"
    template_words: str | None = None
    status: int = 400
    body: str = "openai"
    refused_fields: tuple[str, ...] = ()
    field_body: str = "openai"
    window: int | None = None
    window_words: str = "This model's maximum context length is {limit} tokens."
    budget_counts: bool = False
    most_output: int | None = None
    only_streams: str | None = None
    usage: str = "honest"
    passing: tuple[Answer | None, ...] = ()
    notation: str = "proper"
    is_silent: bool = False
    copies: bool = False
    takes_tools: bool = True
    text: str | None = None
    refuses: "Callable[[LocalModel, Json], bool] | None" = field(default=None, repr=False)
    refusal_words: str = "Bad Request"
    faults: tuple[str, ...] = ()
    """The families whose faults this model has, for a report."""


@dataclass
class Serving:
    """Statistics of one model: its requests by outcome, and its largest accepted prompt."""

    model: LocalModel
    bodies: list[Json] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    sizes: list[int] = field(default_factory=list)
    largest: int = 0
    passed: int = 0


class LocalModels:
    """The models of one mock server, by name; a ModelServer calls `answer`."""

    def __init__(self, *, keeps_bodies: bool = True) -> None:
        self.serving: dict[str, Serving] = {}
        self._keeps = keeps_bodies
        self._calls = 0

    def add(self, name: str, model: LocalModel) -> Serving:
        self.serving[name] = Serving(model)
        return self.serving[name]

    def answer(self, seen: Seen) -> Answer:
        """Answer one request as the model that it names would."""
        if seen.method == "GET":
            rows = [{"id": name, "object": "model", "owned_by": "local"} for name in self.serving]
            return Answer({"object": "list", "data": rows})
        body = seen.body
        serving = self.serving[body["model"]]
        model = serving.model
        if self._keeps:
            serving.bodies.append(body)
        serving.sizes.append(size_of(body))
        if serving.passed < len(model.passing):
            passing = model.passing[serving.passed]
            serving.passed += 1
            if passing is not None:
                serving.outcomes["passing"] += 1
                return passing
        for kind, check in _CHECKS:
            if (refusal := check(model, body)) is not None:
                serving.outcomes[kind] += 1
                return refusal
        serving.outcomes["answered"] += 1
        serving.largest = max(serving.largest, size_of(body))
        self._calls += 1
        return _speak(model, body, f"call_{self._calls}")


def size_of(body: Json) -> int:
    """Return the prompt's tokens as this server counts them."""
    return (
        len(json.dumps(body["messages"])) + len(json.dumps(body.get("tools", [])))
    ) // _CHARACTERS_PER_TOKEN


# --- rules of roles in the templates of models ---

ALTERNATE = (
    "After the optional system message, conversation roles must alternate "
    "user/assistant/user/assistant/..."
)


def _alternation(rows: Sequence[Json]) -> str | None:
    rows = rows[1:] if rows and rows[0]["role"] == "system" else rows
    for place, row in enumerate(rows):
        if row["role"] != ("user", "assistant")[place % 2] or row.get("tool_calls"):
            return ALTERNATE
    return None if rows and rows[-1]["role"] == "user" else "The last message must be the user's."


def _gemma(rows: Sequence[Json]) -> str | None:
    if rows and rows[0]["role"] == "system":
        return "System role not supported"
    return (
        None
        if _alternation(rows) is None
        else "Conversation roles must alternate user/assistant/user/assistant/..."
    )


def _mistral(rows: Sequence[Json]) -> str | None:
    """Check that users and answers without calls alternate.

    Calls and their results may be in between and do not count.
    """
    rows = rows[1:] if rows and rows[0]["role"] == "system" else rows
    counted = [row for row in rows if row["role"] != "tool" and not row.get("tool_calls")]
    if any(row["role"] != ("user", "assistant")[place % 2] for place, row in enumerate(counted)):
        return ALTERNATE
    for before, row in itertools.pairwise(rows):
        if before["role"] == "tool" and row["role"] not in ("tool", "assistant"):
            return f"Unexpected role '{row['role']}' after role 'tool'"
    if not rows or rows[-1]["role"] not in ("user", "tool"):
        return (
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got "
            f"{rows[-1]['role'] if rows else 'system'}"
        )
    return None


def _one_system(rows: Sequence[Json]) -> str | None:
    late = any(row["role"] == "system" for row in rows[1:])
    return "System message must be at the beginning." if late else None


def _no_tool_roles(rows: Sequence[Json]) -> str | None:
    has_any = any(row["role"] == "tool" or row.get("tool_calls") for row in rows)
    return "Only user, system and assistant roles are supported!" if has_any else None


def _strings(rows: Sequence[Json]) -> str | None:
    for place, row in enumerate(rows):
        if row.get("content") is None:
            return (
                f"Invalid type for 'messages[{place}].content': expected a string, but got null "
                "instead."
            )
    return None


def _user_first(rows: Sequence[Json]) -> str | None:
    spoken = [row["role"] for row in rows if row["role"] != "system"]
    return (
        None if spoken and spoken[0] == "user" else "Conversations must start with a user prompt."
    )


TEMPLATES: dict[str, Callable[[Sequence[Json]], str | None]] = {
    "any": lambda _rows: None,
    "alternation": _alternation,
    "gemma": _gemma,
    "mistral": _mistral,
    "one system": _one_system,
    "no tool roles": _no_tool_roles,
    "strings": _strings,
    "user first": _user_first,
}
# Texts that servers put around a template's error, or send instead of it; the last ones name no
# cause.
TEMPLATE_WORDS: tuple[str | None, ...] = (
    None,
    "Error rendering prompt with jinja template: {own}",
    "jinja2.exceptions.TemplateError: {own}",
    'Jinja Exception: {own} at row 17, column 66: raise_exception("{own}")',
    "Value is not callable: null at row 17, column 66: raise_exception in chat template",
    "Failed to apply chat template",
    "invalid message sequence: two messages of the same role",
    "Die Rollen müssen sich abwechseln",
    "Les rôles doivent alterner",
    "Los roles deben alternarse",
    "消息角色必须交替出现",
    "役割は交互でなければなりません",
    "역할이 번갈아 나와야 합니다",
    "Роли должны чередоваться",
    "Bad Request",
    "E1042",
    "",
)


# --- forms of errors ---


def _openai_body(words: str, param: str | None, status: int) -> Answer:
    error = {"message": words, "type": "invalid_request_error", "param": param, "code": None}
    return Answer({"error": error}, status)


def _vllm_body(words: str, _param: str | None, status: int) -> Answer:
    return Answer(
        {
            "object": "error",
            "message": words,
            "type": "BadRequestError",
            "param": None,
            "code": status,
        },
        status,
    )


BODIES: dict[str, Callable[[str, str | None, int], Answer]] = {
    "openai": _openai_body,
    "vllm": _vllm_body,
    "ollama": lambda words, _param, status: Answer({"error": words}, status),
    "fastapi": lambda words, _param, status: Answer({"detail": words}, status),
    "text": lambda words, _param, status: Answer(
        words.encode(), status, {"content-type": "text/plain"}
    ),
    "html": lambda words, _param, status: Answer(
        f"<html><body><pre>{words}</pre></body></html>".encode(),
        status,
        {"content-type": "text/html"},
    ),
}


def _extra_forbidden(path: str, status: int) -> Answer:
    row = {
        "type": "extra_forbidden",
        "loc": ["body", *path.split(".")],
        "msg": "Extra inputs are not permitted",
    }
    return Answer({"detail": [row]}, 422 if status == 400 else status)


def _old_pydantic(path: str, status: int) -> Answer:
    words = (
        f"1 validation error for ChatCompletionRequest\n{path.replace('.', ' -> ')}\n  extra "
        "fields not permitted"
    )
    return _vllm_body(words, None, status)


FIELD_BODIES: dict[str, Callable[[str, int], Answer]] = {
    "openai": lambda path, status: _openai_body(
        f"Unsupported parameter: '{path}' is not supported with this model.", path, status
    ),
    "old openai": lambda path, status: _openai_body(
        f"Unrecognized request argument supplied: {path}", None, status
    ),
    "pydantic": _extra_forbidden,
    "old pydantic": _old_pydantic,
    "text": lambda path, status: Answer(
        f"unknown field `{path}`".encode(), status, {"content-type": "text/plain"}
    ),
    "rust": lambda path, status: Answer(
        f"Failed to deserialize the JSON body into the target type: {path}: unknown variant".encode(),
        status,
    ),
    "chinese": lambda path, status: Answer(
        {"error": {"code": "1210", "message": f"参数 {path} 非法"}}, status
    ),
    "german": lambda path, status: Answer(
        {"error": f"Das Feld {path} wird nicht unterstützt."}, status
    ),
    "silent": lambda _path, status: Answer({"error": {"message": "Bad Request"}}, status),
}


# --- the checks, in the order in which servers make them ---


def _refused_field(model: LocalModel, body: Json) -> Answer | None:
    for path in model.refused_fields:
        if _has(body, path.split(".")):
            return FIELD_BODIES[model.field_body](path, model.status)
    if model.refuses and model.refuses(model, body):
        return BODIES[model.body](model.refusal_words, None, model.status)
    if not model.takes_tools and body.get("tools"):
        return BODIES[model.body](f"{body['model']} does not support tools", None, 400)
    return None


def _has(value: Any, path: Sequence[str]) -> bool:
    if not path:
        return True
    if isinstance(value, list):
        return any(_has(each, path) for each in value)
    return isinstance(value, dict) and path[0] in value and _has(value[path[0]], path[1:])


def _refused_roles(model: LocalModel, body: Json) -> Answer | None:
    own = TEMPLATES[model.template](body["messages"])
    if own is None:
        return None
    words = own if model.template_words is None else model.template_words.replace("{own}", own)
    return BODIES[model.body](words, None, model.status)


def _whole_answer(model: LocalModel, body: Json) -> Answer | None:
    if model.only_streams is None or body.get("stream"):
        return None
    return BODIES[model.body](model.only_streams, None, 400)


def _too_long(model: LocalModel, body: Json) -> Answer | None:
    budget = body.get("max_tokens") or body.get("max_completion_tokens") or 0
    if model.most_output is not None and budget > model.most_output:
        words = (
            f"max_tokens is too large: {budget}. This model supports at most {model.most_output} "
            "completion tokens"
        )
        return BODIES[model.body](words, None, 400)
    size = size_of(body)
    if model.window is None or size + (budget if model.budget_counts else 0) <= model.window:
        return None
    words = model.window_words.format(
        n=size, limit=model.window, budget=budget, total=size + budget
    )
    return BODIES[model.body](words, None, model.status)


_CHECKS = (
    ("field", _refused_field),
    ("roles", _refused_roles),
    ("stream", _whole_answer),
    ("length", _too_long),
)


# --- answers ---

USAGES: dict[str, Callable[[int], Json | None]] = {
    "honest": lambda size: {
        "prompt_tokens": size,
        "completion_tokens": 5,
        "total_tokens": size + 5,
    },
    "none": lambda _size: None,
    "clipped": lambda size: {"prompt_tokens": min(size, 2_050), "completion_tokens": 5},
    "zero": lambda _size: {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "cached apart": lambda size: {
        "prompt_tokens": size // 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": size - size // 10},
    },
    "double": lambda size: {"prompt_tokens": size * 2, "completion_tokens": 5},
    "above 64 bits": lambda _size: {
        "prompt_tokens": 2**64 + 1,
        "completion_tokens": 2**70,
        "total_tokens": 2**71,
    },
    "negative": lambda _size: {
        "prompt_tokens": -1,
        "completion_tokens": -(2**63),
        "total_tokens": -2,
    },
    "texts": lambda size: {
        "prompt_tokens": str(size),
        "completion_tokens": "five",
        "prompt_tokens_details": "none",
    },
    "fractions": lambda size: {
        "prompt_tokens": size + 0.5,
        "completion_tokens": None,
        "total_tokens": 1e300,
    },
    "low": lambda size: {"prompt_tokens": size // 3, "completion_tokens": 5},
}


def _speak(model: LocalModel, body: Json, call_id: str) -> Answer:
    usage = USAGES[model.usage](size_of(body))
    call = _ordered_call(body, call_id)
    if copied := _copied(model, body):
        return completion(copied, usage=usage)
    if model.is_silent and body["messages"][-1]["role"] == "tool":
        return completion("", usage=usage)
    if call is None:
        message: Json = {
            "content": model.text
            or f"I heard you, and have {len(body['messages'])} messages before me."
        }
        notation = None
    else:
        notation = NOTATIONS[model.notation]
        message = notation.message(call)
    if not body.get("stream"):
        calls = message.get("tool_calls", [])
        more = {
            name: value for name, value in message.items() if name not in ("content", "tool_calls")
        }
        return completion(message.get("content"), calls, usage=usage, **more)
    own = notation.deltas(call) if notation and notation.deltas and call else None
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return stream(*(own or _deltas(message)), finish=finish, usage=usage)


def _copied(model: LocalModel, body: Json) -> str | None:
    """Return an unreadable answer of the model, if any message holds it."""
    said = "\n".join(_text(row) for row in body["messages"]) if model.copies else ""
    return next((text for text in UNREADABLE_TEXTS if text in said), None)


def _deltas(message: Json) -> list[Json]:
    rows: list[Json] = []
    for name, value in message.items():
        if isinstance(value, str):
            half = len(value) // 2
            rows += [{name: value[:half]}, {name: value[half:]}]
        elif name == "tool_calls":
            rows += [{name: [{"index": place, **one}]} for place, one in enumerate(value)]
    return rows


def _ordered_call(body: Json, call_id: str) -> Call | None:
    """Return the call that the user's last message orders, unless its result is there already."""
    rows = body["messages"]
    if not body.get("tools") or rows[-1]["role"] == "tool":
        return None
    found = _ORDER.search(_text(rows[-1]))
    offered = {row["function"]["name"] for row in body["tools"]}
    if (
        rows[-1]["role"] != "user"
        or not found
        or found.group(1) not in offered
        or "Result of" in _text(rows[-1])
    ):
        return None
    return Call(found.group(1), json.loads(found.group(2)), call_id)


def _text(row: Json) -> str:
    content = row.get("content") or ""
    return (
        content
        if isinstance(content, str)
        else " ".join(str(part.get("text", "")) for part in content)
    )


# --- random models ---

TOO_LONG_WORDS = (
    (
        "This model's maximum context length is {limit} tokens. However, your messages resulted in "
        "{n} tokens."
    ),
    "prompt is too long: {n} tokens > {limit} maximum",
)
STREAM_WORDS = (
    "This model only support stream mode, please enable the stream parameter to access the model.",
    "parameter.enable_thinking must be set to false for non-streaming calls",
    "该模型仅支持流式调用",
    "Non-streaming requests are not supported by this endpoint.",
)
FIELDS = (
    "stream_options",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "temperature",
    "user",
    "response_format",
)
_BUSY = Answer({"error": {"message": "boom"}}, 500)
_SLOW_DOWN = Answer({"error": {"message": "slow down"}}, 429)
_EMPTY = completion("")
_ERROR_INSIDE = Answer({"error": {"message": "the upstream failed", "code": 502}})
# Unreadable answers: cut or broken calls, copied results, calls of unknown tools.
UNREADABLE_TEXTS = (
    "<tool_call>\n{broken\n</tool_call>",
    '<tool_call>\n{"name": "nobody_has_this", "arguments": {}}\n</tool_call>',
    "<tool_response>\nNoted.\n</tool_response>",
    '{\n  "status": "OK",\n  "message": "Noted.",\n  "time": "2026-11-26 05:00:00 PM UTC+0000"\n}',
    '{"name": "jot"}',
    'Sure.\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="jot">\n<｜DSML｜para',
    "<|channel|>commentary to=functions.jot <|constrain|>json<|message|>{",
    '[TOOL_CALLS]jot[ARGS]{"text": ',
    "jot(text=open('x'))",
)
UNREADABLE = tuple(map(completion, UNREADABLE_TEXTS))


def _roles(luck: Luck, model: LocalModel) -> LocalModel:
    template = luck.choice([name for name in TEMPLATES if name != "any"])
    words = luck.choice(TEMPLATE_WORDS)
    return replace(
        model, template=template, template_words=words, status=luck.choice((400, 400, 422, 500))
    )


def _fields(luck: Luck, model: LocalModel) -> LocalModel:
    names = tuple(luck.sample(FIELDS, luck.choice((1, 1, 2))))
    return replace(model, refused_fields=names, field_body=luck.choice(list(FIELD_BODIES)))


def _window(luck: Luck, model: LocalModel) -> LocalModel:
    return replace(
        model, window=luck.randint(5_000, 9_000), window_words=luck.choice(TOO_LONG_WORDS)
    )


def _streams(luck: Luck, model: LocalModel) -> LocalModel:
    return replace(model, only_streams=luck.choice(STREAM_WORDS))


def _counts(luck: Luck, model: LocalModel) -> LocalModel:
    return replace(model, usage=luck.choice([name for name in USAGES if name != "honest"]))


def _budget(luck: Luck, model: LocalModel) -> LocalModel:
    return replace(model, most_output=luck.choice((256, 1_024, 4_096)))


def _passing(luck: Luck, model: LocalModel) -> LocalModel:
    first = [None] * luck.randint(0, 3)
    fault = luck.choice((_BUSY, _SLOW_DOWN, _EMPTY, _ERROR_INSIDE))
    return replace(model, passing=(*first, *([fault] * luck.choice((1, 2, 4)))))


def _unreadable(luck: Luck, model: LocalModel) -> LocalModel:
    first = [None] * luck.randint(0, 3)
    faults = [luck.choice(UNREADABLE) for _ in range(luck.choice((1, 1, 2)))]
    return replace(model, passing=(*first, *faults), copies=True)


def _silence(_luck: Luck, model: LocalModel) -> LocalModel:
    return replace(model, is_silent=True)


def _notations(luck: Luck, model: LocalModel) -> LocalModel:
    return replace(model, notation=luck.choice([name for name in NOTATIONS if name != "proper"]))


FAMILIES: dict[str, Callable[[Luck, LocalModel], LocalModel]] = {
    "roles": _roles,
    "fields": _fields,
    "window": _window,
    "streams": _streams,
    "counts": _counts,
    "budget": _budget,
    "passing": _passing,
    "notations": _notations,
    "unreadable": _unreadable,
    "silence": _silence,
}
"""The families of faults. Each function adds a fault of its family to a model.

Add a family here, and the campaign draws from it.
"""


def random_model(luck: Luck, family: str | None = None, most: int = 3) -> LocalModel:
    """Return a model with one to `most` faults of different families, `family` among them."""
    names = luck.sample(list(FAMILIES), luck.randint(1, most))
    if family and family not in names:
        names[0] = family
    model = LocalModel(body=luck.choice(list(BODIES)))
    for name in names:
        model = FAMILIES[name](luck, model)
    return replace(model, faults=tuple(names))
