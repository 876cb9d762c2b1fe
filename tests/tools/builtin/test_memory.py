"""The tools that edit memory blocks: what they do, and the exact words with which they refuse."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.scope import Scope
from ricordo.storage.sqlite import SqliteStore
from ricordo.tools.builtin.memory import memory_insert, memory_replace
from ricordo.tools.toolbox import ToolContext
from tests.support import make
from tests.tools.builtin.desk import Desk, desk, paper_desk

TEXT = "Name: Ada\nDrink:\ttea ☕\nCity: Turin"
WARNING = (
    "# NOTE: Line numbers shown below (with arrows like '1→') are to help during editing. "
    "Do NOT include line number prefixes in your memory edit tool calls."
)


@pytest.fixture
def human() -> Desk:
    """An agent with two blocks: human with three lines, and an empty one."""
    return paper_desk(make.block("human", TEXT), make.block("plans", ""))


EDITS: list[tuple[str, dict[str, Any], str]] = [
    ("memory_insert", {"label": "human", "new_string": "Pet: cat"}, f"{TEXT}\nPet: cat"),
    ("memory_insert", {"label": "human", "new_string": "Pet: cat", "insert_line": -1}, f"{TEXT}\nPet: cat"),
    ("memory_insert", {"label": "human", "new_string": "Pet: cat", "insert_line": 0}, f"Pet: cat\n{TEXT}"),
    ("memory_insert", {"label": "human", "new_string": "Pet: cat", "insert_line": 3}, f"{TEXT}\nPet: cat"),
    (
        "memory_insert",
        {"label": "human", "new_string": "a\n\tb\n", "insert_line": 1},
        "Name: Ada\na\n\tb\n\nDrink:\ttea ☕\nCity: Turin",
    ),
    ("memory_insert", {"label": "plans", "new_string": "Rest\tnow"}, "Rest\tnow"),
    ("memory_insert", {"label": "plans", "new_string": "Rest", "insert_line": 0}, "Rest"),
    (
        "memory_replace",
        {"label": "human", "old_string": ":\ttea ☕\nCity", "new_string": ":\t水 🍵\nTown"},
        "Name: Ada\nDrink:\t水 🍵\nTown: Turin",
    ),
    (
        "memory_replace",
        {"label": "human", "old_string": "\nCity: Turin", "new_string": ""},
        "Name: Ada\nDrink:\ttea ☕",
    ),
    (
        "memory_replace",
        {"label": "human", "old_string": "Ada", "new_string": r"\1 \g<0>"},
        TEXT.replace("Ada", r"\1 \g<0>"),
    ),
    ("memory_rethink", {"label": "human", "new_memory": "\tShe is\nAda."}, "\tShe is\nAda."),
    ("memory_rethink", {"label": "human", "new_memory": ""}, ""),
    ("core_memory_append", {"label": "human", "content": "1→ Pet: cat"}, f"{TEXT}\n1→ Pet: cat"),
    ("core_memory_append", {"label": "plans", "content": "Rest"}, "Rest"),
    ("core_memory_replace", {"label": "human", "old_content": "a", "new_content": "A"}, TEXT.replace("a", "A")),
    ("core_memory_replace", {"label": "human", "old_content": "i", "new_content": ""}, TEXT.replace("i", "")),
]


@pytest.mark.parametrize(("name", "arguments", "value"), EDITS)
async def test_an_edit_gives_the_blocks_new_value(
    human: Desk, name: str, arguments: dict[str, Any], value: str
) -> None:
    assert await human.said(name, **arguments) == value
    assert human.memory.block(arguments["label"]).value == value
    assert len(human.memory.edits) == 1


async def test_tabs_white_space_and_every_script_are_stored_to_the_letter(store: SqliteStore) -> None:
    one = await desk(store, ("human", TEXT), ("plans", ""), ("persona", ""))
    await one.said("memory_replace", label="human", old_string="\ttea", new_string="\t 水 \t🍵  ")
    await one.said("memory_insert", label="plans", new_string="\tمرحبا\n ")
    await one.said("core_memory_append", label="persona", content="\té\u0301\r")
    await one.save()
    assert {block.label: block.value for block in one.state.blocks} == {
        "human": "Name: Ada\nDrink:\t 水 \t🍵   ☕\nCity: Turin",
        "plans": "\tمرحبا\n ",
        "persona": "\té\u0301\r",
    }


@pytest.mark.parametrize(
    ("name", "given", "known"),
    [
        ("memory_replace", {"old_str": "tea", "new_str": "water"}, TEXT.replace("tea", "water")),
        ("memory_replace", {"old_str": "tea", "new_string": "water"}, TEXT.replace("tea", "water")),
        ("memory_insert", {"new_str": "Pet: cat"}, f"{TEXT}\nPet: cat"),
    ],
)
async def test_the_older_names_of_parameters_are_accepted(
    human: Desk, name: str, given: dict[str, Any], known: str
) -> None:
    assert await human.said(name, label="human", **given) == known


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    (
        "memory_replace",
        {"label": "human", "old_string": "coffee", "new_string": "water"},
        "No replacement was performed, old_string `coffee` did not appear verbatim in memory block with label `human`.",
    ),
    (
        "memory_replace",
        {"label": "human", "old_string": "", "new_string": "water"},
        "No replacement was performed, old_string `` did not appear verbatim in memory block with label `human`.",
    ),
    (
        "memory_replace",
        {"label": "human", "old_string": ": ", "new_string": "="},
        "No replacement was performed. Multiple occurrences of old_string `: ` in lines [1, 3]. Please ensure it is unique.",
    ),
    (
        "memory_replace",
        {"label": "human", "old_string": "1→ Name: Ada", "new_string": "Name: Eve"},
        "old_string contains a line number prefix, which is not allowed. Do not include line numbers when calling memory "
        "tools (line numbers are for display purposes only).",
    ),
    (
        "memory_replace",
        {"label": "human", "old_string": "Ada", "new_string": "Eve\n \t12→Pet: cat"},
        "new_string contains a line number prefix, which is not allowed. Do not include line numbers when calling memory "
        "tools (line numbers are for display purposes only).",
    ),
    (
        "memory_replace",
        {"label": "human", "old_string": f"{WARNING}\n1→ Name", "new_string": "Eve"},
        "old_string contains a line number warning, which is not allowed. Do not include line number information when "
        "calling memory tools (line numbers are for display purposes only).",
    ),
    (
        "memory_replace",
        {"label": "human", "old_string": "Ada", "new_string": WARNING},
        "new_string contains a line number warning, which is not allowed. Do not include line number information when "
        "calling memory tools (line numbers are for display purposes only).",
    ),
    (
        "memory_insert",
        {"label": "human", "new_string": "4→ Pet: cat"},
        "new_string contains a line number prefix, which is not allowed. Do not include line numbers when calling memory "
        "tools (line numbers are for display purposes only).",
    ),
    (
        "memory_insert",
        {"label": "human", "new_string": f"Pet\n{WARNING}"},
        "new_string contains a line number warning, which is not allowed. Do not include line number information when "
        "calling memory tools (line numbers are for display purposes only).",
    ),
    (
        "memory_rethink",
        {"label": "human", "new_memory": "She\n2→ is Ada"},
        "new_memory contains a line number prefix, which is not allowed. Do not include line numbers when calling memory "
        "tools (line numbers are for display purposes only).",
    ),
    (
        "memory_rethink",
        {"label": "human", "new_memory": WARNING},
        "new_memory contains a line number warning, which is not allowed. Do not include line number information when "
        "calling memory tools (line numbers are for display purposes only).",
    ),
    (
        "memory_insert",
        {"label": "human", "new_string": "x", "insert_line": 4},
        "Invalid `insert_line` parameter: 4. It should be within the range of lines of the memory block: [0, 3], or -1 to "
        "append to the end of the memory block.",
    ),
    (
        "memory_insert",
        {"label": "human", "new_string": "x", "insert_line": -2},
        "Invalid `insert_line` parameter: -2. It should be within the range of lines of the memory block: [0, 3], or -1 to "
        "append to the end of the memory block.",
    ),
    (
        "memory_insert",
        {"label": "plans", "new_string": "x", "insert_line": 1},
        "Invalid `insert_line` parameter: 1. It should be within the range of lines of the memory block: [0, 0], or -1 to "
        "append to the end of the memory block.",
    ),
    (
        "core_memory_replace",
        {"label": "human", "old_content": "coffee", "new_content": "water"},
        "Old content 'coffee' not found in memory block 'human'",
    ),
    (
        "core_memory_replace",
        {"label": "plans", "old_content": "", "new_content": "water"},
        "Old content '' not found in memory block 'plans'",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "told"), REFUSALS)
async def test_an_edit_that_is_not_right_is_refused_in_these_words(
    human: Desk, name: str, arguments: dict[str, Any], told: str
) -> None:
    assert await human.refused(name, **arguments) == told


ANY_EDIT: list[tuple[str, dict[str, Any]]] = [
    ("memory_insert", {"new_string": "xxxx"}),
    ("memory_replace", {"old_string": "Ada", "new_string": "Ada xxxx"}),
    ("memory_rethink", {"new_memory": "xxxx Ada"}),
    ("core_memory_append", {"content": "xxxx"}),
    ("core_memory_replace", {"old_content": "Ada", "new_content": "Ada xxxx"}),
]


@pytest.mark.parametrize(("name", "arguments"), ANY_EDIT)
async def test_no_tool_edits_a_block_that_is_not_there(human: Desk, name: str, arguments: dict[str, Any]) -> None:
    told = "Block field persona does not exist (available sections = human, plans)"
    assert await human.refused(name, label="persona", **arguments) == told


@pytest.mark.parametrize("fields", [{"read_only": True}, {"policy": "read_only"}])
@pytest.mark.parametrize(("name", "arguments"), ANY_EDIT)
async def test_no_tool_edits_a_read_only_block(name: str, arguments: dict[str, Any], fields: dict[str, Any]) -> None:
    told = await paper_desk(make.block("human", "Ada", **fields)).refused(name, label="human", **arguments)
    assert told == "Error This block is read-only and cannot be edited."


@pytest.mark.parametrize(("name", "arguments"), ANY_EDIT)
async def test_no_tool_writes_beyond_the_limit(name: str, arguments: dict[str, Any]) -> None:
    one = paper_desk(make.block("human", "Ada", limit=7))
    told = 'Block "human" would hold 8 characters, but its limit is 7. Shorten the text or raise the limit.'
    assert await one.refused(name, label="human", **arguments) == told


@pytest.mark.parametrize(("name", "arguments"), ANY_EDIT)
async def test_no_tool_writes_nul_characters(human: Desk, name: str, arguments: dict[str, Any]) -> None:
    with_nul = {key: value.replace("x", "\0") for key, value in arguments.items()}
    told = "A memory block cannot hold NUL characters. Leave them out."
    assert await human.refused(name, label="human", **with_nul) == told


async def test_an_arrow_inside_a_line_is_text(human: Desk) -> None:
    value = await human.said("memory_insert", label="plans", new_string="Turin 2→ Rome, x→ y, →z")
    assert value == "Turin 2→ Rome, x→ y, →z"


async def test_occurrences_are_reported_by_the_lines_they_begin_on() -> None:
    one = paper_desk(make.block("human", "a\nb\n-\na\nb\nb a\nb"))
    assert "in lines [1, 4, 6]. Please" in await one.refused(
        "memory_replace", label="human", old_string="a\nb", new_string="c"
    )


async def test_two_edits_of_one_step_build_on_each_other(store: SqliteStore) -> None:
    one = await desk(store, ("human", TEXT))
    await one.said("memory_replace", label="human", old_string="Ada", new_string="Ada L.")
    value = await one.said("memory_replace", label="human", old_string="Ada L.", new_string="Ada Lovelace")
    assert value == TEXT.replace("Ada", "Ada Lovelace")
    await one.save()
    assert (one.state.blocks[0].value, one.state.blocks[0].version) == (value, 2)


def context(value: str) -> ToolContext:
    one = paper_desk(make.block("human", value))
    return ToolContext("call-1", one.state, one.memory, one.store, Scope(), one.recall)


words = st.text(alphabet="ab \t\n☕", max_size=8)


@given(words, words, words)
def test_a_unique_piece_is_replaced_and_nothing_else_changes(before: str, after: str, new: str) -> None:
    assert memory_replace(context(f"{before}X{after}"), "human", "X", new) == f"{before}{new}{after}"


@given(st.lists(words.map(lambda word: word.replace("\n", "")), min_size=1, max_size=5), words, st.data())
def test_inserted_lines_stand_after_the_line_that_was_named(lines: list[str], new: str, data: st.DataObject) -> None:
    if lines == [""]:
        lines = ["a"]
    place = data.draw(st.integers(0, len(lines)))
    value = memory_insert(context("\n".join(lines)), "human", new, place)
    assert value == "\n".join([*lines[:place], new, *lines[place:]])


async def test_being_done_with_editing_changes_nothing(human: Desk) -> None:
    assert await human.said("memory_finish_edits") == "Memory edits finished."
    assert human.memory.edits == []
