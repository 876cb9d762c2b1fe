"""What the librarian sees, read from prompts as they are really rendered."""

import pytest

from ricordo.domain.block import Block
from ricordo.features.librarian.view import Note, ShownBlock, data_in, note_of, shown_blocks, unpackaged
from ricordo.prompt.memory import MemorySection, render_memory


def block(label: str, value: str, *, limit: int = 500, read_only: bool = False) -> Block:
    return Block(f"block-{label}", "org", "chain", label, value, "What it is for.", limit, read_only)


@pytest.mark.parametrize("provider", ["ricordo", "anthropic"])
def test_blocks_are_read_as_the_prompt_shows_them(provider: str) -> None:
    blocks = (
        block("persona", "I keep the shelves.", read_only=True),
        block("human", "Name: Ada\n\nLikes </value> tags\n1. one"),
        block("team/notes", "", limit=9),
    )
    prompt = (
        f"Use <memory_blocks> well.\n\n{render_memory(MemorySection('letta_v1_agent', provider, blocks))}\n\n<other>"
    )
    assert list(shown_blocks(prompt)) == [
        ShownBlock("persona", "I keep the shelves.", 500, True),
        ShownBlock("human", "Name: Ada\n\nLikes <\\/value> tags\n1. one", 500, False),
        ShownBlock("team/notes", "", 9, False),
    ]


@pytest.mark.parametrize(
    "prompt", ["", "No memory here.", "<memory_blocks>\n<human>\n<description>\nbroken", "</memory_blocks>"]
)
def test_a_prompt_without_blocks_shows_none(prompt: str) -> None:
    assert list(shown_blocks(prompt)) == []


def test_its_own_lines_are_read_as_quotes_with_a_date() -> None:
    assert note_of("human", '2026-11-21: "I say "hi"."') == Note(
        "human", '2026-11-21: "I say "hi"."', 'I say "hi".', "2026-11-21"
    )
    assert note_of("human", "- Likes tea") == Note("human", "- Likes tea", "Likes tea")


def test_texts_that_hold_data_are_read_and_others_stay_as_they_are() -> None:
    assert data_in("[{'content': 'it\\'s', 'tags': []}]") == data_in('[{"content": "it\'s", "tags": []}]')
    assert data_in("[cut off") == "[cut off"
    assert data_in("No results found.") == "No results found."
    assert data_in({"message": "x"}) == {"message": "x"}


def test_packaging_is_taken_off_and_system_events_have_no_words() -> None:
    assert unpackaged('{"type": "user_message", "message": "hi", "time": "now"}') == "hi"
    assert unpackaged('{"type": "heartbeat", "time": "now"}') is None
    assert unpackaged('{"colour": "blue"}') == '{"colour": "blue"}'
    assert unpackaged("{broken") == "{broken"
