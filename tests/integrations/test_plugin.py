"""The kinds of remotes that are offered."""

import pytest

from ricordo.errors import Invalid
from ricordo.integrations import plugin
from ricordo.plugins import Plugins
from tests.support.notebook import Notebooks


def test_two_plugins_may_not_offer_one_kind_of_remote_and_each_must_be_one() -> None:
    class Odd:
        def memory_remotes(self) -> list[object]:
            return [object()]

    assert list(Plugins([("integrations", plugin), ("notes", Notebooks())]).memory_remotes()) == [
        "git",
        "dolt",
        "notebook",
    ]
    with pytest.raises(Invalid, match='Two plugins offer remotes of the kind "git"'):
        Plugins([("one", plugin), ("two", plugin)]).memory_remotes()
    with pytest.raises(Invalid, match="object is no kind of remote: it needs kind, read and follow"):
        Plugins([("odd", Odd())]).memory_remotes()
