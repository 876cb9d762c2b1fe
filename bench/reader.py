"""A scripted model that follows the texts of the memory tools, over HTTP.

It is not a language model. It stores statements with the archive's tool or in a block. If a newer
statement changes a line of a block, it corrects the line. If the user wishes to forget something,
it calls the tool that forgets. If the user asks, it searches.

It answers by one rule. It takes the statement that shares most words with the question, and follows
the updates of that statement to the newest one. It contains no question of any benchmark, and gets
a question only when the question is asked. `python -m bench.reader` prints the address of its
server.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.model import serve
from ricordo.features.librarian.view import shown_blocks
from ricordo.search.words import query_terms, terms
from tests.support.model_server import Answer, Seen, completion, stream, tool_call

MODEL = "reader"
# Adapters of benchmarks send the texts of an assistant or a system as messages of the user.
_QUOTED = re.compile(r"^\[[^\]\n]{1,60}\]:")
_QUESTION = re.compile(
    r"\?\s*$|^(?:what|who|whose|where|when|which|why|how|is|are|was|were|does|do|did|has|have|can|tell me|"
    r"summari[sz]e|describe|list)\b",
    re.IGNORECASE,
)
_WISH = re.compile(r"\b(?:forget|delete|erase|remove|stop remembering)\b(?P<what>.*)", re.I | re.S)
_FIRST = re.compile(r"\b(?:i|i['’]\w+|my|me|we|we['’]\w+|our|us|mine)\b", re.IGNORECASE)
# Words by which people mark a change.
_UPDATE = re.compile(
    r"\b(?:actually|now|just|no longer|any ?more|already|instead|finally|officially|update|new|"
    r"changed|switched|moved|moving|finished|started|sorry|correction|but|sadly|push(?:ed)?)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_ASKING = frozenset(
    terms(
        "what who whose where when which why how is are was were does do did has have can tell me "
        "about the user user's currently current now please forget delete erase remove everything "
        "that this it from your memory for i my don't want talk anymore actually immediately and "
        "information reasons privacy right you're shouldn't shared stored"
    )
)
# Groups of words about the same matter: a person who moved lives somewhere else.
_MATTERS = (
    "live lives living home moved move moving settled relocated reside",
    "work works working job position role employer employed hired started joined company",
    "old age years birthday born turned",
    "name called call",
    "eat food diet vegetarian vegan allergic allergy",
    "drive drives car",
)
_UNKNOWN = "I don't know: you have not mentioned it."


@dataclass(frozen=True)
class Turn:
    """The content of a request: the last message, the earlier ones, and results since then."""

    text: str
    earlier: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    tools: frozenset[str]
    system: str

    @property
    def statements(self) -> tuple[str, ...]:
        """Return the person's earlier statements in order, without wishes and questions."""
        return tuple(text for text in self.earlier if not wish_of(text))

    def called(self, *names: str) -> list[str]:
        """Return the results of calls to these tools in this turn."""
        return [content for name, content in self.results if name in names]


def turn_of(body: dict[str, Any]) -> Turn:
    """Read a request of OpenAI's chat completions."""
    messages = body["messages"]
    users = [index for index, one in enumerate(messages) if one["role"] == "user"]
    last = users[-1] if users else 0
    names = {
        call["id"]: call["function"]["name"]
        for one in messages
        for call in one.get("tool_calls") or ()
    }
    return Turn(
        text=_text(messages[last]),
        earlier=tuple(
            text
            for index in users[:-1]
            if (text := _text(messages[index])) and not _QUOTED.match(text)
        ),
        results=tuple(
            (names.get(one.get("tool_call_id"), ""), _text(one))
            for one in messages[last + 1 :]
            if one["role"] == "tool"
        ),
        tools=frozenset(tool["function"]["name"] for tool in body.get("tools") or ()),
        system="\n".join(_text(one) for one in messages if one["role"] in ("system", "developer")),
    )


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


def wish_of(text: str) -> str:
    """Return the text of a wish to forget; "" for any other text."""
    match = _WISH.search(text)
    if match is None or _QUESTION.search(text) or "don't forget" in text.casefold():
        return ""
    return text


def subject_of(text: str) -> frozenset[str]:
    """Return the words that name the subject of a question or wish."""
    return frozenset(query_terms(text)) - _ASKING


def matter_of(subject: frozenset[str]) -> frozenset[str]:
    """Return the subject with the other words of its matter."""
    matters = (frozenset(terms(words)) for words in _MATTERS)
    return subject.union(*(matter for matter in matters if matter & subject))


def newest(question: str, statements: Sequence[str]) -> str:
    """Return the newest statement that answers a question; "" if none does."""
    subject = subject_of(question)
    matter = matter_of(subject)
    points = [
        2 * len(subject & {*terms(text)}) + bool(matter & {*terms(text)}) for text in statements
    ]
    if not points or not max(points):
        return ""
    place = points.index(max(points))
    current = statements[place]
    topics = matter | _names(current)
    for text in statements[place + 1 :]:
        words = {*terms(text)}
        if _UPDATE.search(text) and words & topics:
            current = text
            topics |= _names(text)
    return current


def _names(text: str) -> frozenset[str]:
    """Return the words by which a later statement may refer to this one."""
    return frozenset(query_terms(text)) - _ASKING


def is_wished(wish: str, sentence: str) -> bool:
    return bool(subject_of(wish) & {*terms(sentence)})


def reply_to(turn: Turn) -> str | list[dict[str, Any]]:
    """Return the calls of the next step, or the answer."""
    if wish := wish_of(turn.text):
        return _forget(turn, wish)
    if _QUOTED.match(turn.text):
        return "All right."
    if _QUESTION.search(turn.text):
        return _look_up(turn)
    return _keep(turn)


def _forget(turn: Turn, wish: str) -> str | list[dict[str, Any]]:
    if turn.called("forget"):
        return turn.called("forget")[-1]
    if "forget" not in turn.tools:
        return "I cannot forget anything: I have no tool for it."
    said = [part for text in turn.statements for part in _SENTENCE.split(text)]
    lines = [part for part in said if is_wished(wish, part)] or [
        " ".join(sorted(subject_of(wish))) or wish
    ]
    return [_call("forget", text="\n".join(dict.fromkeys(lines)), reason="They asked for it.")]


def _look_up(turn: Turn) -> str | list[dict[str, Any]]:
    searches = [
        name for name in ("conversation_search", "archival_memory_search") if name in turn.tools
    ]
    if searches and not turn.results:
        return [_call(name, query=turn.text) for name in searches]
    notes = [
        line
        for block in shown_blocks(turn.system)
        if block.label != "persona"
        for line in block.value.split("\n")
        if line.strip()
    ]
    told = [*_found(turn), *notes, *turn.statements]
    return newest(turn.text, list(dict.fromkeys(told))) or _UNKNOWN


def _found(turn: Turn) -> list[str]:
    """Return the texts that searches found, oldest first."""
    rows: list[dict[str, Any]] = []
    for content in turn.called("conversation_search", "archival_memory_search"):
        try:
            package = json.loads(content)
            result = package.get("message") if isinstance(package, dict) else package
            result = json.loads(result) if isinstance(result, str) else result
        except ValueError:
            continue
        listed = result.get("results", []) if isinstance(result, dict) else result
        rows += [row for row in listed if isinstance(row, dict) and "content" in row]
    rows.sort(key=lambda row: str(row.get("timestamp")))
    said = [row for row in rows if row.get("role", "user") == "user"]
    return [str(row["content"]) for row in said if not wish_of(str(row["content"]))]


def _keep(turn: Turn) -> str | list[dict[str, Any]]:
    if turn.results or not _FIRST.search(turn.text):
        return "I have noted that." if turn.results else "All right."
    for block in shown_blocks(turn.system):
        if block.label == "human" and {"memory_insert", "memory_replace"} <= turn.tools:
            lines = [line for line in block.value.split("\n") if line.strip()]
            old = newest(turn.text, lines) if _UPDATE.search(turn.text) else ""
            if old:
                call = _call("memory_replace", label="human", old_string=old, new_string=turn.text)
            else:
                call = _call("memory_insert", label="human", new_string=turn.text)
            return [call]
    if "archival_memory_insert" in turn.tools:
        return [_call("archival_memory_insert", content=turn.text, tags=["said"])]
    return "All right."


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def answer(seen: Seen) -> Answer:
    """Answer one request of the server."""
    if seen.method == "GET":
        return Answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
    body = seen.body
    reply = reply_to(turn_of(body))
    key = len(body["messages"])
    calls = (
        []
        if isinstance(reply, str)
        else [
            tool_call(call["name"], json.dumps(call["arguments"]), f"call_{key}_{number}")
            for number, call in enumerate(reply)
        ]
    )
    text = reply if isinstance(reply, str) else None
    if body.get("stream"):
        delta: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            delta["tool_calls"] = [{"index": number} | call for number, call in enumerate(calls)]
        return stream(delta, finish="tool_calls" if calls else "stop")
    return completion(text, calls)


if __name__ == "__main__":
    asyncio.run(serve(answer))
