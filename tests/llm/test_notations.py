"""Every notation of a call: whole, and streamed in pieces of any size.

The arguments hold all kinds of values. Answers without a call are tested too.
"""

import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import (
    Chunk,
    FinishReason,
    ModelReply,
    ModelRequest,
    ReasoningChunk,
    Restarted,
    TextChunk,
    ToolSchema,
)
from ricordo.llm.repair import StreamRepair, fault_in, repair
from tests.campaigns.sizes import short_and_long
from tests.support.notations import BARE, MARKED, MARKS, TOOLS, Call, as_json, dsml

REQUEST = ModelRequest((), TOOLS)
TEA: Call = ("memory_insert", {"label": "human", "new_string": "Likes tea."})
ROME: Call = ("memory_insert", {"label": "human", "new_string": "Lives in Rome."})
ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": TEA[1],
    "quotes": {"label": "human", "new_string": 'She said "no" and it\'s fine.'},
    "newlines": {"label": "human", "new_string": "First.\nSecond.\n\nThird."},
    "unicode": {"label": "human", "new_string": "Über Zürich: 茶, 🍵, ½ «thé»."},
    "brackets": {"label": "human", "new_string": "a < b, {c} [d] (e) & f > g; \\n stays"},
    "marks": {"label": "human", "new_string": "Says </b> and `code` and [1]."},
    "numbers": {"label": "human", "new_string": "x", "insert_line": -1, "is_final": True},
    "nested": {
        "label": "human",
        "new_string": "x",
        "options": {"deep": {"list": [1, 2.5, None], "text": "y"}},
    },
}
FINISHES = ("length", "stop")
# First characters of the marks that are checked. `functools[` is not checked, since its beginning
# is an ordinary word.
SIGNS = "<["


def text_reply(text: str, finish: FinishReason = "stop") -> ModelReply:
    return ModelReply((TextPart(text),), finish=finish)


def calls_of(reply: ModelReply) -> list[Call]:
    return [
        (part.name, orjson.loads(part.arguments))
        for part in reply.parts
        if isinstance(part, ToolCallPart)
    ]


def texts_of(reply: ModelReply) -> str:
    return "".join(part.text for part in reply.parts if isinstance(part, TextPart))


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def streamed(pieces: list[str], reply: ModelReply) -> tuple[list[Chunk], str]:
    """Return all chunks of a stream, and the text that was shown before the reply was known."""
    stream = StreamRepair(TOOLS)
    early = [chunk for piece in pieces for chunk in stream.feed(TextChunk(piece))]
    seen = "".join(chunk.text for chunk in early if isinstance(chunk, TextChunk | ReasoningChunk))
    return early + list(stream.close(reply)), seen


def final_text(chunks: list[Chunk]) -> str:
    text = ""
    for chunk in chunks:
        text = "" if isinstance(chunk, Restarted) else text
        text += chunk.text if isinstance(chunk, TextChunk) else ""
    return text


@pytest.mark.parametrize("notation", [*MARKED, *BARE])
def test_calls_are_read_whatever_their_arguments_contain(notation: str) -> None:
    write = (MARKED | BARE)[notation]
    for kind, values in ARGUMENTS.items():
        for calls in (
            [("memory_insert", values)],
            [("memory_insert", values), ROME],
            [ROME, ("memory_insert", values)],
        ):
            text = write(calls)
            mended = repair(text_reply(text), TOOLS)
            assert calls_of(mended) == calls, (kind, text)
            assert texts_of(mended) == "", (kind, text)
            assert fault_in(mended, REQUEST) is None


@pytest.mark.parametrize("notation", MARKED)
def test_text_around_marked_calls_stays_text(notation: str) -> None:
    text = MARKED[notation]([TEA, ROME])
    for before, after in (
        ("Sure, I note it.\n\n", ""),
        ("", "\n\nI have noted that."),
        ("Sure.\n", "\nDone, as you said."),
    ):
        mended = repair(text_reply(before + text + after), TOOLS)
        assert calls_of(mended) == [TEA, ROME], text
        assert texts_of(mended).split() == (before + after).split(), text


@pytest.mark.parametrize("notation", [*MARKED, *BARE])
def test_a_reader_of_a_stream_sees_no_call_mark(notation: str) -> None:
    is_marked = notation in MARKED
    whole = (MARKED | BARE)[notation]([TEA, ROME])
    for before in ("", "Sure, I note it.\n\n") if is_marked else ("",):
        text = before + whole
        mended = repair(text_reply(text), TOOLS)
        for size in (1, 2, 3, 5, 8, 21, len(text)):
            chunks, seen = streamed(pieces_of(text, size), mended)
            assert final_text(chunks).strip() == texts_of(mended) == before.strip(), (size, text)
            if is_marked and "words" not in notation:
                assert before.startswith(seen.rstrip()), (size, text)


@pytest.mark.parametrize("is_whole", short_and_long(False, True))
@pytest.mark.parametrize("notation", MARKED)
def test_a_stream_cut_anywhere_shows_no_call_mark(notation: str, is_whole: bool) -> None:
    before = "Sure, I note it.\n\n"
    text = before + MARKED[notation]([TEA])
    for end in range(len(before), len(text)):
        cut = text[:end]
        for finish in FINISHES if is_whole else FINISHES[end % 2 :][:1]:
            mended = repair(text_reply(cut, finish), TOOLS)
            fault = fault_in(mended, REQUEST)
            if fault is None:
                assert not any(
                    mark[:5] in texts_of(mended) for mark in MARKS if mark[0] in SIGNS
                ), cut
                assert all(call == TEA for call in calls_of(mended)), cut
            elif not fault.is_useless:
                assert any(isinstance(part, ToolCallPart) for part in mended.parts), cut
        if "words" not in notation:
            _, seen = streamed(pieces_of(cut, 3), mended)
            assert not any(mark[:5] in seen for mark in MARKS if mark[0] in SIGNS), cut


def test_an_unreadable_call_does_not_lose_the_others() -> None:
    good = f"<tool_call>\n{as_json(TEA)}\n</tool_call>"
    for bad in (
        "<tool_call>\n{broken\n</tool_call>",
        f"<tool_call>\n{as_json(TEA)[:40]}",
        f"<tool_call>\n{as_json(('nobody_has_this', {}))}\n</tool_call>",
        "<function=nobody_has_this>\n</function>",
        '<invoke name="memory_insert">\n<parameter name="label">hu',
    ):
        for text in (f"{good}\n{bad}", f"{bad}\n{good}", f"Sure.\n{good}\n{bad}\n{good}"):
            mended = repair(text_reply(text), TOOLS)
            calls = calls_of(mended)
            assert calls.count(TEA) == text.count(good), text
            assert sum(name not in {tool.name for tool in TOOLS} for name, _ in calls) == 1, text
            assert fault_in(mended, REQUEST) is None
            assert "<" not in texts_of(mended)


BROKEN = (
    *(
        mark
        for mark in MARKS
        if mark not in ("<function=", "<invoke name=", "functools[", "<|channel|>commentary to=")
    ),
    "<tool_call>\n{broken\n</tool_call>",
    f"<tool_call>\n{as_json(('memory_update', TEA[1]))}\n</tool_call>",
    f"<tool_call>\n{as_json(TEA)[:-1]} // store it\n}}\n</tool_call>",
    f"I look. {as_json(TEA).join(('<tool_call>', ''))[:50]}",
    '{"name": "memory_insert"}',
    '{"name": "memory_insert", "arguments": ',
    '{"tool": "conversation_search", "arguments": [1]}',
    "memory_insert(label=open('x'))",
    "memory_insert(label='human', new_str",
    "<tool_response>\nNo results found.\n</tool_response>",
    "I noted it.\n<tool_response>\nOK\n</tool_response>",
    "<|tool_response|>OK",
    "[TOOL_RESULTS]OK[/TOOL_RESULTS]",
    "<｜tool▁output▁begin｜>OK<｜tool▁output▁end｜>",
    (
        '{\n  "status": "OK",\n  "message": "No results found.",\n  "time": "2026-11-26 05:00:00 PM '
        'UTC+0000"\n}'
    ),
    '{"type": "heartbeat", "reason": "x", "message": "x", "time": "y"}'.replace(
        '"reason": "x", ', ""
    ),
    dsml([TEA], "tool_calls")[:90],
    dsml([("nobody_has_this", {})], "function_calls"),
    "Sure.\n<tool_c",
    "Sure.\n<｜DSM",
)


@pytest.mark.parametrize("text", BROKEN)
def test_an_unreadable_call_or_copied_result_is_a_fault(text: str) -> None:
    mended = repair(text_reply(text), TOOLS)
    assert calls_of(mended) == []
    fault = fault_in(mended, REQUEST)
    assert fault is not None
    assert fault.is_useless
    assert fault_in(repair(text_reply(text, "length"), TOOLS), REQUEST) is not None


def test_a_result_invented_by_the_model_after_its_call_is_dropped() -> None:
    for notation in MARKED:
        text = (
            f"Sure.\n{MARKED[notation]([TEA])}\n<tool_response>\nOK\n</tool_response>\nI have "
            "noted that."
        )
        mended = repair(text_reply(text), TOOLS)
        assert calls_of(mended) == [TEA], text
        assert texts_of(mended) == "Sure.", text


def test_channels_become_reasoning_text_and_calls() -> None:
    for text, thought, said in (
        (
            (
                "<|channel|>analysis<|message|>Nothing to "
                "save.<|end|><|start|>assistant<|channel|>final<|message|>Nice to hear."
            ),
            "Nothing to save.",
            "Nice to hear.",
        ),
        ("<|channel|>final<|message|>Nice to hear.<|return|>", "", "Nice to hear."),
        ("<|start|>assistant<|channel|>final<|message|>Nice to hear.", "", "Nice to hear."),
        (
            "<|channel|>analysis<|message|>One.<|end|><|channel|>analysis<|message|>Two.<|end|><|channel|>final<|message|>Yes.",
            "One.\n\nTwo.",
            "Yes.",
        ),
        (
            "Nothing to save.<|end|><|start|>assistant<|channel|>final<|message|>Nice to hear.",
            "Nothing to save.",
            "Nice to hear.",
        ),
        (
            (
                "<|channel|>commentary<|message|>I "
                "look.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
            ),
            "",
            "I look.\n\nYes.",
        ),
        (
            "analysisNothing to save.assistantfinalNice to hear.",
            "Nothing to save.",
            "Nice to hear.",
        ),
        ("assistantfinalNice to hear.", "", "Nice to hear."),
        ("<|channel|>final <|constrain|>json<|message|>Nice to hear.", "", "Nice to hear."),
        ("<|channel|>analysis<|message|>Cut in the mid", "Cut in the mid", ""),
    ):
        mended = repair(text_reply(text), TOOLS)
        thoughts = [part.text for part in mended.parts if isinstance(part, ReasoningPart)]
        assert (thoughts, texts_of(mended)) == ([thought] if thought else [], said), text
        assert fault_in(mended, REQUEST) is None
        for size in (1, 4, len(text)):
            chunks, seen = streamed(pieces_of(text, size), mended)
            assert final_text(chunks) == said, text
            assert "<|" not in seen, text
    with_call = (
        "<|channel|>analysis<|message|>Save it.<|end|><|start|>assistant<|channel|>commentary to=functions.memory_insert "
        '<|constrain|>json<|message|>{"label":"human","new_string":"Likes tea."}<|call|>'
    )
    mended = repair(text_reply(with_call), TOOLS)
    assert (calls_of(mended), texts_of(mended)) == ([TEA], "")
    in_words = (
        "analysisSave it.assistantcommentary to=functions.memory_insert "
        'json{"label":"human","new_string":"Likes tea."}'
    )
    assert calls_of(repair(text_reply(in_words), TOOLS)) == [TEA]


def test_a_call_in_the_reasoning_counts_only_if_there_is_no_other_text() -> None:
    thought = f"I should note it.\n{dsml([TEA], 'tool_calls')}"
    assert calls_of(repair(ModelReply((ReasoningPart(thought),)), TOOLS)) == [TEA]
    assert calls_of(repair(ModelReply((ReasoningPart(thought), TextPart("Noted."))), TOOLS)) == []


def test_a_written_call_next_to_a_real_one_is_removed() -> None:
    real = ToolCallPart("1", "get_time", "{}")
    for notation in MARKED:
        reply = ModelReply((TextPart(f"Sure.\n{MARKED[notation]([TEA])}"), real))
        mended = repair(reply, TOOLS)
        assert (calls_of(mended), texts_of(mended)) == ([("get_time", {})], "Sure."), notation


def test_end_of_message_tokens_are_removed_from_the_text() -> None:
    for sign in (
        "<|im_end|>",
        "<|eot_id|>",
        "<|endoftext|>",
        "<|im_end|>\n<|im_start|>user\nAnd now?",
        "</s>",
    ):
        mended = repair(text_reply(f"Nice to hear.{sign}"), TOOLS)
        assert texts_of(mended) == "Nice to hear.", sign


ANSWERS = (
    "Nice to hear.",
    "a < b, and c > d; also x<y.",
    "The tag <tool_call> is used by some models.",
    "Models write `<tool_call>{}</tool_call>` before a call.",
    "Mistral marks calls with [TOOL_CALLS] and results with `[TOOL_RESULTS]`.",
    "<tool_call> is what Hermes begins with.",
    "gpt-oss has channels: `<|channel|>analysis`, `<|channel|>final`.",
    "Use `memory_insert` to note it, or conversation_search to find it.",
    "I used memory_insert(label, new_string) for that.",
    "memory_insert is the tool that I used; get_time tells the time.",
    "memory_insert(label, new_string) adds a line, get_time() tells the time.",
    'JSON looks like this: {"name": "Ada", "age": 36}.',
    '{"name": "Ada", "age": 36}',
    '[{"name": "Ada"}, {"name": "Bob"}]',
    '{"city": "Rome", "arguments": {"for": 1}}',
    "[1, 2, 3]",
    "[see the notes]",
    'Here is the object:\n{"a": 1}\nIt has one key.',
    'Look:\n```json\n{"a": 1}\n```\nThat was an example.',
    'Look:\n```json\n{"a": 1}\n```',
    '```json\n{"a": 1}\n```',
    f"Call it so:\n```json\n{as_json(TEA)}\n```\nThen read the answer.",
    (
        "Call it so:\n```python\nmemory_insert(label='human', new_string='x')\n```\nThen read the "
        "answer."
    ),
    (
        'Hermes writes:\n```xml\n<tool_call>\n{"name": "search", "arguments": '
        "{}}\n</tool_call>\n```\nThat is all."
    ),
    'Hermes writes:\n```xml\n<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>\n```',
    "```python\nprint(1)\n```",
    "```html\n<div><function>x</function></div>\n```",
    '<div class="a">\n  <b>Hello</b>\n</div>',
    '<?xml version="1.0"?>\n<tools>\n  <tool name="hammer"/>\n</tools>',
    "<query>select 1</query> is the element.",
    "In Rust: fn get<T>(x: Vec<T>) -> Option<T> { x.pop() }",
    "def get_time():\n    return 1",
    "const f = (a) => ({ name: 'memory_insert', arguments: a });",
    "if (a[0] < b[1]) { call(a); }",
    "My answer to your function call question: call: me later.",
    "The analysis is done. Finally, the assistant final version is out.",
    "analysis of the data shows a rise.",
    "Send it to=you and cc=me.",
    "| tool | use |\n| --- | --- |\n| memory_insert | notes |",
    "Action: call your mother. Input: none.",
    "Le thé < le café; 「茶」 と <お茶>.",
    "2 < 3 and [TODO] remains.",
    "{not json} but braces",
    "{{ template }} and {{name}} are placeholders.",
    "Type `functools.partial` to bind; functools is a module.",
    "I noted: label human, new_string Likes tea.",
)


SMALL_TOOLS = (
    ToolSchema(
        "search",
        "Search.",
        {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    ),
    ToolSchema(
        "correct",
        "Correct a note.",
        {
            "type": "object",
            "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
            "required": ["old", "new"],
        },
    ),
)
TEA_FOUND: Call = ("search", {"query": "tea"})
OLDER: Call = ("correct", {"old": "He is 4.", "new": "He is 5."})


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("<search>tea</search>", TEA_FOUND),
        ("<search> tea\n</search>\n", TEA_FOUND),
        ("I look.\n<search>tea</search>", TEA_FOUND),
        ('<search>{"query": "tea"}</search>', TEA_FOUND),
        ('<search>"query": "tea"</search>', TEA_FOUND),
        ("<search><query>tea</query></search>", TEA_FOUND),
        ('<correct>"old": "He is 4.", "new": "He is 5."}</correct>', OLDER),
        ('<correct>"old": "He is 4.", "new": "He is 5."</correct>', OLDER),
        ("<correct><old>He is 4.</old><new>He is 5.</new></correct>", OLDER),
        # A 1.5B model wrote this text, without the quote before the first name.
        ('<correct>old": "He is 4", "new": "He is 5"}</correct>', None),
        # This text does not say which argument the value is for.
        ("<correct>He is 5.</correct>", None),
        ("<search></search>", None),
    ],
)
def test_an_element_named_like_a_tool_is_a_call_or_a_fault(text: str, call: Call | None) -> None:
    mended = repair(text_reply(text), SMALL_TOOLS)
    assert calls_of(mended) == ([call] if call else [])
    assert "<" not in texts_of(mended) or call is None
    fault = fault_in(mended, ModelRequest((), SMALL_TOOLS))
    assert (fault is None) == (call is not None)


def test_an_element_with_another_name_stays_text() -> None:
    for text in ("<find>tea</find>", "The element <search>tea</search> is new in HTML."):
        assert repair(text_reply(text), SMALL_TOOLS) == text_reply(text)


@pytest.mark.parametrize("text", ANSWERS)
def test_an_ordinary_answer_stays_text_without_a_fault(text: str) -> None:
    reply = text_reply(text)
    mended = repair(reply, TOOLS)
    assert mended == reply
    assert fault_in(mended, REQUEST) is None
    for size in (1, 3, 7, len(text)):
        chunks, _ = streamed(pieces_of(text, size), mended)
        assert final_text(chunks) == text
        assert not any(isinstance(chunk, Restarted) for chunk in chunks), size


def _words() -> Iterator[str]:
    yield from (
        "Sure. ",
        "\n",
        "`",
        "```\n",
        "<",
        ">",
        "{",
        "}",
        "[",
        '"name": ',
        "memory_insert",
        "get_time()",
        "｜",
        "|",
        "DSML",
    )
    yield from MARKS


def test_a_stream_ends_with_the_text_of_the_whole_answer() -> None:
    chance = random.Random(11)  # noqa: S311 - chance that is the same every time
    words = list(_words())
    for _ in range(1_500):
        text = "".join(chance.choices(words, k=chance.randint(1, 9)))
        mended = repair(text_reply(text), TOOLS)
        chunks, _ = streamed(pieces_of(text, chance.randint(1, 9)), mended)
        assert final_text(chunks).strip() == texts_of(mended).strip(), text
