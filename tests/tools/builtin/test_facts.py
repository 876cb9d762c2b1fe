"""The tool `remember` of agents with small models."""

import pytest

from ricordo.errors import Invalid
from ricordo.memory.edits import EditGuard, GuardSources, WorkingMemory
from ricordo.tools.builtin.facts import COPIED_EXAMPLE, remember
from tests.seams import make
from tests.tools.builtin.desk import paper_desk


@pytest.mark.parametrize("has_block", [True, False])
def test_of_several_facts_none_is_noted_if_one_is_refused(
    has_block: bool,
) -> None:
    desk = paper_desk(*[make.block("human", "Name: Ada.")][:has_block])
    before = desk.memory.current()
    with pytest.raises(Invalid):
        remember(desk.context(), "Her brother is called Otto.\nShe has a cat \ud800.")
    assert desk.memory.edits == []
    assert desk.memory.current() == before
    remember(desk.context(), "Her brother is called Otto.\nShe has a cat.")
    (block,) = desk.memory.current()
    assert block.value.endswith("Her brother is called Otto.\nShe has a cat.")


@pytest.mark.parametrize(
    ("said", "noted", "is_allowed"),
    [
        ("I live in Graz.", "Name: Ada.", False),
        ("My sister Emma visits me.", "Name: Ada.", True),
        ("EMMA is my sister!", "Name: Ada.", True),
        ("My sister has a baby.", "Emma is her sister.", True),
    ],
)
@pytest.mark.parametrize(
    "fact", ["Her sister is called Emma.", "Lena's sister is Emma", "Ihre Schwester heißt Emma."]
)
def test_the_example_of_the_tool_is_noted_only_if_its_name_is_known(
    said: str, noted: str, fact: str, *, is_allowed: bool
) -> None:
    assert remember.__doc__
    assert '{"fact": "Her sister is called Emma."}' in remember.__doc__
    desk = paper_desk(make.block("human", noted))
    guard = EditGuard(lambda: GuardSources(user_texts=(said,)))
    desk.memory = WorkingMemory(desk.state, guard)
    if is_allowed:
        remember(desk.context(), fact)
    else:
        with pytest.raises(Invalid, match=COPIED_EXAMPLE):
            remember(desk.context(), fact)
    assert bool(desk.memory.edits) == is_allowed
