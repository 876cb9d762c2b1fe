"""Proposals in storage.

Read back as they were, counted while they wait, taken along by a new label, and ended in time.
"""

from dataclasses import replace

import pytest

from ricordo.domain.block import Chain
from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION, Actor, Scope
from ricordo.domain.version import Proposal
from ricordo.errors import NotFound
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.storage import blocks, conversations, proposals, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter
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


async def test_a_proposal_made_from_a_text_that_no_version_has_reads_back_too(
    store: SqliteStore, scope: Scope
) -> None:
    one = proposal("gin", base=b"1" * 20, base_value="Never stored")
    chain = await stored(store, one)
    assert await store.read(lambda tx: proposals.get(tx, scope, one.id)) == replace(
        one, chain_id=chain.id
    )


async def test_those_that_wait_are_counted_and_go_along_to_a_new_label(
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
    # What was decided tells of the label it was decided under.
    assert (await store.read(lambda tx: proposals.get(tx, scope, done.id))).label == "human"


async def test_proposing_reads_no_more_where_many_of_others_wait(store: SqliteStore) -> None:
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


async def test_a_rejection_is_told_once_by_whichever_conversation_with_the_user_comes_next(
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
