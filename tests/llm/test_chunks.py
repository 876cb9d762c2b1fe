"""A whole reply as chunks."""

from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import ModelReply, ReasoningChunk, TextChunk, ToolCallChunk
from ricordo.llm.chat import chunks_of

REPLY = ModelReply(
    (ReasoningPart("a b"), TextPart(" c\nd "), ToolCallPart("1", "x", "{}"), ToolCallPart("2", "y", "{}"), TextPart(""))
)


def test_each_part_is_one_chunk_and_calls_are_numbered() -> None:
    assert list(chunks_of(REPLY)) == [
        ReasoningChunk("a b"),
        TextChunk(" c\nd "),
        ToolCallChunk(0, "{}", "1", "x"),
        ToolCallChunk(1, "{}", "2", "y"),
    ]


def test_words_lose_none_of_their_spaces() -> None:
    chunks = list(chunks_of(REPLY, by_word=True))
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == " c\nd "
    assert len(chunks) == 7
