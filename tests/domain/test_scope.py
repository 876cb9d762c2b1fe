"""Who sees, changes and decides about which user's data."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ricordo.domain.scope import (
    ADMIN,
    ALL_SCOPES,
    APPROVE,
    IMPERSONATE,
    NOBODY,
    OVERRIDE,
    ROLE_SCOPES,
    Actor,
    Role,
    Scope,
    User,
)
from ricordo.errors import Forbidden

ADA = User("user-a", "org-1", "Ada", "ada", 0)
ALL = "all"

scopes = st.builds(
    Scope,
    st.just("org-1"),
    st.sampled_from(["user-a", "user-b", "user-local"]),
    st.sampled_from([None, NOBODY, "user-a", "user-b"]),
    role=st.sampled_from(get_args(Role)),
    scopes=st.sampled_from([*ROLE_SCOPES.values(), ALL_SCOPES, ALL_SCOPES - {IMPERSONATE}]),
    caller=st.sampled_from(["", "bot"]),
    is_local_user=st.booleans(),
)


@given(scopes)
@example(Scope("org-1", "user-s", NOBODY, scopes=ROLE_SCOPES["service"], is_local_user=True))
@example(Scope("org-1", "user-a", "user-a", scopes=ROLE_SCOPES["service"], is_local_user=True))
@example(Scope("org-1", "user-b", None, scopes=ROLE_SCOPES["developer"]))
def test_only_a_caller_with_the_right_acts_for_another_user(scope: Scope) -> None:
    acting = scope.acting_for(ADA)
    if not scope.may(IMPERSONATE) or scope.subject_id == ADA.id:
        assert acting == scope
        return
    assert (acting.scopes, acting.role, acting.caller) == (scope.scopes, scope.role, scope.caller)
    assert (acting.user_id, acting.user_name, acting.identifier) == (ADA.id, "Ada", "ada")
    seen = [user_id for user_id in (None, "user-a", "user-b", NOBODY) if acting.sees(user_id)]
    assert seen == [None, "user-a"]
    assert not acting.is_local_user


@pytest.mark.parametrize(
    ("subject", "sees", "owns"),
    [
        (None, [None, "user-a", "user-b"], [None, "user-a", "user-b"]),
        ("user-a", [None, "user-a"], ["user-a"]),
        # A caller for no user may change what is shared, and sees no user's data.
        (NOBODY, [None], [None]),
    ],
)
def test_the_subject_limits_what_is_seen_and_changed(
    subject: str | None, sees: list[str | None], owns: list[str | None]
) -> None:
    scope = Scope("org-1", "user-a", subject, role="user")
    targets = [None, "user-a", "user-b"]
    assert [target for target in targets if scope.sees(target)] == sees
    assert [target for target in targets if scope.owns(target)] == owns
    for target in targets:
        if target in owns:
            scope.require_owns(target)
        else:
            with pytest.raises(Forbidden, match="shared with others"):
                scope.require_owns(target)


DECIDES = [
    # The caller's subject, its scopes, and the owners for whom it decides.
    (None, {OVERRIDE}, ["user-a", "user-b", "agent-1"]),
    (None, {APPROVE, IMPERSONATE}, ["user-a", "user-b", "agent-1"]),
    (None, {APPROVE}, ["user-a", "agent-1"]),
    (None, {IMPERSONATE}, []),
    (None, {ADMIN, "memory:write"}, []),
    ("user-b", {APPROVE, IMPERSONATE, OVERRIDE}, ["user-b"]),
    ("user-b", {APPROVE}, ["user-b"]),
    ("user-b", {OVERRIDE}, []),
    ("user-b", set(), []),
]


@pytest.mark.parametrize(("subject", "rights", "owners"), DECIDES)
def test_only_owners_and_callers_with_the_right_decide(
    subject: str | None, rights: set[str], owners: list[str]
) -> None:
    scope = Scope("org-1", "user-a", subject, scopes=frozenset(rights))
    asked = [("user", "user-a"), ("user", "user-b"), ("agent", "agent-1")]
    assert [id for kind, id in asked if scope.may_decide_for(kind, id)] == owners
    assert scope.decides_for_everybody == (len(owners) == len(asked))


_USER = Scope("org-1", "user-a", "user-a", "Ada", role="user", scopes=ROLE_SCOPES["user"])
_SERVICE = Scope(
    "org-1",
    "user-s",
    NOBODY,
    "bot",
    role="service",
    scopes=ROLE_SCOPES["service"],
    caller="bot",
    key_id="key-1",
)
_APPROVING = replace(_SERVICE, scopes=_SERVICE.scopes | {APPROVE})
_ADMINISTRATOR = Scope("org-1", "user-l", None, "administrator", caller="administrator")
_OVERRIDING = replace(_ADMINISTRATOR, scopes=ALL_SCOPES)


@pytest.mark.parametrize(
    ("scope", "author"),
    [
        (_USER, Actor("user", "user-a", "Ada")),
        (_SERVICE, Actor("service", "key-1", "bot")),
        (_SERVICE.acting_for(ADA), Actor("service", "key-1", "bot for Ada")),
        (replace(_SERVICE, key_id=None), Actor("service", "bot", "bot")),
        # Only with the right to approve, and only for a user, a service writes as the user.
        (_APPROVING, Actor("service", "key-1", "bot")),
        (_APPROVING.acting_for(ADA), Actor("user", "user-a", "bot for Ada")),
        (_ADMINISTRATOR, Actor("user", "user-l", "administrator")),
        (_ADMINISTRATOR.acting_for(ADA), Actor("user", "user-a", "administrator for Ada")),
        (_OVERRIDING, Actor("administrator", "user-l", "administrator")),
        (replace(_USER, scopes=ALL_SCOPES), Actor("user", "user-a", "Ada")),
    ],
)
def test_a_change_names_its_author(scope: Scope, author: Actor) -> None:
    assert scope.actor == author


@pytest.mark.parametrize(
    ("role", "subject", "uses"),
    [
        ("admin", "user-a", True),
        ("developer", "user-a", True),
        ("user", "user-a", False),
        ("service", NOBODY, False),
        ("guardian", "user-a", False),
        ("user", None, True),
    ],
)
def test_restricted_agents_are_open_to_those_who_build_or_see_everything(
    role: Role, subject: str | None, uses: bool
) -> None:
    assert Scope("org-1", "user-a", subject, role=role).uses_every_agent is uses
