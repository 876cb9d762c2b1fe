"""Memory tools accept copies with other punctuation or double escapes.

If no text matches, they quote the nearest line.
"""

import re
from difflib import SequenceMatcher
from itertools import product
from random import Random

import pytest

from ricordo.memory import matching
from tests.seams import make
from tests.tools.builtin.desk import paper_desk

BLOCK = (
    "System notes — environment\nLu says “gn” at night\nRange 3–5 … ok\nIt’s fine\nPrice: "
    "5\u00a0€\nDrinks tea  \nand milk"
)
# The text of the block, and the ways in which models write it.
TWINS = {
    "—": ("--", "-", "–", "---"),
    "“": ('"', "”", "„", "«"),
    "’": ("'", "‘", "`", "′"),
    "…": ("...",),
    "–": ("-", "—", "−", "‑"),
    "\u00a0": (" ", "  ", "\u2009", "\t"),
    "  \n": ("\n", " \n", "\u00a0\n"),
}


def written(sign: str, twin: str) -> list[tuple[str, str]]:
    """Return the lines with the character, as in the block and as a model writes them."""
    if sign == "  \n":
        return [("Drinks tea  \nand milk", f"Drinks tea{twin}and milk")]
    return [
        (line, line.replace(sign, twin).replace("”", twin))
        for line in BLOCK.split("\n")
        if sign in line
    ]


async def edited(tool: str, value: str, **arguments: str) -> str:
    one = paper_desk(make.block("human", value))
    await one.said(tool, label="human", **arguments)
    return one.memory.block("human").value


@pytest.mark.parametrize("sign", TWINS, ids=ascii)
async def test_a_copy_with_other_punctuation_matches_if_only_one_place_fits(sign: str) -> None:
    for twin in TWINS[sign]:
        for line, asked in written(sign, twin):
            assert await edited(
                "memory_replace", BLOCK, old_string=asked, new_string="Gone"
            ) == BLOCK.replace(line, "Gone")
            assert await edited(
                "core_memory_replace", BLOCK, old_content=asked, new_content=""
            ) == BLOCK.replace(line, "")
            given = {"old_string": asked, "new_string": f"{asked} now", "reasoning": "She said so."}
            assert await edited("edit_memory_block", BLOCK, **given) == BLOCK.replace(
                line, f"{line} now"
            )
            patch = "\n".join(f"-{part}" for part in asked.split("\n")) + "\n+Gone"
            assert await edited("memory_apply_patch", BLOCK, patch=patch) == BLOCK.replace(
                line, "Gone"
            )


async def test_unchanged_text_keeps_its_punctuation() -> None:
    for old, new, line in (
        ("It's fine", "It's great", "It’s great"),
        ('Lu says "gn" at night', 'Lu says "gn" at noon', "Lu says “gn” at noon"),
        ("Range 3-5 ... ok", "Range 3-7 ... ok", "Range 3–7 … ok"),
        ("Drinks tea\nand milk", "Drinks tea\nand coffee", "Drinks tea  \nand coffee"),
    ):
        value = await edited("memory_replace", BLOCK, old_string=old, new_string=new)
        assert line in value
    patch = ' Lu says "gn" at night\n-Range 3-5 ... ok\n+Range: none\n It\'s fine'
    assert await edited("memory_apply_patch", BLOCK, patch=patch) == BLOCK.replace(
        "Range 3–5 … ok", "Range: none"
    )


async def test_an_ambiguous_match_is_counted_and_nothing_changes() -> None:
    value = "a — b\na – b\nc"
    one = paper_desk(make.block("human", value))
    told = await one.refused("memory_replace", label="human", old_string="a -- b", new_string="x")
    assert "in lines [1, 2]" in told
    assert "It occurs 2 times." in told
    assert "2 times" in await one.refused(
        "edit_memory_block", label="human", old_string="a - b", new_string="x", reasoning="So."
    )
    assert "It fits 2 places." in await one.refused(
        "core_memory_replace", label="human", old_content="a - b", new_content="x"
    )
    assert one.memory.block("human").value == value


async def test_a_refusal_quotes_the_nearest_line() -> None:
    for asked, line in (
        ("Lu says hello at night", "Lu says “gn” at night"),
        ("Price: 6 €", "Price: 5\u00a0€"),
        ("System note: environment", "System notes — environment"),
        ("Drinks teas", "Drinks tea  "),
    ):
        one = paper_desk(make.block("human", BLOCK))
        told = await one.refused("memory_replace", label="human", old_string=asked, new_string="x")
        assert told.startswith(
            f"No replacement was performed, old_string `{asked}` did not appear verbatim"
        )
        quoted = re.search(r"The nearest line is (\d): `(.*)`\.", told)
        assert quoted
        assert (quoted[2], BLOCK.split("\n")[int(quoted[1]) - 1]) == (line, line)
        # With the quoted line the next attempt succeeds.
        assert await edited("memory_replace", BLOCK, old_string=quoted[2], new_string="x")
    one = paper_desk(make.block("human", BLOCK))
    assert "nearest" not in await one.refused(
        "memory_replace", label="human", old_string="Qqqq zzz", new_string="x"
    )


LIST = "## Notes\n- tea\n- milk"


async def test_doubly_escaped_line_breaks_match_unless_the_block_contains_them() -> None:
    asked = {"old_string": r"## Notes\n- tea", "new_string": r"## Notes\n- coffee"}
    assert await edited("memory_replace", LIST, **asked) == "## Notes\n- coffee\n- milk"
    # A text that the block has with its backslash is found unchanged.
    value = r"Splits by re.split('\n')"
    assert (
        await edited("memory_replace", value, old_string=r"'\n'", new_string=r"'\n+'")
        == r"Splits by re.split('\n+')"
    )
    one = paper_desk(make.block("human", f"{LIST}\n{LIST}"))
    assert "It occurs 2 times." in await one.refused("memory_replace", label="human", **asked)
    patch = r"@@ -1 @@\n ## Notes\n-- tea\n+- coffee"
    assert await edited("memory_apply_patch", LIST, patch=patch) == "## Notes\n- coffee\n- milk"


LINES = [
    r"- jam\n- bread",
    r"1. jam\n2. bread",
    r"Name: Ada\nDrink: tea",
    r"# Food\nJam and bread",
    r"* a\n\n* b",
    r"• x\n• y",
]
CODE = [
    r"$\nu$",
    r"\nabla f",
    r"re.split('\n')",
    r"C:\new",
    r"^\d+\n- ",
    r"`a\n- b`",
    r"\frac{1}{2}\n- x",
    r"one\ntwo",
    r"\nTab",
]


@pytest.mark.parametrize(
    ("tool", "name"), [("memory_insert", "new_string"), ("core_memory_append", "content")]
)
async def test_doubly_escaped_line_breaks_are_unescaped_but_code_is_unchanged(
    tool: str, name: str
) -> None:
    for (text, broken), value in product(
        [*((text, text.replace("\\n", "\n")) for text in LINES), *((text, text) for text in CODE)],
        ("", LIST),
    ):
        added = f"{value}\n{broken}" if value else broken
        assert await edited(tool, value, **{name: text}) == added
    for text in LINES:
        assert await edited("memory_rethink", LIST, new_memory=text) == text.replace("\\n", "\n")
        assert await edited("memory_insert", "", new_string=f"{text}\nreal") == f"{text}\nreal"


def test_few_lines_are_compared_whole_to_find_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A whole comparison of two long lines takes milliseconds, in which no request is answered."""
    compared = 0

    class Counting(SequenceMatcher[str]):
        def ratio(self) -> float:
            nonlocal compared
            compared += 1
            return super().ratio()

    monkeypatch.setattr(matching, "SequenceMatcher", Counting)
    names = Random(0)  # noqa: S311 - not for cryptography
    words = ["".join(names.choices("etaoinshrdlu", k=names.randint(2, 9))) for _ in range(500)]
    lines = [" ".join(names.choices(words, k=60)) for _ in range(300)]
    for _ in range(20):
        number = names.randrange(len(lines))
        # As a model copies it: some words are missing or changed.
        copied = lines[number].split()
        copied[names.randrange(20)] = "changed"
        del copied[names.randrange(30)]
        compared = 0
        nearest = matching.nearest_line("\n".join(lines), " ".join(copied))
        assert nearest == (number + 1, lines[number])
        assert compared <= 5
