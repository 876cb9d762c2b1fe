"""What is wrong in a text is told all at once, line by line."""

import pytest

from ricordo.errors import Invalid
from ricordo.memory.problems import Problem, refuse


def test_problems_are_told_in_the_order_of_their_lines_and_once() -> None:
    with pytest.raises(Invalid) as error:
        refuse([Problem(7, "b."), Problem(2, "a."), Problem(7, "b.")], "x.toml")
    assert str(error.value) == "x.toml: Line 2: a.\nx.toml: Line 7: b."


def test_of_many_problems_the_first_twenty_are_told_and_the_others_counted() -> None:
    with pytest.raises(Invalid) as error:
        refuse(Problem(line, "no.") for line in range(1, 25))
    assert str(error.value).splitlines()[-2:] == ["Line 20: no.", "And 4 more."]
