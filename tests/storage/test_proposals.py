"""Proposals in storage: round trips, counts of open ones, a block's new label, and expiry."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from ricordo.domain.block import Chain
from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION, Actor, Scope
from ricordo.domain.version import Proposal
from ricordo.errors import NotFound
from ricordo.features.memory_care.notifications import queries as notifications
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.storage import blocks, conversations, proposals, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter
from ricordo.storage.schema.memory_tables import proposals as proposals_table
from tests.seams import make
from tests.seams.stores import START, count_statements


async def stored(store: SqliteStore, *new: Proposal) -> Chain:
    chain = make.chain("user", "user-1")

    def work(tx: Transaction) -> Chain:
        blocks.insert_all(
            tx, [make.block("human", "tea", chain_id=chain.id)], [chain], make.change_metadata()
        )
        for one in new:
            proposals.insert_one(tx, replace(one, chain_id=chain.id), None)
        return chain

    return await store.write(work)


def proposal(text: str | None = "rum", **fields: object) -> Proposal:
    values: dict[str, object] = {
        "id": new_id("proposal"),
        "organization_id": LOCAL_ORGANIZATION,
        "chain_id": "",
        "label": "human",
        "base": None,
        "base_value": None,
        "author": Actor("agent", "agent-1", "Tutor"),
        "reasoning": "She said so",
        "created_at": START,
    }
    return Proposal(value=text, **values | fields)  # type: ignore[arg-type]


async def test_a_proposal_reads_back_as_it_was_written(store: SqliteStore, scope: Scope) -> None:
    one = proposal(
        "Übt 🍵",
        confidence=0.25,
        new_label="you",
        description="Who",
        run_id="run-1",
        step_id="step-1",
        is_untrusted=True,
    )
    two = proposal(None, label="goals")
    chain = await stored(store, one, two)
    for sent in (one, two):
        read = await store.read(lambda tx, id=sent.id: proposals.get(tx, scope, id))  # type: ignore[misc]
        assert read == replace(sent, chain_id=chain.id)
        assert await store.write(lambda tx, id=sent.id: proposals.lock(tx, scope, id)) == read  # type: ignore[misc]
    assert [
        found.id for found in await store.read(lambda tx: proposals.of_step(tx, scope, "step-1"))
    ] == [one.id]
    elsewhere = Scope(organization_id="org-2")
    assert await store.read(lambda tx: proposals.of_step(tx, elsewhere, "step-1")) == []
    with pytest.raises(NotFound):
        await store.write(lambda tx: proposals.lock(tx, elsewhere, one.id))


async def test_a_proposal_based_on_a_text_without_a_version_reads_back_too(
    store: SqliteStore, scope: Scope
) -> None:
    one = proposal("gin", base=b"1" * 20, base_value="Never stored")
    chain = await stored(store, one)
    assert await store.read(lambda tx: proposals.get(tx, scope, one.id)) == replace(
        one, chain_id=chain.id
    )


async def test_waiting_proposals_are_counted_and_follow_a_new_label(
    store: SqliteStore, scope: Scope
) -> None:
    done, stuck = proposal(status="rejected"), proposal(status="conflicted")
    chain = await stored(store, proposal(), stuck, done, proposal(label="goals"))
    counts = await store.read(lambda tx: proposals.waiting_counts(tx, chain.id))
    assert counts == {"human": 2, "goals": 1}
    await store.write(lambda tx: proposals.follow(tx, chain.id, "human", "profile"))
    await store.write(lambda tx: proposals.follow(tx, "chain-other", "goals", "aims"))
    counts = await store.read(lambda tx: proposals.waiting_counts(tx, chain.id))
    assert counts == {"profile": 2, "goals": 1}
    # A decided proposal keeps the label that it had then.
    assert (await store.read(lambda tx: proposals.get(tx, scope, done.id))).label == "human"


async def test_proposing_reads_no_more_rows_when_many_others_wait(store: SqliteStore) -> None:
    others = [
        proposal(f"rum {number}", author=Actor("agent", f"agent-{number}", ""))
        for number in range(20)
    ]
    chain = await stored(store, *others)
    block = await store.read(lambda tx: blocks.labelled(tx, chain.id, "human"))
    metadata = replace(make.change_metadata(), author=Actor("agent", "agent-0", ""))
    with count_statements(store) as counted:
        await store.write(
            lambda tx: propose(tx, ProposalDraft(chain.id, "human", "gin", block), metadata)
        )
    assert len(counted.statements) <= 8
    found = await store.read(lambda tx: proposals.waiting(tx, chain.id))
    assert [one.value for one in found] == [*(f"rum {number}" for number in range(1, 20)), "gin"]
    assert await store.read(lambda tx: proposals.waiting_ids(tx, chain.id, 99)) == [
        one.id for one in found
    ]
    which = ProposalFilter(chain_id=chain.id, waits=True)
    paged = await store.read(lambda tx: proposals.page(tx, Scope(), Page(limit=2), which))
    assert paged == found[:-3:-1]


async def test_a_rejection_is_reported_once_in_the_users_next_conversation(
    store: SqliteStore,
) -> None:
    state = await make.stored_agent(store)
    agent_id = state.agent.id
    pair = [
        replace(state.conversation, id=new_id("conv"), is_default=False, user_id="user-1")
        for _ in range(2)
    ]
    run = make.run(state.agent, id=new_id("run"), conversation_id=pair[0].id)

    def begin(tx: Transaction) -> None:
        for one in pair:
            conversations.insert_one(tx, one)
        runs.open_run(tx, run)

    await store.write(begin)
    agent, told = Actor("agent", agent_id, "Nina"), {"status": "rejected", "is_untold": True}
    await stored(
        store,
        proposal(author=agent, run_id=run.id, note="No.", **told),
        proposal(author=agent, note="Nor.", **told),
        proposal(author=agent, status="rejected", note="Told."),
        proposal(note="x", **told),
    )

    def flags(tx: Transaction) -> list[bool]:
        return [bool(conversations.require(tx, Scope(), one.id).has_untold) for one in pair]

    async def take(user_id: str = "user-1") -> list[str]:
        found = await store.write(lambda tx: proposals.take_untold(tx, agent_id, user_id, 9))
        return [one.reason for one in found]

    await store.write(lambda tx: conversations.flag_untold(tx, agent_id, "user-1"))
    assert await store.read(flags) == [True, True]
    await store.write(lambda tx: conversations.set_untold(tx, pair[0].id, False))
    assert await store.read(flags) == [False, True]
    assert await take("user-2") == []
    assert await store.read(lambda tx: proposals.are_untold(tx, agent_id, "user-1"))
    assert [await take(), await take()] == [["No.", "Nor."], []]
    assert not await store.read(lambda tx: proposals.are_untold(tx, agent_id, "user-1"))


def plan_of(tx: Transaction, statement: sa.Select[Any], parameters: Mapping[str, Any]) -> str:
    """Return the database's plan of a statement."""
    compiled = statement.compile(compile_kwargs={"render_postcompile": True})
    given = {name: parameters.get(name, value) for name, value in compiled.params.items()}
    is_sqlite = tx.connection.dialect.name == "sqlite"
    explained = sa.text(f"EXPLAIN {'QUERY PLAN ' if is_sqlite else ''}{compiled}")
    return "\n".join(str(row[-1]) for row in tx.connection.execute(explained, given))


async def test_waiting_proposals_are_found_by_an_index_without_decided_ones(
    store: SqliteStore, scope: Scope
) -> None:
    chain = await stored(store, proposal())

    def fill(tx: Transaction) -> None:
        row = {"chain_id": chain.id, "label": "human", "reasoning": "", "status": "approved"}
        row |= {"organization_id": LOCAL_ORGANIZATION, "created_at": START}
        row |= {"author_kind": "agent", "author_id": "agent-1", "author_name": "Tutor"}
        rows = [{"id": new_id("proposal"), **row} for _ in range(3_000)]
        tx.run(sa.insert(proposals_table), rows)
        tx.connection.exec_driver_sql("ANALYZE")

    await store.write(fill)
    waits = ProposalFilter(waits=True)
    with count_statements(store) as counted:
        shown = await store.read(lambda tx: proposals.page(tx, scope, Page(limit=20), waits))
    assert len(shown) == 1
    assert len(counted.statements) <= 3
    parameters = {"channel": "email", "default": "daily", "now": START, "since": START}
    of_organization = sa.select(sa.func.count()).where(
        proposals_table.c.organization_id == LOCAL_ORGANIZATION, proposals.WAITS
    )
    statements = (
        of_organization,
        proposals._DUE,
        notifications._UNTOLD_OWNERS["email"],
        sa.select(proposals_table).where(proposals.WAITS),
    )
    for statement in statements:
        plan = await store.read(lambda tx, one=statement: plan_of(tx, one, parameters))  # type: ignore[misc]
        assert "proposals_waiting" in plan, plan
