"""The kinds of remotes that are offered."""

import pytest

from ricordo.errors import Invalid
from ricordo.plugins import Plugins, load_plugins
from tests.support.notebook import Notebooks


def test_two_plugins_may_not_offer_one_kind_of_remote_and_each_must_be_one() -> None:
    class Odd:
        def memory_remotes(self) -> list[object]:
            return [object()]

    built_in = load_plugins(("git", "dolt"))._plugins
    assert list(Plugins([*built_in, ("notes", Notebooks())]).memory_remotes()) == [
        "git",
        "dolt",
        "notebook",
    ]
    with pytest.raises(Invalid, match='Two plugins offer remotes of the kind "git"'):
        Plugins([*built_in, *built_in]).memory_remotes()
    with pytest.raises(Invalid, match="object is no kind of remote: it needs kind, read and sync"):
        Plugins([("odd", Odd())]).memory_remotes()
