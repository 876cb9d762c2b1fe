"""The mapping between authors of versions and authors in git."""

import re
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ricordo.domain.authors import author_of, plain_signature, signature
from ricordo.domain.scope import Actor, ActorKind, User, background_scope

# Matches an author that git accepts. The name has no characters that git removes, and the address
# has no brackets. Neither has a line break.
_WRITTEN = re.compile(r"([^<>\n\0]+) <([^<>\n\0]*@ricordo)>")
odd_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        "",
        "<",
        ">\n<",
        "Ada <x@y>",
        "user-1",
        "agent+user-1",
        "a+b",
        "%2B",
        "Ünï 中",
        " . ",
        "ricordo",
        "\r\n\0",
        "J. R.",
    ]
)


@given(st.sampled_from(get_args(ActorKind)), odd_words, odd_words)
@example("agent", "user-1", "Mallory")
@example("user", "user-1", "")
@example("remote", "a+b", "a+b")
def test_an_author_written_to_git_is_read_back_exactly(kind: ActorKind, id: str, name: str) -> None:
    actor = Actor(kind, id, name)
    found = _WRITTEN.fullmatch(signature(actor))
    assert found, signature(actor)
    assert author_of(*found.groups()) == actor


@given(
    st.sampled_from(("user", "agent")),
    st.uuids(),
    st.from_regex(r"[A-Za-z][A-Za-z ö中]{0,20}[a-z]", fullmatch=True),
)
def test_signatures_and_so_version_ids_do_not_change(
    kind: ActorKind, uuid: object, name: str
) -> None:
    actor = Actor(kind, f"{kind}-{uuid}", name)
    assert signature(actor) == plain_signature(actor) == f"{name} <{kind}-{uuid}@ricordo>"


@pytest.mark.parametrize("address", ["", "ada@home.example", "user-1@ricordo.example", "user-1"])
def test_an_address_that_ricordo_did_not_write_names_no_author(address: str) -> None:
    assert author_of("Ada", address) is None


@pytest.mark.parametrize("name", ["sleeptime", "background task"])
def test_work_in_the_background_is_named_in_the_author(name: str) -> None:
    user = User("user-1", "org-1", "Ada", "ada", 0)
    scope = background_scope(user, name)
    assert scope.actor == Actor("user", "user-1", f"{name} for Ada")
    assert (scope.subject_id, scope.user_id, scope.user_name) == ("user-1", "user-1", "Ada")
