"""The tool `remember` of agents with small models."""

import pytest

from ricordo.errors import Invalid
from ricordo.tools.builtin.facts import remember
from tests.seams import make
from tests.tools.builtin.desk import paper_desk


@pytest.mark.parametrize("has_block", [True, False])
def test_of_several_facts_none_is_noted_if_one_is_refused(
    has_block: bool,
) -> None:
    desk = paper_desk(*[make.block("human", "Name: Ada.")][:has_block])
    before = desk.memory.current()
    with pytest.raises(Invalid):
        remember(desk.context(), "Her sister is called Emma.\nShe has a cat \ud800.")
    assert desk.memory.edits == []
    assert desk.memory.current() == before
    remember(desk.context(), "Her sister is called Emma.\nShe has a cat.")
    (block,) = desk.memory.current()
    assert block.value.endswith("Her sister is called Emma.\nShe has a cat.")
