"""The step's working copy of memory: what tools may write in it, and what it remembers of their doings."""

import pytest

from ricordo.domain.agent import AgentState
from ricordo.errors import Forbidden, Invalid, NotFound
from ricordo.memory.working import BlockEdit, PassageDraft, WorkingMemory
from tests.support import make

AGENT = make.agent()
HUMAN = make.block("human", "Ada", limit=10)
RULES = make.block("rules", "Be kind.", read_only=True)
POLICY = make.block("policy", "Be brief.", policy="read_only")
STATE = AgentState(AGENT, make.conversation(AGENT), (HUMAN, RULES, POLICY))


def test_a_later_call_of_the_step_sees_what_an_earlier_one_wrote() -> None:
    memory = WorkingMemory(STATE)
    assert memory.write("human", "Ada L.", "call-1") == "Ada L."
    assert memory.block("human").value == "Ada L."
    assert memory.write("human", "Ada L.!", "call-2") == "Ada L.!"
    assert memory.edits == [BlockEdit("call-1", HUMAN, "Ada L."), BlockEdit("call-2", HUMAN, "Ada L.!")]


def test_the_agents_state_stays_as_it_was() -> None:
    WorkingMemory(STATE).write("human", "Eve", "call-1")
    assert STATE.blocks[0].value == "Ada"


def test_writing_the_text_that_is_there_is_no_edit() -> None:
    memory = WorkingMemory(STATE)
    assert memory.write("human", "Ada", "call-1") == "Ada"
    assert memory.edits == []


@pytest.mark.parametrize("label", ["rules", "policy"])
def test_a_read_only_block_is_not_written(label: str) -> None:
    memory = WorkingMemory(STATE)
    with pytest.raises(Forbidden) as refused:
        memory.write(label, "Be cruel.", "call-1")
    assert str(refused.value) == "Error This block is read-only and cannot be edited."
    assert memory.edits == []


def test_an_unknown_label_names_the_labels_there_are() -> None:
    with pytest.raises(NotFound) as missing:
        WorkingMemory(STATE).write("plans", "x", "call-1")
    assert str(missing.value) == "Block field plans does not exist (available sections = human, rules, policy)"


def test_a_text_over_the_limit_is_refused_and_one_of_just_the_limit_is_not() -> None:
    memory = WorkingMemory(STATE)
    assert memory.write("human", "é" * 10, "call-1") == "é" * 10
    with pytest.raises(Invalid) as refused:
        memory.write("human", "é" * 11, "call-2")
    assert str(refused.value) == (
        'Block "human" would hold 11 characters, but its limit is 10. Shorten the text or raise the limit.'
    )
    assert memory.block("human").value == "é" * 10
    assert len(memory.edits) == 1


def test_nul_characters_are_refused() -> None:
    with pytest.raises(Invalid, match="cannot hold NUL"):
        WorkingMemory(STATE).write("human", "A\0", "call-1")


def test_passages_wait_for_the_step_to_be_saved() -> None:
    memory = WorkingMemory(STATE)
    draft = PassageDraft("call-1", "passage-1", "Ada likes tea.", ("tea",))
    memory.archive(draft)
    assert memory.passages == [draft]


@pytest.mark.parametrize(("text", "tags"), [("tea\0", ()), ("tea", ("t\0",))])
def test_nul_characters_are_refused_in_passages_too(text: str, tags: tuple[str, ...]) -> None:
    memory = WorkingMemory(STATE)
    with pytest.raises(Invalid, match="cannot hold NUL"):
        memory.archive(PassageDraft("call-1", "passage-1", text, tags))
    assert memory.passages == []
