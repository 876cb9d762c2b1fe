"""Where an answer came from: the versions and passages in its step's prompt, and what the step changed or proposed."""

import pytest

from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import NotFound
from ricordo.memory import lineage, user_memory
from ricordo.memory.lineage import Lineage
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.memory.user_memory import UserMemory
from ricordo.storage import archives, history, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.memory.steps import ADA
from tests.seams import make


async def test_an_answers_lineage_is_what_its_step_had_and_did(store: SqliteStore, scope: Scope) -> None:
    state = await make.stored_agent(store, with_blocks=[make.block("persona", "I am Nina.")])
    archive = await make.stored_archive(store, state.agent, "Tea grows in Darjeeling.")
    run = make.run(state.agent)
    (said, answered) = await make.stored_messages(
        store,
        make.message(state.agent, "What do I like?", run_id=run.id),
        make.message(state.agent, "Tea.", "assistant", run_id=run.id, step_id="step-7"),
    )

    def work(tx: Transaction) -> UserMemory:
        owned = user_memory.open_memory(tx, scope, "ada", makes=True)
        human = user_memory.put(tx, owned, "human", "Likes tea", ADA)
        gone = user_memory.put(tx, owned, "gone", "x", ADA)
        (passage,) = archives.page_of_passages(tx, [archive.id], Page())
        held = {block.id: (block.head or b"").hex() for block in (*state.blocks, human, gone)}
        memory = {"blocks": {**held, "block-erased": "ab" * 20}, "passages": [passage.id, "passage-gone"]}
        runs.open_run(tx, run)
        runs.insert_step(tx, make.step(run, id="step-7", memory=memory, is_untrusted=True))
        by = Actor("agent", state.agent.id, "Nina")
        metadata = ChangeMetadata(by, "Because", run_id=run.id, step_id="step-7")
        propose(tx, ProposalDraft(owned.chain.id, "human", "Likes rum", human), metadata)
        user_memory.put(tx, owned, "human", "Likes gin", ADA)
        user_memory.delete(tx, owned, "gone", ADA)
        user_memory.make(
            tx,
            owned.chain,
            "extra",
            "y",
            ChangeMetadata(by, "New", run_id=run.id, step_id="step-7"),
            {"policy": "direct"},
        )
        return owned

    owned = await store.write(work)
    found = await store.read(lambda tx: lineage.of_message(tx, scope, answered.id))
    assert (found.run_id, found.step_id, found.is_untrusted) == (run.id, "step-7", True)
    labels = {held.version.label if held.version else None: held for held in found.blocks}
    assert labels.keys() == {"persona", "human", "gone", None}
    assert labels[None].block_id == "block-erased"
    human = labels["human"].version
    assert human
    text = await store.read(lambda tx: history.text_at(tx, owned.chain.id, "human", human))
    assert text == "Likes tea"
    assert [passage.text for passage in found.passages] == ["Tea grows in Darjeeling."]
    assert found.gone == ("passage-gone",)
    assert [(version.label, version.reason) for version in found.changed] == [("extra", "New")]
    assert [(one.label, one.value, one.status) for one in found.proposed] == [("human", "Likes rum", "open")]
    assert await store.read(lambda tx: lineage.of_message(tx, scope, said.id)) == Lineage(said.id, run.id)


async def test_a_message_whose_step_is_not_saved_yet_and_one_of_somebody_else(store: SqliteStore, scope: Scope) -> None:
    state = await make.stored_agent(store)
    (early,) = await make.stored_messages(
        store, make.message(state.agent, "Wait.", "assistant", run_id="run-1", step_id="step-8")
    )
    found = await store.read(lambda tx: lineage.of_message(tx, scope, early.id))
    assert found == Lineage(early.id, "run-1", "step-8")
    for asker, id in ((Scope(organization_id="org-2"), early.id), (scope, "message-gone")):
        with pytest.raises(NotFound):
            await store.read(lambda tx, asker=asker, id=id: lineage.of_message(tx, asker, id))  # type: ignore[misc]
