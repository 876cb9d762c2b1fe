"""The author of a commit from elsewhere, by the author line of the commit."""

from collections.abc import Mapping

import pytest

from ricordo.domain.authors import signature
from ricordo.domain.scope import Actor, Scope
from ricordo.memory.commit_authors import CommitAuthors
from ricordo.storage import users
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.users import UserDraft
from tests.conftest import BOTH

DATABASES = BOTH
ADA = Actor("administrator", "user-1", "Ada")
ODD: Mapping[tuple[str, str], str] = {
    ("", ""): "unknown",
    (" ", "bo@home.example"): "bo@home.example",
    ("B\no\0\x1b[1m", "x"): "B o [1m",
    ("Bo", "remote+%00%0Ax+%1B@ricordo"): "unknown",
    ("Bo", "remote+Bo@ricordo"): "Bo",
    ("x" * 300, "x"): "x" * 255,
    ("Bo", "agent-1@ricordo"): "Bo",
    ("Bo", "user+%00@ricordo"): "Bo",
}


async def test_every_author_name_of_a_commit_can_be_stored(store: Store) -> None:
    def read(tx: Transaction) -> dict[tuple[str, str], Actor]:
        return {written: CommitAuthors(tx, Scope(), ADA).of(*written) for written in ODD}

    found = await store.read(read)
    assert {written: actor.name for written, actor in found.items()} == ODD
    assert {actor.kind for actor in found.values()} == {"remote"}


@pytest.mark.parametrize("is_pushed", [False, True])
async def test_an_email_address_of_two_users_identifies_neither(
    store: Store, is_pushed: bool
) -> None:
    def work(tx: Transaction) -> list[Actor]:
        made = [
            users.create(tx, Scope(), UserDraft(name, name, f"{name}@home.example"))
            for name in ("bo", "eve")
        ]
        users.create(tx, Scope(), UserDraft("eva", "eva", "EVE@home.example"))
        authors = CommitAuthors(tx, Scope(), ADA, is_pushed=is_pushed)
        own = signature(Actor("user", made[0].id, "bo"))
        return [
            authors.of("B", "BO@home.example"),
            authors.of("E", "eve@home.example"),
            authors.of(*own[:-1].split(" <")),
        ]

    by_email, shared, by_id = await store.write(work)
    assert shared == Actor("remote", "E", "E")
    assert {by_email.kind, by_id.kind} == {"remote" if is_pushed else "user"}
