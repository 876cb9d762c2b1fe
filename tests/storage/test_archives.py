"""Archives and passages: counts, tags, order, and deletion, also from the index."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ricordo.domain.passage import Passage
from ricordo.domain.scope import NOBODY, Role, Scope
from ricordo.errors import Forbidden, NotFound
from ricordo.search.index import delete_passage, insert_passages
from ricordo.storage import agents, archives, conversations
from ricordo.storage.deletion import hide_archive
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.seams.stores import count_statements


@pytest.mark.parametrize(
    ("role", "subject", "changes"),
    [
        # Archives are made by the caller, another user, an agent, or nobody who is known.
        ("admin", "user-1", ["user-1", "user-2", "agent-1", None]),
        ("developer", None, ["user-1", "user-2", "agent-1", None]),
        ("developer", NOBODY, ["user-1", "agent-1", None]),
        ("user", "user-1", ["user-1"]),
        ("service", NOBODY, ["user-1"]),
    ],
)
def test_only_makers_and_those_who_build_change_a_shared_archive(
    role: Role, subject: str | None, changes: list[str | None]
) -> None:
    caller = Scope(user_id="user-1", subject_id=subject, role=role)
    for maker in ("user-1", "user-2", "agent-1", None):
        archive = make.archive("Notes", created_by=maker)
        if maker in changes:
            archives.require_changes(caller, archive)
        else:
            is_of_user = maker is not None and maker.startswith("user-")
            creator = "Another user" if is_of_user else "No user"
            with pytest.raises(Forbidden, match=f"{creator} created this archive"):
                archives.require_changes(caller, archive)


async def test_an_archive_and_its_passages_read_back_as_they_were_written(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    archive = make.archive(
        "Notes",
        description="Of tea",
        embedding="openai/x",
        metadata={"a": [1]},
        created_by="user-1",
    )
    passage = make.passage(
        archive,
        "Plätzchen 🍵\x01",
        tags=("tea", "book"),
        metadata={"page": 4},
        user_id=None,
        created_by="agent-1",
        step_id="step-1",
    )

    def work(tx: Transaction) -> None:
        archives.insert_one(tx, archive, owner=agent.id)
        counted = insert_passages(tx, archive, [passage])
        assert archives.of_agent(tx, agent.id) == [counted]
        assert counted == replace(
            archive, passage_count=1, tags=("book", "tea"), updated_at=counted.updated_at
        )
        (stored,) = archives.passages_by_ids(tx, [passage.id])
        assert replace(stored, seq=0) == passage

    await store.write(work)


async def test_passages_with_a_text_in_their_metadata_can_be_left_out(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    archive = make.archive()
    kept = [make.passage(archive, metadata=metadata) for metadata in ({}, {"f": "1"}, {"f": 2})]
    gone = [make.passage(archive, metadata={"f": text}) for text in ("3", "it's")]

    def work(tx: Transaction) -> list[Passage]:
        archives.insert_one(tx, archive, owner=agent.id)
        insert_passages(tx, archive, [gone[0], *kept, gone[1]])
        page = Page(limit=3, order="asc")
        return archives.page_of_passages(
            tx, [archive.id], page, without={"f": ["3", "it's", "none"]}
        )

    assert [passage.id for passage in await store.write(work)] == [one.id for one in kept]


async def test_only_passages_of_the_given_archives_can_be_deleted(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    mine, other = (
        await make.stored_archive(store, agent, "mine"),
        await make.stored_archive(store, agent, "other"),
    )
    (passage,) = await store.read(lambda tx: archives.page_of_passages(tx, [other.id], Page()))
    attempts = [(scope, [mine]), (Scope(organization_id="org-2"), [mine, other]), (scope, [])]
    for asking, attached in attempts:
        with pytest.raises(NotFound, match=f"Passage with ID {passage.id} not found"):
            await store.write(
                lambda tx, asking=asking, attached=attached: delete_passage(
                    tx, asking, attached, passage.id
                )
            )
    assert await store.read(lambda tx: archives.passages_by_ids(tx, [passage.id])) == [passage]


async def test_inserting_passages_costs_the_same_statements_for_one_and_for_many(
    store: SqliteStore,
) -> None:
    archive = await make.stored_archive(store, (await make.stored_agent(store)).agent)
    costs = []
    for size in (1, 400):
        new = [make.passage(archive, f"number {number}", tags=("tea",)) for number in range(size)]
        with count_statements(store) as counted:
            await store.write(lambda tx, new=new: insert_passages(tx, archive, new))
        costs.append(len([sql for sql in counted.statements if "INTO jobs" not in sql]))
    assert costs == [5, 5]


async def test_a_passage_cannot_be_inserted_into_a_deleted_archive(
    store: SqliteStore, scope: Scope
) -> None:
    archive = await make.stored_archive(store, (await make.stored_agent(store)).agent)
    await store.write(lambda tx: hide_archive(tx, scope, archive.id))
    with pytest.raises(NotFound, match=f"Archive with ID {archive.id} not found"):
        await store.write(lambda tx: insert_passages(tx, archive, [make.passage(archive)]))
    assert await store.read(lambda tx: archives.page_of_passages(tx, [archive.id], Page())) == []


passages = st.tuples(
    st.frozensets(st.sampled_from("abc")), st.sampled_from([None, "user-1", "user-2"])
)


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.lists(passages, max_size=3), max_size=4), st.randoms())
async def test_an_archives_count_and_tags_are_right_after_any_changes(
    store: SqliteStore, batches: list[list[tuple[frozenset[str], str | None]]], random: Random
) -> None:
    state = await make.stored_agent(store)
    archive = await make.stored_archive(store, state.agent)
    left: dict[str, Passage] = {}

    def tags_of(*users: str | None) -> tuple[str, ...]:
        return tuple(
            sorted({tag for one in left.values() if one.user_id in users for tag in one.tags})
        )

    def count_of(*users: str | None) -> int:
        return sum(one.user_id in users for one in left.values())

    for batch in batches:
        new = [
            make.passage(archive, tags=tuple(sorted(tags)), user_id=user) for tags, user in batch
        ]
        await store.write(lambda tx, new=new: insert_passages(tx, archive, new))
        left |= {passage.id: passage for passage in new}
        for id in random.sample(sorted(left), min(len(left), 2)):
            await store.write(lambda tx, id=id: delete_passage(tx, Scope(), [archive], id))
            del left[id]
        held = await store.read(lambda tx: archives.get(tx, Scope(), archive.id))
        # A passage of one user does not change what others see.
        assert (held.passage_count, held.tags) == (count_of(None), tags_of(None))
        for user in (None, "user-1", "user-2", "user-3"):
            await store.write(
                lambda tx, user=user: conversations.change(tx, state.conversation.id, user_id=user)
            )
            (seen,) = (
                await store.read(lambda tx: agents.load(tx, Scope(), state.agent.id))
            ).archives
            assert (seen.passage_count, seen.tags) == (count_of(None, user), tags_of(None, user))
