"""The tool `memory`: what its commands do, and the exact words with which they answer."""

from typing import Any

import pytest

from ricordo.domain.scope import Scope
from ricordo.storage import blocks
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams import make
from tests.tools.builtin.desk import Desk, desk, paper_desk

TEXT = "Name: Ada\nDrink:\ttea ☕"
ACTIVE = "and is now active in your context."


@pytest.fixture
def human() -> Desk:
    return paper_desk(make.block("people/ada", TEXT), make.block("rules", "Be kind.", read_only=True))


async def test_create_makes_a_block_with_slashes_tabs_and_a_description(store: SqliteStore) -> None:
    one = await desk(store, ("human", TEXT))
    told = await one.said(
        "memory", command="create", path="/memories/plans/2026", file_text="\tRest", description="What is ahead"
    )
    assert told == (
        "Successfully created memory block 'plans/2026'. Your system prompt has been recompiled with the new memory block "
        + ACTIVE
    )
    await one.save()
    made = one.state.blocks[-1]
    assert (made.label, made.value, made.description) == ("plans/2026", "\tRest", "What is ahead")


@pytest.mark.parametrize("path", ["/memories/people/ada", "people/ada", "/people/ada"])
async def test_a_path_names_a_block(human: Desk, path: str) -> None:
    value = await human.said("memory", command="str_replace", path=path, old_string="Ada", new_string="Eve")
    assert value == TEXT.replace("Ada", "Eve")


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"command": "str_replace", "old_string": ":\ttea ☕", "new_string": ":\t水"}, "Name: Ada\nDrink:\t水"),
        ({"command": "str_replace", "old_str": "\nDrink:\ttea ☕", "new_str": ""}, "Name: Ada"),
        ({"command": "str_replace", "old_string": "\nDrink:\ttea ☕"}, "Name: Ada"),
        ({"command": "insert", "insert_text": "Pet: cat"}, f"{TEXT}\nPet: cat"),
        ({"command": "insert", "insert_text": "Pet: cat", "insert_line": None}, f"{TEXT}\nPet: cat"),
        ({"command": "insert", "insert_text": "\tPet", "insert_line": 0}, f"\tPet\n{TEXT}"),
    ],
)
async def test_an_edit_gives_the_blocks_new_value(human: Desk, arguments: dict[str, Any], value: str) -> None:
    assert await human.said("memory", path="/memories/people/ada", **arguments) == value


async def test_delete_takes_the_block_away(store: SqliteStore) -> None:
    one = await desk(store, ("people/ada", TEXT))
    deleted = one.state.blocks[0]
    assert await one.said("memory", command="delete", path="/memories/people/ada") == (
        "Successfully deleted memory block 'people/ada'. Your system prompt has been recompiled without this memory block "
        + ACTIVE
    )
    await one.save()
    assert one.state.blocks == ()
    assert await store.read(lambda tx: blocks.count(tx, Scope())) == 0, deleted


async def test_rename_gives_another_label_or_another_description_or_both(store: SqliteStore) -> None:
    one = await desk(store, ("people/ada", TEXT), ("plans", ""))
    renamed = "Successfully renamed memory block '{}' to '{}'. Your system prompt has been recompiled with the renamed memory "
    assert await one.said("memory", command="rename", old_path="/memories/people/ada", new_path="/memories/ada/x") == (
        renamed.format("people/ada", "ada/x") + f"block {ACTIVE}"
    )
    assert await one.said("memory", command="rename", path="/memories/ada/x", description="The user") == (
        "Successfully updated description of memory block 'ada/x'. Your system prompt has been recompiled with the updated "
        f"description {ACTIVE}"
    )
    assert await one.said(
        "memory", command="rename", path="/memories/plans", new_path="/memories/goals", description=""
    ) == (renamed.format("plans", "goals") + f"block {ACTIVE}")
    await one.save()
    assert [(block.label, block.value, block.description) for block in one.state.blocks] == [
        ("ada/x", TEXT, "The user"),
        ("goals", "", ""),
    ]


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"command": "create", "path": "/memories/people/ada"}, "Error: Memory block 'people/ada' already exists"),
    ({"command": "create"}, "The command create needs path. Call the tool again with it."),
    (
        {"command": "create", "path": "/memories/../x"},
        'Block label "../x" cannot be used: ".." has a meaning of its own. Choose another word.',
    ),
    (
        {"command": "create", "path": "/memories/x", "file_text": "1→ a"},
        "file_text contains a line number prefix, which is not allowed. Do not include line numbers when calling memory tools "
        "(line numbers are for display purposes only).",
    ),
    ({"command": "str_replace", "path": "/memories/x", "old_string": "a"}, "Error: Memory block 'x' does not exist"),
    ({"command": "insert", "path": "/memories/x", "insert_text": "a"}, "Error: Memory block 'x' does not exist"),
    (
        {"command": "insert", "path": "/memories/people/ada"},
        "The command insert needs insert_text. Call the tool again with it.",
    ),
    (
        {"command": "str_replace", "path": "/memories/people/ada", "old_string": "Eve", "new_string": "x"},
        "No replacement was performed, old_string `Eve` did not appear verbatim in memory block with label `people/ada`.",
    ),
    ({"command": "delete", "path": "/memories/x"}, "Memory block 'x' is not attached to agent 'Nina'"),
    (
        {"command": "rename", "old_path": "/memories/x", "new_path": "/memories/y"},
        "Memory block 'x' not found for agent 'Nina'",
    ),
    ({"command": "rename", "path": "/memories/x", "description": "y"}, "Memory block 'x' not found for agent 'Nina'"),
    (
        {"command": "rename", "old_path": "/memories/people/ada", "new_path": "/memories/rules", "description": "y"},
        "Error: Memory block 'rules' already exists",
    ),
    (
        {"command": "rename", "path": "/memories/people/ada"},
        "The command rename needs description. Call the tool again with it.",
    ),
    (
        {"command": "rename", "old_path": "/memories/people/ada"},
        "The command rename needs new_path. Call the tool again with it.",
    ),
    ({"command": "delete", "path": "/memories/rules"}, "Error This block is read-only and cannot be edited."),
    (
        {"command": "insert", "path": "/memories/rules", "insert_text": "x"},
        "Error This block is read-only and cannot be edited.",
    ),
    (
        {"command": "rename", "old_path": "/memories/rules", "new_path": "/memories/mine"},
        "Error This block is read-only and cannot be edited.",
    ),
]


@pytest.mark.parametrize(("arguments", "told"), REFUSALS)
async def test_a_command_that_is_not_right_is_refused_in_these_words(
    human: Desk, arguments: dict[str, Any], told: str
) -> None:
    assert await human.refused("memory", **arguments) == told
    assert human.memory.block("people/ada").value == TEXT
