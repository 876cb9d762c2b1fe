"""The step's working copy of memory: what tools may write, and the record of their changes."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block
from ricordo.domain.hidden_text import with_marks
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.memory.edits import EditGuard, EditReason, GuardSources, PassageDraft, WorkingMemory
from tests.seams import make

AGENT = make.agent()
HUMAN = make.block("human", "Ada", limit=10)
RULES = make.block("rules", "Be kind.", read_only=True)
POLICY = make.block("policy", "Be brief.", policy="read_only")
STATE = AgentState(AGENT, make.conversation(AGENT), (HUMAN, RULES, POLICY))


def edits_of(memory: WorkingMemory) -> list[tuple[str, Block, Block | None]]:
    return [(edit.call_id, edit.base, edit.after) for edit in memory.edits]


def test_a_read_only_block_cannot_be_changed() -> None:
    memory = WorkingMemory(STATE)
    changes: list[Callable[[str], object]] = [
        lambda label: memory.write(label, "Be cruel.", "call-1"),
        lambda label: memory.remove(label, "call-1"),
        lambda label: memory.rename(label, "mine", "call-1"),
        lambda label: memory.describe(label, "Mine", "call-1"),
    ]
    for change, label in product(changes, ("rules", "policy")):
        with pytest.raises(
            Forbidden, match=r"^Error This block is read-only and cannot be edited\.$"
        ):
            change(label)
    assert memory.edits == []


@pytest.mark.parametrize(
    ("bad", "told"), [("\ud83d", "whole characters"), ("\0", "cannot hold NUL")]
)
def test_lone_surrogates_and_nul_are_refused_in_every_field(bad: str, told: str) -> None:
    memory = WorkingMemory(STATE)
    for write in (
        lambda: memory.write("human", f"Ada {bad}", "call-1"),
        lambda: memory.write("human", "Ada L.", "call-1", reason=EditReason(bad)),
        lambda: memory.create("new", bad, None, "call-1"),
        lambda: memory.create("new", "x", bad, "call-1"),
        lambda: memory.create(f"new{bad}", "text", None, "call-1"),
        lambda: memory.rename("human", f"new{bad}", "call-1"),
        lambda: memory.describe("human", bad, "call-1"),
        lambda: memory.archive(PassageDraft("call-1", "passage-1", bad, ())),
        lambda: memory.archive(PassageDraft("call-1", "passage-1", "text", (bad,))),
    ):
        with pytest.raises(Invalid, match=told):
            write()
    assert (memory.edits, memory.passages) == ([], [])


def test_later_calls_of_a_step_see_the_changes_of_earlier_ones() -> None:
    memory = WorkingMemory(STATE)
    memory.create("plans/2026", "Rest\tnow", "What is ahead", "call-1")
    made = memory.block("plans/2026")
    assert (made.value, made.description, made.created_by) == (
        "Rest\tnow",
        "What is ahead",
        AGENT.id,
    )
    memory.write("plans/2026", "Walk", "call-2")
    memory.rename("human", "people/ada", "call-3")
    memory.describe("people/ada", "The user", "call-4")
    memory.describe("people/ada", "The user", "call-5")
    ada = replace(HUMAN, label="people/ada")
    with pytest.raises(
        NotFound, match=r"available sections = people/ada, rules, policy, plans/2026"
    ):
        memory.block("human")
    memory.remove("people/ada", "call-6")
    assert memory.find("people/ada") is None
    memory.create("people/ada", "New", None, "call-7")
    assert memory.block("people/ada").id != HUMAN.id
    assert edits_of(memory)[:-1] == [
        ("call-1", made, made),
        ("call-2", made, replace(made, value="Walk")),
        ("call-3", HUMAN, ada),
        ("call-4", HUMAN, replace(ada, description="The user")),
        ("call-6", HUMAN, None),
    ]


def test_a_used_or_invalid_label_is_refused() -> None:
    memory = WorkingMemory(STATE)
    with pytest.raises(Conflict, match=r"^Error: Memory block 'rules' already exists$"):
        memory.create("rules", "", None, "call-1")
    with pytest.raises(Conflict, match="already exists"):
        memory.rename("human", "rules", "call-1")
    for label in ("", "a//b", "../x", "history", "<b>", "a\nb"):
        with pytest.raises(Invalid, match="cannot be used"):
            memory.create(label, "", None, "call-1")
        with pytest.raises(Invalid, match="cannot be used"):
            memory.rename("human", label, "call-1")
    assert memory.edits == []


# Zero-width spaces, direction marks and overrides, a soft hyphen, tags, and joiners between Latin
# letters.
HIDDEN_SIGNS = (
    *(
        "\u200b",
        "\u2060",
        "\u00ad",
        "\u200e",
        "\u200f",
        "\u202a",
        "\u202e",
        "\u2066",
        "\u2069",
        "\u180e",
        "\u034f",
    ),
    *("\u200c", "\u200d", "\U000e0041\U000e0042", "\U000e0001", "\u200b\u202e\u200d"),
)


def test_hidden_characters_are_removed_from_what_an_agent_writes() -> None:
    for number, signs in enumerate(HIDDEN_SIGNS):
        memory = WorkingMemory(STATE)
        assert memory.write("human", f"A{signs}da L", "call-1") == "Ada L"
        memory.create(f"new{number}", f"te{signs}xt", f"of{signs}ten", "call-2")
        memory.describe("human", f"of{signs}ten", "call-3")
        memory.archive(PassageDraft("call-4", "passage-1", f"te{signs}xt", ()))
        new = memory.block(f"new{number}")
        assert (new.value, new.description, memory.block("human").description) == (
            "text",
            "often",
            "often",
        )
        assert memory.passages[0].text == "text"
        assert set(memory.notes) == {"call-1", "call-2", "call-3", "call-4"}


def test_hidden_text_of_an_agent_is_refused_in_a_block_with_a_policy() -> None:
    for policy in ("guarded", "propose", "explicit"):
        state = replace(STATE, blocks=(replace(HUMAN, policy=policy, value="Ada"),))  # type: ignore[arg-type]
        for signs in HIDDEN_SIGNS:
            memory = WorkingMemory(state)
            with pytest.raises(Invalid, match=r"invisible characters \(.*U\+[0-9A-F]{4}"):
                memory.write("human", f"A{signs}da L", "call-1")
            assert memory.edits == []
            said = EditGuard(lambda signs=signs: GuardSources(user_texts=[f"I am A{signs}da"]))  # type: ignore[misc]
            assert WorkingMemory(state, said).write("human", f"A{signs}da", "call-1")
        copied = with_marks("A\u200bda L")
        assert WorkingMemory(state).write("human", copied, "call-1") == "Ada L"


def test_hidden_characters_written_by_the_user_or_needed_by_letters_stay() -> None:
    for signs in HIDDEN_SIGNS:
        said = EditGuard(
            lambda signs=signs: GuardSources(user_texts=[f"Call me A{signs}da, please"])
        )  # type: ignore[misc]
        assert WorkingMemory(STATE, said).write("human", f"A{signs}da", "call-1") == f"A{signs}da"
        before = replace(STATE, blocks=(replace(HUMAN, value=f"A{signs}da"),))
        assert WorkingMemory(before).write("human", f"A{signs}da!", "call-1") == f"A{signs}da!"
    for needed in ("می\u200cخواهم", "👩\u200d🚀", "🏴\U000e0067\U000e0062\U000e007f"):
        assert WorkingMemory(STATE).write("human", needed, "call-1") == needed
