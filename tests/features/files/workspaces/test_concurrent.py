"""Two transactions that change one workspace at the same time."""

import pytest

from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER
from ricordo.errors import PreconditionFailed, TooLong
from ricordo.features.files.workspaces import queries, service
from ricordo.features.files.workspaces.queries import Space
from ricordo.storage.engine.store import Store, Transaction
from tests.seams.stores import overlapped

DATABASES = ("postgresql",)
SPACES = {
    "user": Space(LOCAL_ORGANIZATION, LOCAL_USER),
    "shared": Space(LOCAL_ORGANIZATION, is_teachers=True),
}


@pytest.fixture(params=SPACES)
async def space(request: pytest.FixtureRequest, store: Store) -> Space:
    chosen = SPACES[request.param]

    def write(tx: Transaction) -> None:
        service.write(tx, chosen, "a.md", b"one two")

    await store.write(write)
    return chosen


async def content(store: Store, space: Space, path: str = "a.md") -> bytes | None:
    return await store.read(lambda tx: queries.content(tx, space, path))


async def test_both_edits_of_a_file_remain(store: Store, space: Space) -> None:
    await overlapped(
        store,
        lambda tx: service.edit(tx, space, "a.md", "one", "1"),
        lambda tx: service.edit(tx, space, "a.md", "two", "2"),
    )
    assert await content(store, space) == b"1 2"


async def test_only_one_of_two_writes_with_the_same_precondition_succeeds(
    store: Store, space: Space
) -> None:
    for path, digest in (("a.md", queries.digest_of(b"one two")), ("new.md", None)):
        first, second = await overlapped(
            store,
            lambda tx, at=path, digest=digest: service.write(
                tx, space, at, b"first", expected=[digest]
            ),
            lambda tx, at=path, digest=digest: service.write(
                tx, space, at, b"second", expected=[digest]
            ),
        )
        assert first.path == path
        assert isinstance(second, PreconditionFailed)
        assert await content(store, space, path) == b"first"


async def test_two_first_writes_of_a_path_both_succeed(store: Store, space: Space) -> None:
    _, second = await overlapped(
        store,
        lambda tx: service.write(tx, space, "b.md", b"first"),
        lambda tx: service.write(tx, space, "b.md", b"second"),
    )
    assert not isinstance(second, BaseException), second
    assert await content(store, space, "b.md") == b"second"


async def test_a_command_keeps_a_change_that_was_made_while_it_is_saved(
    store: Store, space: Space
) -> None:
    base = {"a.md": queries.digest_of(b"one two")}
    changed = {"a.md": b"the command's"}
    await overlapped(
        store,
        lambda tx: service.write(tx, space, "a.md", b"a person's"),
        lambda tx: service.save_changes(tx, space, base, changed=changed, deleted=()),
    )
    assert await content(store, space) == b"a person's"
    assert await content(store, space, "a (conflict 1).md") == b"the command's"


async def test_the_quota_holds_for_writes_at_the_same_time(
    store: Store, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_WORKSPACE_FILES", "2")
    _, second = await overlapped(
        store,
        lambda tx: service.write(tx, space, "b.md", b"first"),
        lambda tx: service.write(tx, space, "c.md", b"second"),
    )
    assert isinstance(second, TooLong)
    assert len(await store.read(lambda tx: queries.listed(tx, space))) == 2
