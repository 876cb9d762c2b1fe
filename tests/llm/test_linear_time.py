"""Reading a model's output takes linear time.

The output comes whole or in pieces of any size, in every notation.
"""

from collections.abc import Callable
from itertools import product

import pytest

from ricordo.domain.message import TextPart, ToolCallPart
from ricordo.domain.model import ModelReply, TextChunk, ToolCallChunk
from ricordo.llm.argument_stream import ArgumentStream
from ricordo.llm.openai_reply import ReplyBuilder, SseReader
from ricordo.llm.repair import StreamRepair, repair
from tests.llm.talk import CLOCK, WEATHER, ask
from tests.seams.growth import repeated, require_linear
from tests.support.notations import MARKS

TOOLS = (WEATHER, CLOCK)
SHORT = 2_000

_HEADS = (
    *MARKS,
    *(
        "",
        "<think>",
        "</think>",
        "```",
        "```json\n",
        "```tool_code\n",
        "[get_weather(",
        "{",
        "[",
        "[{",
    ),
    *(
        '<invoke name="get_weather">',
        "<tool_call>get_weather<arg_key>",
        "<function=get_weather><parameter=",
    ),
    *(
        "<|channel|>commentary to=get_weather",
        "[TOOL_CALLS]get_weather",
        "<|tool_call_begin|>get_weather",
    ),
    "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>",
)
_FILLS = (
    *"a <{[(\"'\\,`-1:;\n",
    *(
        "{}",
        "{} ;",
        "\n```",
        "```\n",
        "\n   ```x",
        "get_weather(city=1),",
        "f(",
        "lambda:",
        "1+",
        "{1:",
        "{a}",
    ),
    *("</tool_call>", "</think>", "<think>", "x<|", "[TOOL_CALLS]", "<invoke ", "</invoke>"),
)
# The short form reads a sample of the texts of each beginning, and other texts of the next
# beginning. So each filling occurs with several beginnings.
_SHARE = 63
_STEP = 5
_ENDS = ("", "]", "```", "}", "')]")


def _texts(head: str) -> list[Callable[[int], str]]:
    texts: list[Callable[[int], str]] = [lambda size: (head or "x") * (size // len(head or "x"))]
    for fill in _FILLS:
        texts.append(lambda size, fill=fill: (head + fill) * (size // len(head + fill)))
        for end in _ENDS:
            texts.append(
                lambda size, fill=fill, end=end: (head + fill * (size // len(fill)))[:size] + end
            )
    return texts


@pytest.mark.parametrize(
    "share", [pytest.param(_SHARE, id="short"), pytest.param(7, id="long", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("head", _HEADS)
def test_a_whole_answer_is_repaired_in_linear_time(head: str, share: int) -> None:
    for text in _texts(head)[_HEADS.index(head) * _STEP % share :: share]:
        require_linear(
            lambda size, text=text: repair(ModelReply((TextPart(text(size)),)), TOOLS),
            SHORT,
            text(60),
        )

        def repair_call(size: int, text: Callable[[int], str] = text) -> None:
            repair(ModelReply((ToolCallPart("1", "get_weather", text(size)),)), TOOLS)

        require_linear(repair_call, SHORT, text(60))


@pytest.mark.parametrize(
    "share", [pytest.param(9, id="short"), pytest.param(1, id="long", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("piece", [1, 1000])
def test_a_streamed_answer_is_repaired_in_linear_time(piece: int, share: int) -> None:
    begins = (
        "",
        "words ",
        "words `",
        "words ```",
        "words ```json\n",
        "words ```json\n[",
        "words ```tool_call\n{}\n```\n",
    )
    begins += (
        "<think>",
        "<think>hm ",
        "<think>hm</think>",
        "{",
        "<tool_call>",
        "words <tool_call>",
    )
    fills = ("a", " ", "\n", "`", "```", "\n```", "<", "</think", "[", "{}")
    # Each beginning and each filling is in a pair of the short form.
    for begin, fill in list(product(begins, fills))[::share]:

        def feed(size: int, begin: str = begin, fill: str = fill) -> None:
            stream, text = StreamRepair(TOOLS), begin + repeated(fill, size)
            for at in range(0, len(text), piece):
                for _ in stream.feed(TextChunk(text[at : at + piece])):
                    pass
            for _ in stream.close(ModelReply((TextPart(text),))):
                pass

        require_linear(feed, SHORT // 8 if piece == 1 else 2 * SHORT, (begin, fill))


def test_the_pieces_of_a_stream_are_assembled_in_linear_time() -> None:
    def lines(size: int) -> None:
        reader = SseReader()
        for _ in range(size):
            list(reader.feed(b" "))

    def calls(size: int) -> None:
        builder, stream = ReplyBuilder(), StreamRepair(TOOLS)
        for number in range(size // 40):
            piece = {
                "index": number % 500,
                "id": f"c{number % 500}",
                "function": {"name": "f", "arguments": "1"},
            }
            for chunk in builder.feed({"choices": [{"delta": {"tool_calls": [piece]}}]}):
                list(stream.feed(chunk))
        builder.reply(ask("Hello"))

    def one_call(size: int) -> None:
        stream = StreamRepair(TOOLS)
        for number in range(size):
            list(
                stream.feed(ToolCallChunk(0, "a", None if number else "c", None if number else "f"))
            )

    def arguments(begin: str, fill: str) -> Callable[[int], None]:
        def feed(size: int) -> None:
            stream, text = ArgumentStream("thinking"), begin + fill * (size // len(fill))
            for at in range(0, len(text), 4):
                stream.feed(text[at : at + 4])

        return feed

    broken = [
        ("", " "),
        ("{", " "),
        ('{"thinking":"', "a"),
        ('{"thinking":"', "\\\\"),
        ("", '{"a":'),
        ('{"a":[', "1,"),
    ]
    for work in (lines, calls, one_call, *(arguments(*row) for row in broken)):
        require_linear(work, SHORT)
