"""The tool `memory_apply_patch`: diffs of one block, operations on several, exact texts."""

import difflib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.tools.builtin.patch import _match_starts, _patched
from tests.seams import make
from tests.tools.builtin.desk import WARNING, Desk, desk, paper_desk

TEXT = "Name: Ada\nDrink:\ttea ☕\nCity: Turin\n- likes: cats\n\nEnd"
DONE = (
    "Successfully applied memory patch operations. Your system prompt has been recompiled with "
    "the updated memory contents and is now active in your context.\n\nOperations completed:\n"
)


@pytest.fixture
def human() -> Desk:
    return paper_desk(
        make.block("human", TEXT),
        make.block("plans", ""),
        make.block("rules", "Be kind.", read_only=True),
    )


DIFFS: list[tuple[str, str, str]] = [
    ("human", " Name: Ada\n-Drink:\ttea ☕\n+Drink:\t水\n", TEXT.replace("tea ☕", "水")),
    ("human", "-City: Turin", TEXT.replace("City: Turin\n", "")),
    (
        "human",
        "--- a/human\n+++ b/human\n@@ -1,2 +1,2 @@\n-Name: Ada\n+Name: Eve\n",
        TEXT.replace("Ada", "Eve"),
    ),
    (
        "human",
        "diff --git a b\nindex 1..2\n--- a\n+++ b\n-Name: Ada\n+Name: Eve",
        TEXT.replace("Ada", "Eve"),
    ),
    (
        "human",
        "@@\n-Name: Ada\n+Name: Eve\n\n@@\n-End\n+Fine",
        TEXT.replace("Ada", "Eve").replace("End", "Fine"),
    ),
    ("human", " - likes: cats\n\n-End\n+Fine", TEXT.replace("End", "Fine")),
    ("human", "-- likes: cats\n+- likes: dogs", TEXT.replace("cats", "dogs")),
    ("human", "+Pet: cat", f"{TEXT}\nPet: cat"),
    ("human", "@@ -0,0 +1 @@\n+Top", f"Top\n{TEXT}"),
    (
        "human",
        "@@ -1,1 +1,2 @@\n Name: Ada\n+x\n@@ -3,0 +5 @@\n+y",
        "Name: Ada\nx\nDrink:\ttea ☕\nCity: Turin\ny\n- likes: cats\n\nEnd",
    ),
    ("human", "-End\n\\ No newline at end of file\n+Fine", TEXT.replace("End", "Fine")),
    ("plans", "+Rest\n+\tnow\n", "Rest\n\tnow"),
]


@pytest.mark.parametrize(("label", "patch", "value"), DIFFS)
async def test_a_diff_gives_the_blocks_new_value(
    human: Desk, label: str, patch: str, value: str
) -> None:
    assert await human.said("memory_apply_patch", label=label, patch=patch) == value
    assert human.memory.block(label).value == value


lines = st.lists(
    st.sampled_from(["a", "b", "", "\tc", "- d", "-- e", "++ f", "@@", " g"]), max_size=8
)


@given(lines, lines)
def test_the_diff_of_any_two_texts_turns_one_into_the_other(
    before: list[str], after: list[str]
) -> None:
    old, new = "\n".join(before), "\n".join(after)
    listed = (old.split("\n") if old else [], new.split("\n") if new else [])
    patch = list(difflib.unified_diff(*listed, "a", "b", n=50, lineterm=""))
    assert (_patched(old, patch) if patch else old) == new


NO_HUNKS = "No applicable hunks found in patch. Ensure lines start with ' ', '-', or '+'."
NO_OPERATIONS = (
    "No operations found. Provide at least one of: *** Add Block, *** Delete Block, *** Update "
    "Block."
)
NUMBERS = (
    "Patch contains a line number prefix, which is not allowed. Do not include line numbers (they "
    "are for display only)."
)
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"label": "human", "patch": ""}, NO_HUNKS),
    ({"label": "human", "patch": "@@ -1 +1 @@"}, NO_HUNKS),
    ({"label": "human", "patch": "Name: Ada"}, NO_HUNKS),
    ({"label": "human", "patch": "-Name: Ada\nName: Eve"}, NO_HUNKS),
    ({"label": "human", "patch": "-1→ Name: Ada"}, NUMBERS),
    ({"label": "human", "patch": " 2→Drink"}, NUMBERS),
    (
        {"label": "human", "patch": f" {WARNING}"},
        (
            "Patch contains the line number warning banner, which is not allowed. Provide only the "
            "text to edit."
        ),
    ),
    (
        {"label": "human", "patch": "-a\n-b\n c\n-d\n-e\n+f"},
        (
            "Failed to apply patch: expected hunk context not found in the memory block. Verify the "
            "target lines exist and try providing more context. Expected start:\na\nb\nc\nd"
        ),
    ),
    ({"label": "x", "patch": "+a"}, "Error: Memory block 'x' does not exist"),
    (
        {"patch": "+a"},
        (
            "A patch without *** headers needs the label of the block it is for. Call the tool again "
            "with it."
        ),
    ),
    ({"label": "rules", "patch": "+a"}, "Error This block is read-only and cannot be edited."),
    ({"patch": "*** Begin Patch\n*** End Patch"}, NO_OPERATIONS),
    ({"patch": "+a\n*** Delete Block: human"}, NO_OPERATIONS),
    ({"patch": "*** Add Block: "}, "*** Add Block: must specify a non-empty label"),
    ({"patch": "*** Delete Block:"}, "*** Delete Block: must specify a non-empty label"),
    ({"patch": "*** Update Block: \n+a"}, "*** Update Block: must specify a non-empty label"),
    (
        {"patch": "*** Update Block: human\n*** Move to: "},
        "*** Move to: must specify a non-empty new label",
    ),
    (
        {"patch": "*** Begin Patch\n*** Move to: x"},
        "*** Move to: must follow an Add/Update/Delete header",
    ),
    ({"patch": "*** Add Block: human\n+a"}, "Error: Memory block 'human' already exists"),
    (
        {"patch": "*** Add Block: x\n+a\nb"},
        "The lines of *** Add Block must all start with '+'. Correct the patch.",
    ),
    ({"patch": "*** Delete Block: x"}, "Error: Memory block 'x' does not exist"),
    (
        {"patch": "*** Delete Block: human\n*** Move to: x"},
        "Memory block 'human' cannot be both deleted and moved. Choose one.",
    ),
    ({"patch": "*** Update Block: human"}, NO_HUNKS),
    ({"patch": "*** Delete Block: rules"}, "Error This block is read-only and cannot be edited."),
    (
        {
            "patch": (
                "*** Add Block: x\n+a\n*** Update Block: human\n*** Move to: ada\n*** Delete "
                "Block: nobody"
            )
        },
        "Error: Memory block 'nobody' does not exist",
    ),
]


async def test_an_invalid_patch_is_refused_completely_in_these_words(human: Desk) -> None:
    for arguments, told in REFUSALS:
        assert await human.refused("memory_apply_patch", **arguments) == told, arguments
        assert (human.memory.find("x"), human.memory.find("ada")) == (None, None)
        assert human.memory.block("human").value == TEXT


async def test_a_hunk_that_matches_several_places_needs_more_context() -> None:
    one = paper_desk(make.block("human", "a\nb\na"))
    assert await one.refused("memory_apply_patch", label="human", patch="-a") == (
        "Failed to apply patch: hunk context matched multiple places in the memory block. Please "
        "add more unique surrounding context to disambiguate."
    )
    assert await one.said("memory_apply_patch", label="human", patch=" b\n-a\n+c") == "a\nb\nc"


class CountedLine(str):
    """A line that counts the comparisons with other lines."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedLine.comparisons += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        CountedLine.comparisons += 1
        return str.__ne__(self, other)  # type: ignore[arg-type]

    __hash__ = str.__hash__


def test_a_repeated_line_is_compared_a_few_times_only() -> None:
    CountedLine.comparisons = 0
    text = [CountedLine("a") for _ in range(400)]
    assert _match_starts(text, [*(CountedLine("a") for _ in range(200)), CountedLine("b")]) == []
    assert CountedLine.comparisons < 4 * len(text)


@given(st.text("ab", max_size=30), st.text("ab", min_size=1, max_size=6))
def test_lines_are_found_where_they_begin(text: str, old: str) -> None:
    starts = [start for start in range(len(text)) if text.startswith(old, start)]
    assert _match_starts([*text], [*old]) == starts[:2]


async def test_a_patch_with_too_many_places_for_a_long_block_is_refused() -> None:
    text = "\n".join(map(str, range(2_000)))
    one = paper_desk(make.block("human", text, limit=20_000))
    patch = "".join(f"@@\n-{number}\n+-{number}\n" for number in range(501))
    told = await one.refused("memory_apply_patch", label="human", patch=patch)
    assert "changes 501 places" in told
    patch = "".join(f"@@\n-{number}\n+x{number}\n" for number in range(500))
    changed = await one.said("memory_apply_patch", label="human", patch=patch)
    assert "x499" in changed


async def test_operations_add_delete_update_and_move_several_blocks(store: SqliteStore) -> None:
    one = await desk(store, ("human", TEXT), ("persona", "Kind."), ("old", "x"), ("tmp", "y"))
    patch = (
        "*** Begin Patch\n*** Add Block: plans/2026\n+Rest\n+\n+\tnow\n\n*** Delete Block: old\n"
        "*** Update Block: human\n@@\n-Name: Ada\n+Name: Ada L.\n*** Update Block: persona\n*** "
        "Move to: me\n-Kind.\n+Kind and brief.\n*** Update Block: tmp\n*** Move to: old\n*** Add "
        "Block: a\n*** Move to: b\nraw\n*** End Patch\n"
    )
    assert await one.said("memory_apply_patch", patch=patch) == DONE + "\n".join(
        (
            "- Created memory block 'plans/2026'",
            "- Deleted memory block 'old'",
            "- Updated memory block 'human'",
            "- Updated memory block 'persona'",
            "- Renamed memory block 'persona' to 'me'",
            "- Renamed memory block 'tmp' to 'old'",
            "- Created memory block 'b'",
        )
    )
    await one.save()
    assert {block.label: block.value for block in one.state.blocks} == {
        "human": TEXT.replace("Ada", "Ada L."),
        "me": "Kind and brief.",
        "old": "y",
        "plans/2026": "Rest\n\n\tnow",
        "b": "raw",
    }
