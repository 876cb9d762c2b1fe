"""The tool `memory`: its commands, and the exact texts of its answers."""

from typing import Any

import pytest

from ricordo.domain.scope import Scope
from ricordo.storage import blocks
from ricordo.storage.engine.sqlite import SqliteStore
from tests.seams import make
from tests.tools.builtin.desk import PREFIX, Desk, desk, paper_desk

TEXT = "Name: Ada\nDrink:\ttea ☕"
PATHS = ("/memories/people/ada", "people/ada", "/people/ada")
ACTIVE = "and is now active in your context."


@pytest.fixture
def human() -> Desk:
    return paper_desk(
        make.block("people/ada", TEXT), make.block("rules", "Be kind.", read_only=True)
    )


async def test_create_makes_a_block_with_slashes_tabs_and_a_description(store: SqliteStore) -> None:
    one = await desk(store, ("human", TEXT))
    told = await one.said(
        "memory",
        command="create",
        path="/memories/plans/2026",
        file_text="\tRest",
        description="What is ahead",
    )
    assert told == (
        (
            "Successfully created memory block 'plans/2026'. Your system prompt has been recompiled "
            "with the new memory block "
        )
        + ACTIVE
    )
    await one.save()
    made = one.state.blocks[-1]
    assert (made.label, made.value, made.description) == ("plans/2026", "\tRest", "What is ahead")


EDITS: list[tuple[str, dict[str, Any], str]] = [
    *(
        (
            "str_replace",
            {"path": path, "old_string": "Ada", "new_string": "Eve"},
            TEXT.replace("Ada", "Eve"),
        )
        for path in PATHS
    ),
    ("str_replace", {"old_string": ":\ttea ☕", "new_string": ":\t水"}, "Name: Ada\nDrink:\t水"),
    ("str_replace", {"old_str": "\nDrink:\ttea ☕", "new_str": ""}, "Name: Ada"),
    ("str_replace", {"old_string": "\nDrink:\ttea ☕"}, "Name: Ada"),
    ("insert", {"insert_text": "Pet: cat"}, f"{TEXT}\nPet: cat"),
    ("insert", {"insert_text": "Pet: cat", "insert_line": None}, f"{TEXT}\nPet: cat"),
    ("insert", {"insert_text": "\tPet", "insert_line": 0}, f"\tPet\n{TEXT}"),
]


@pytest.mark.parametrize(("command", "arguments", "value"), EDITS)
async def test_an_edit_gives_the_blocks_new_value(
    human: Desk, command: str, arguments: dict[str, Any], value: str
) -> None:
    assert await human.said("memory", command=command, **{"path": PATHS[0]} | arguments) == value


async def test_delete_removes_the_block(store: SqliteStore) -> None:
    one = await desk(store, ("people/ada", TEXT))
    deleted = one.state.blocks[0]
    assert await one.said("memory", command="delete", path="/memories/people/ada") == (
        (
            "Successfully deleted memory block 'people/ada'. Your system prompt has been recompiled "
            "without this memory block "
        )
        + ACTIVE
    )
    await one.save()
    assert one.state.blocks == ()
    assert await store.read(lambda tx: blocks.count(tx, Scope())) == 0, deleted


async def test_rename_changes_the_label_the_description_or_both(
    store: SqliteStore,
) -> None:
    one = await desk(store, ("people/ada", TEXT), ("plans", ""))
    renamed = (
        "Successfully renamed memory block '{}' to '{}'. Your system prompt has been recompiled "
        "with the renamed memory "
    )
    assert await one.said(
        "memory", command="rename", old_path="/memories/people/ada", new_path="/memories/ada/x"
    ) == (renamed.format("people/ada", "ada/x") + f"block {ACTIVE}")
    assert await one.said(
        "memory", command="rename", path="/memories/ada/x", description="The user"
    ) == (
        "Successfully updated description of memory block 'ada/x'. Your system prompt has been "
        f"recompiled with the updated description {ACTIVE}"
    )
    assert await one.said(
        "memory",
        command="rename",
        path="/memories/plans",
        new_path="/memories/goals",
        description="",
    ) == (renamed.format("plans", "goals") + f"block {ACTIVE}")
    await one.save()
    assert [(block.label, block.value, block.description) for block in one.state.blocks] == [
        ("ada/x", TEXT, "The user"),
        ("goals", "", ""),
    ]


ABSENT, OLD, NEW = {"path": "/memories/x"}, {"old_path": "/memories/x"}, {"new_path": "/memories/y"}
ADA, MY_RULES = {"path": PATHS[0]}, {"path": "/memories/rules"}
THERE, NOT_THERE = (
    "Error: Memory block '{}' already exists",
    "Error: Memory block 'x' does not exist",
)
NOT_FOUND, NEEDS = (
    "Memory block 'x' not found for agent 'Nina'",
    "The command {} needs {}. Call the tool again with it.",
)
READ_ONLY = "Error This block is read-only and cannot be edited."
REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("create", ADA, THERE.format("people/ada")),
    ("create", {}, NEEDS.format("create", "path")),
    (
        "create",
        {"path": "/memories/../x"},
        'Block label "../x" cannot be used: ".." is reserved. Choose another word.',
    ),
    ("create", {**ABSENT, "file_text": "1→ a"}, PREFIX.format("file_text")),
    ("str_replace", {**ABSENT, "old_string": "a"}, NOT_THERE),
    ("insert", {**ABSENT, "insert_text": "a"}, NOT_THERE),
    ("insert", ADA, NEEDS.format("insert", "insert_text")),
    (
        "str_replace",
        {**ADA, "old_string": "Eve", "new_string": "x"},
        (
            "No replacement was performed, old_string `Eve` did not appear verbatim in memory block "
            "with label `people/ada`."
        ),
    ),
    ("delete", ABSENT, "Memory block 'x' is not attached to agent 'Nina'"),
    ("rename", {**OLD, **NEW}, NOT_FOUND),
    ("rename", {**ABSENT, "description": "y"}, NOT_FOUND),
    (
        "rename",
        {"old_path": PATHS[0], "new_path": "/memories/rules", "description": "y"},
        THERE.format("rules"),
    ),
    ("rename", ADA, NEEDS.format("rename", "description")),
    ("rename", {"old_path": PATHS[0]}, NEEDS.format("rename", "new_path")),
    ("delete", MY_RULES, READ_ONLY),
    ("insert", {**MY_RULES, "insert_text": "x"}, READ_ONLY),
    ("rename", {"old_path": "/memories/rules", "new_path": "/memories/mine"}, READ_ONLY),
]


async def test_an_invalid_command_is_refused_in_these_words(human: Desk) -> None:
    for command, arguments, told in REFUSALS:
        assert await human.refused("memory", command=command, **arguments) == told, (
            command,
            arguments,
        )
        assert human.memory.block("people/ada").value == TEXT
