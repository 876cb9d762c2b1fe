"""`ricordo doctor models`: which models can run an agent, found out over HTTP."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ricordo.cli.doctor import examine
from ricordo.cli.doctor_models import MOST_OF_ONE, ModelReport, examine_model, examine_models, open_trial
from ricordo.domain.model import ModelInfo
from ricordo.errors import NotFound
from ricordo.features.librarian.model import Librarian
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.policy import CallPolicy
from ricordo.settings import ProviderSettings, Settings
from tests.support.model_server import Answer, ModelServer, Seen, completion, stream, tool_call


@pytest.fixture(autouse=True)
def untouched(data: Path) -> Iterator[None]:
    """The data folder is not there, and never will be."""
    yield
    assert not data.exists()


def clever(seen: Seen) -> Answer:
    """A model that does as it is told."""
    if seen.method == "GET":
        return Answer({"data": [{"id": "clever"}]})
    messages = seen.body["messages"]
    if messages[-1]["role"] == "tool" and "Rex" not in messages[-3].get("content", ""):
        return completion("Done.")
    return _answer(seen.body, messages)


def _answer(body: dict[str, Any], messages: list[dict[str, Any]]) -> Answer:
    said = next(row["content"] for row in reversed(messages) if row["role"] == "user")
    done = sum(row["role"] == "tool" for row in messages)
    if body.get("stream"):
        return stream({"content": "Hel"}, {"content": "lo."})
    if "gardener" in said:
        return _call("memory_insert", label="human", new_string="She is a gardener.")
    if "colour" in said:
        return _call("memory_replace", label="human", old_string="colour is blue", new_string="colour is green")
    if "Rex" in said and done < 2:
        return _call("memory_insert", label="human", new_string=("Her dog is Rex.", "She lives in Oslo.")[done])
    if "look it up" in said.lower():
        return _call("conversation_search", query="holiday")
    return completion("You are welcome.")


def _call(name: str, **arguments: Any) -> Answer:
    return completion(None, [tool_call(name, json.dumps(arguments))])


def dull(seen: Seen) -> Answer:
    """A model that knows no tools and does not stream."""
    return Answer({"data": [{"id": "dull"}]}) if seen.method == "GET" else completion("I cannot do that.")


def clumsy(seen: Seen) -> Answer:
    """A model that calls the right tools with the wrong arguments, whatever it is told."""
    if seen.method == "POST" and not seen.body.get("stream") and seen.body["messages"][-1]["role"] == "user":
        return _call("memory_insert", block="human", text="?")
    return clever(seen) if seen.method == "GET" or seen.body.get("stream") else completion("Done.")


async def report_of(otherwise: Callable[[Seen], Answer], *answers: Answer, limit: float = 20) -> ModelReport:
    connections = Connections(timeout=5)
    async with ModelServer(otherwise) as server:
        server.push(*answers)
        info = ModelInfo("vllm/m", "vllm", "m", "vllm", endpoint=server.url)
        report = await tried(OpenAICompatibleModel(info, connections, CallPolicy(0, 5)), limit)
    await connections.close()
    return report


async def tried(model: ChatModel, limit: float) -> ModelReport:
    settings = Settings(find_local_models=False)
    with tempfile.TemporaryDirectory() as folder:
        async with open_trial(settings, ProviderSettings.model_construct(), Path(folder)) as runtime:
            runtime.models.add(model)
            return await examine_model(runtime, model, limit=limit)


def forgetful(seen: Seen) -> Answer:
    """A model that does as it is told, but for searching."""
    asks = seen.method == "POST" and "look it up" in str(seen.body["messages"][-1]["content"]).lower()
    return completion("I do not know.") if asks else clever(seen)


async def test_what_a_model_does_decides_whether_it_can_run_an_agent() -> None:
    for model, result, streams, calls, right in (
        (clever, "can run an agent", True, 5, 5),
        (forgetful, "can run an agent, but does not search", True, 4, 4),
        (dull, "no: does not note a fact, does not correct a fact, does not make two calls in a row", False, 0, 0),
        (clumsy, "no: ", True, 5, 0),
    ):
        report = await report_of(model)
        assert report.result == result if result != "no: " else report.result.startswith(result)
        assert report.can_run_an_agent == result.startswith("can")
        assert (report.answers, report.streams, report.calls, report.right) == (True, streams, calls, right), model
    refused = await report_of(clever, Answer({"error": {"message": "bad key"}}, 401))
    assert (refused.result, refused.calls) == ("no: vllm answered 401: bad key. Check its key.", 0)
    slow = await report_of(clever, Answer({}, delay=60), limit=0.05)
    assert slow.result.startswith("no: took longer than")


async def test_the_librarian_can_run_an_agent() -> None:
    report = await tried(Librarian(), 20)
    assert report.result.startswith("can run an agent")
    assert report.right == report.calls > 0


async def test_the_table_has_a_line_for_each_model_(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(clever) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("RICORDO_MODEL", "openai/clever")
        lines: list[str] = []
        assert await examine_models(say=lines.append)
        assert [line.split()[0] for line in lines] == ["model", "openai/clever"]
        assert lines[1].endswith("can run an agent")
        assert await examine_models("ricordo/librarian", say=lines.append)
        with pytest.raises(NotFound, match="Handle openai/other not found"):
            await examine_models("openai/other", say=lines.append)


async def test_a_provider_with_very_many_models_is_not_tried_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": f"m{number}"} for number in range(MOST_OF_ONE + 2)]
    async with ModelServer(lambda seen: Answer({"data": rows}) if seen.method == "GET" else clever(seen)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        lines: list[str] = []
        await examine_models(say=lines.append)
        assert all(seen.method == "GET" for seen in server.requests)
    assert lines[-1] == f"openai lists {MOST_OF_ONE + 2} models. Try one of them with: --model openai/m0"


async def test_the_plain_doctor_asks_no_model_and_warns_of_small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def ollama(seen: Seen) -> Answer:
        if seen.path == "/v1/models":
            return Answer({"data": [{"id": "qwen3:8b", "owned_by": "library"}]})
        if seen.path == "/api/show":
            return Answer({"model_info": {"qwen3.context_length": 40_960}, "parameters": "temperature 0.6"})
        return Answer({"models": []})

    async with ModelServer(ollama) as server:
        monkeypatch.setenv("OLLAMA_BASE_URL", server.root)
        found = await asyncio.to_thread(lambda: {each.name: each for each in examine()})
        assert not any("chat" in seen.path for seen in server.requests)
    assert found["windows"].level == "warning"
    assert "ollama/qwen3:8b (4,096 tokens)" in found["windows"].text
    assert "OLLAMA_CONTEXT_LENGTH" in found["windows"].text
