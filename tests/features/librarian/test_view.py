"""The librarian's view, read from prompts as they are really rendered."""

from functools import partial

import pytest

from ricordo.domain.block import Block
from ricordo.features.librarian.view import Note, ShownBlock, note_of, shown_blocks
from ricordo.prompt.system_prompt import MemorySection, render_memory
from tests.seams.growth import repeated, require_linear


def block(label: str, value: str, *, limit: int = 500, read_only: bool = False) -> Block:
    return Block(
        f"block-{label}", "org", "chain", label, value, "What it is for.", limit, read_only
    )


def test_blocks_are_parsed_from_the_prompt() -> None:
    blocks = (
        block("persona", "I keep the shelves.", read_only=True),
        block("human", "Name: Ada\n\nLikes </value> tags\n1. one"),
        block("team/notes", "", limit=9),
    )
    prompt = (
        "Use <memory_blocks> "
        f"well.\n\n{render_memory(MemorySection('letta_v1_agent', 'ricordo', blocks))}\n\n<other>"
    )
    assert shown_blocks(prompt) == (
        ShownBlock("persona", "I keep the shelves.", 500, True),
        ShownBlock("human", "Name: Ada\n\nLikes <\\/value> tags\n1. one", 500, False),
        ShownBlock("team/notes", "", 9, False),
    )


@pytest.mark.parametrize(
    "prompt",
    ["", "No memory here.", "<memory_blocks>\n<human>\n<description>\nbroken", "</memory_blocks>"],
)
def test_a_prompt_without_valid_blocks_yields_none(prompt: str) -> None:
    assert shown_blocks(prompt) == ()


def test_the_librarians_own_lines_are_parsed_as_dated_quotes() -> None:
    assert note_of("human", '2026-11-21: "I say "hi"."') == Note(
        "human", '2026-11-21: "I say "hi"."', 'I say "hi".', "2026-11-21"
    )
    assert note_of("human", "- Likes tea") == Note("human", "- Likes tea", "Likes tea")


def test_a_prompt_full_of_opening_tags_is_parsed_in_linear_time() -> None:
    def read(size: int, opening: str) -> None:
        assert shown_blocks(f"<memory_blocks>\n{repeated(opening, size)}</memory_blocks>") == ()

    for opening in ("<x>\n<description>\n<metadata>\n- a\n", "<x>\n<description>\n", "<x>\n"):
        require_linear(partial(read, opening=opening), 5_000, opening)
