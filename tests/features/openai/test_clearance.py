"""The egress policies of answers that a client sends back."""

from types import SimpleNamespace
from typing import Any

from ricordo.domain.egress import join
from ricordo.domain.scope import Scope
from ricordo.features.openai.clearance import labels_of_messages
from ricordo.features.openai.shown_answers import answer_key
from ricordo.search.index import insert_messages
from ricordo.storage.engine.store import Store
from tests.seams import make


async def test_equal_answers_get_the_policies_of_all_of_them(store: Store) -> None:
    """A client sends only the text back, so it may be either answer."""
    agent = (await make.stored_agent(store)).agent
    labels = ("local", "local,openai", None)
    answers = [
        make.message(agent, "Take the tea.", "assistant", egress=label, created_at=make.START + at)
        for at, label in enumerate(labels)
    ]
    await store.write(lambda tx: insert_messages(tx, answers))
    context: Any = SimpleNamespace(scope=Scope())
    found = await store.read(lambda tx: labels_of_messages(tx, context, agent.id))
    assert found == {answer_key("Take the tea."): join(*labels)}


async def test_the_whole_answer_of_a_run_gets_the_policies_of_its_texts(store: Store) -> None:
    agent = (await make.stored_agent(store)).agent
    texts = [("Your diagnosis is X.", "local"), ("I wrote it down.", None)]
    answers = [
        make.message(agent, text, "assistant", egress=label, run_id="run-1", step_id="step-1")
        for text, label in texts
    ]
    await store.write(lambda tx: insert_messages(tx, answers))
    context: Any = SimpleNamespace(scope=Scope())
    found = await store.read(lambda tx: labels_of_messages(tx, context, agent.id))
    shown = "Your diagnosis is X.\n\nI wrote it down."
    assert found == {answer_key("Your diagnosis is X."): "local", answer_key(shown): "local"}
