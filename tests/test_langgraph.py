"""The example for LangGraph and LangChain, tested with the real packages."""

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from letta_client import Letta

from tests.seams.server import MODEL, ServerInThread, serving

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/develop/langgraph.md").read_text("utf-8")


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The module of the example."""
    sys.path.insert(0, str(ROOT / "examples/langgraph"))
    import ricordo_langgraph

    yield ricordo_langgraph
    sys.path.pop(0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("langgraph")) as server:
        yield server


@pytest.fixture
def client(server: ServerInThread) -> Iterator[Letta]:
    with Letta(base_url=server.url, api_key=None, max_retries=0) as opened:
        yield opened


@pytest.fixture
def store(example: Any, client: Letta) -> Any:
    return example.RicordoStore(client, client.archives.create(name="store").id)


def test_items_are_put_read_replaced_and_deleted(store: Any) -> None:
    namespace = ("users", "ada/\u00e9")
    store.put(namespace, "pet", {"text": "Her cat is called Tom.", "age": 3})
    first = store.get(namespace, "pet")
    assert (first.value["age"], first.key, first.namespace) == (3, "pet", namespace)
    store.put(namespace, "pet", {"text": "Her cat is called Tim.", "age": 4})
    second = store.get(namespace, "pet")
    assert second.value == {"text": "Her cat is called Tim.", "age": 4}
    assert second.created_at == first.created_at <= second.updated_at
    assert len(store.search(("users",))) == 1
    store.delete(namespace, "pet")
    assert store.get(namespace, "pet") is None
    assert store.search(()) == []


async def test_a_search_is_limited_to_its_namespace_and_filter(store: Any) -> None:
    for user, pet in (("ada", "cat"), ("bo", "dog")):
        await store.aput(("users", user), "pet", {"text": f"Has a {pet}.", "kind": pet})
        await store.aput(("users", user), "home", {"text": "Lives in Vienna.", "kind": "home"})
    (best, *_) = await store.asearch(("users", "ada"), query="Who has a cat?")
    assert (best.key, best.namespace) == ("pet", ("users", "ada"))
    assert best.score > 0
    found = await store.asearch(("users",), filter={"kind": "home"})
    assert {item.namespace for item in found} == {("users", "ada"), ("users", "bo")}
    assert len(await store.asearch(("users",), limit=3)) == 3
    assert len(await store.asearch(("users",), limit=3, offset=3)) == 1
    assert await store.asearch(("use",)) == []
    assert await store.alist_namespaces() == [("users", "ada"), ("users", "bo")]
    assert await store.alist_namespaces(max_depth=1) == [("users",)]
    assert await store.alist_namespaces(suffix=("bo",)) == [("users", "bo")]


def test_a_search_returns_as_many_items_as_langgraphs_own_store(store: Any) -> None:
    reference = InMemoryStore()
    for each in (store, reference):
        for number in range(4):
            each.put(("notes",), f"n{number}", {"text": "Tea.", "is_even": number % 2 == 0})
    for offset, limit, chosen in itertools.product((0, 1, 3, 9), (0, 1, 3, 4, 9), (None, True)):
        asked: dict[str, Any] = {"offset": offset, "limit": limit}
        asked["filter"] = None if chosen is None else {"is_even": chosen}
        counts = [len(each.search(("notes",), **asked)) for each in (store, reference)]
        assert counts[0] == counts[1], asked


def test_more_messages_than_one_request_takes_are_added_to_a_history(
    example: Any, client: Letta
) -> None:
    agent = client.agents.create(model=MODEL)
    history = example.RicordoChatMessageHistory(client, agent.id)
    texts = [f"Message {number}." for number in range(1002)]
    history.add_messages([HumanMessage(text) for text in texts])
    assert [message.content for message in history.messages] == texts


def test_a_graph_reads_items_stored_by_another_run(store: Any) -> None:
    def answer(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        said = str(state["messages"][-1].content)
        known = store.search(("facts",), query=said)
        store.put(("facts",), str(len(known)), {"text": said})
        return {"messages": [AIMessage("; ".join(item.value["text"] for item in known))]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    compiled = graph.compile(store=store)
    compiled.invoke({"messages": [HumanMessage("My cat is called Tom.")]})
    state = compiled.invoke({"messages": [HumanMessage("What is my cat called?")]})
    assert state["messages"][-1].content == "My cat is called Tom."


def test_a_history_is_a_conversation_of_an_agent(example: Any, client: Letta) -> None:
    agent = client.agents.create(name="Nina", model=MODEL)
    history = example.RicordoChatMessageHistory(client, agent.id)
    history.add_messages(
        [SystemMessage("Be kind."), HumanMessage("I like tea."), AIMessage("Tea it is.")]
    )
    same = example.RicordoChatMessageHistory(client, agent.id, history.conversation_id)
    assert [(message.type, message.content) for message in same.messages] == [
        ("human", "I like tea."),
        ("ai", "Tea it is."),
    ]
    history.clear()
    assert history.messages == []


def test_the_program_of_the_page_prints_the_expected_lines(
    example: Any, server: ServerInThread, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(program.replace("http://127.0.0.1:8283", server.url), {})  # noqa: S102 - the page's own
    assert capsys.readouterr().out == "Her cat is called Tom.\n2\n"
