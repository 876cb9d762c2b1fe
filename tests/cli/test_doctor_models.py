"""`ricordo doctor models` finds out by trial which models can run an agent."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ricordo.cli.doctor import examine
from ricordo.cli.doctor_models import (
    MOST_OF_ONE,
    ModelReport,
    examine_model,
    examine_models,
    open_trial,
)
from ricordo.domain.model import ModelRequest
from ricordo.errors import ModelError, NotFound
from ricordo.features.librarian.model import Librarian
from ricordo.llm.chat import ChatModel
from ricordo.llm.learned_dialect import LearnedDialect, LearnedDialects
from ricordo.llm.scripted import Line, ScriptedModel, call
from ricordo.settings import ProviderSettings, Settings
from tests.support.model_server import Answer, ModelServer, Seen, completion


@pytest.fixture(autouse=True)
def untouched(data: Path) -> Iterator[None]:
    yield
    assert not data.exists()


def clever(request: ModelRequest) -> Line:
    """A model that follows instructions."""
    said = next(message.text for message in reversed(request.messages) if message.role == "user")
    done = sum(message.role == "tool" for message in request.messages)
    if "Rex" in said and done < 2:
        return call(
            "memory_insert",
            label="human",
            new_string=("Her dog is Rex.", "She lives in Oslo.")[done],
        )
    if done:
        return "Done."
    if "gardener" in said:
        return call("memory_insert", label="human", new_string="She is a gardener.")
    if "colour" in said:
        return call(
            "memory_replace",
            label="human",
            old_string="colour is blue",
            new_string="colour is green",
        )
    return (
        call("conversation_search", query="holiday") if "Look it up" in said else "You are welcome."
    )


def forgetful(request: ModelRequest) -> Line:
    return "I do not know." if "Look it up" in request.messages[-1].text else clever(request)


def dull(_request: ModelRequest) -> Line:
    return "Hm."


def clumsy(request: ModelRequest) -> Line:
    is_asked = request.messages[-1].role == "user" and not request.stream
    return call("memory_insert", block="human", text="?") if is_asked else "Done. Really."


def offers(request: ModelRequest, name: str) -> bool:
    return name in [tool.name for tool in request.tools]


def simple(request: ModelRequest) -> Line:
    """A model that can call a tool only if the tool has no argument for a block."""
    said = next(message.text for message in reversed(request.messages) if message.role == "user")
    done = sum(message.role == "tool" for message in request.messages)
    if done or not offers(request, "remember"):
        return "Done."
    if "Rex" in said:
        return call("remember", fact="Her dog is Rex.\nLives in Oslo.")
    if "gardener" in said:
        return call("remember", fact="Works as a gardener.")
    return (
        call("correct", old="colour is blue", new="colour is green")
        if "colour" in said
        else "You are welcome."
    )


def talkative(request: ModelRequest) -> Line:
    """A model that calls no tools, but can list facts as text."""
    said = request.messages[-1].text
    if not request.messages[0].text.startswith("You keep notes"):
        return "How nice."
    if "Rex" in said:
        return "- Dog is called Rex.\n- Lives in Oslo."
    return "- Works as a gardener." if "gardener" in said else "- Favourite colour is green."


async def test_the_profile_is_the_fullest_in_which_a_model_does_what_is_needed() -> None:
    for answer, name, profile in (
        (clever, "model", "full"),
        (simple, "model", "small"),
        (simple, "some-1.5b", "small"),
        (talkative, "model", "notes"),
        (dull, "some-1b", None),
    ):
        report = await examined(ScriptedModel(answer, name=name))
        assert report.profile == profile, (answer, name, report)
        assert report.can_run_an_agent == (profile is not None)
        assert f"  {profile or '-':<8} " in report.line(20)


async def examined(model: ChatModel, limit: float = 20) -> ModelReport:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(find_local_models=False)
        async with open_trial(
            settings, ProviderSettings.model_construct(), Path(folder)
        ) as runtime:
            runtime.models.add(model)
            return await examine_model(runtime, model, limit=limit)


async def test_the_trials_decide_whether_a_model_can_run_an_agent() -> None:
    for model, result, streams, calls, right in (
        (clever, "can run an agent", True, 5, 5),
        (forgetful, "can run an agent, but does not search", True, 4, 4),
        (
            dull,
            "no: does not note a fact, does not correct a fact, does not make two calls in a row",
            False,
            0,
            0,
        ),
        (clumsy, "no: ", True, 5, 0),
    ):
        report = await examined(ScriptedModel(model))
        assert report.result == result if result != "no: " else report.result.startswith(result)
        assert report.can_run_an_agent == result.startswith("can")
        assert (report.answers, report.streams, report.calls, report.right) == (
            True,
            streams,
            calls,
            right,
        ), model
    refused = await examined(
        ScriptedModel([ModelError("llm_authentication", "bad key\nCheck it.")])
    )
    assert (refused.result, refused.calls) == ("no: bad key Check it.", 0)
    slow = await examined(ScriptedModel(clever, delay=60), limit=0.05)
    assert slow.result.startswith("no: took longer than")
    librarian = await examined(Librarian())
    assert librarian.can_run_an_agent
    assert librarian.right == librarian.calls > 0


async def test_a_task_that_takes_too_long_ends_before_the_next_model_is_tried() -> None:
    ended: list[bool] = []

    async def hang(request: ModelRequest) -> Line:
        if not request.tools:
            return "Hello."
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return "Never."

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(find_local_models=False)
        providers = ProviderSettings.model_construct()
        async with open_trial(settings, providers, Path(folder)) as runtime:
            model = ScriptedModel(hang)
            runtime.models.add(model)
            report = await examine_model(runtime, model, limit=2)
            assert report.result.startswith("no: took longer than")
            assert ended == [True] * len([one for one in model.requests if one.tools]) != []


def served(*ids: str) -> ModelServer:
    rows = {"data": [{"id": id} for id in ids]}
    return ModelServer(
        lambda seen: Answer(rows) if seen.method == "GET" else completion("I cannot do that.")
    )


async def test_the_table_has_a_line_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served("dull") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("RICORDO_MODEL", "openai/dull")
        lines: list[str] = []
        assert not await examine_models(say=lines.append)
        assert [line.split()[0] for line in lines] == ["model", "openai/dull"]
        assert "no: does not note a fact" in lines[1]
        assert await examine_models("ricordo/librarian", say=lines.append)
        with pytest.raises(NotFound, match="Handle openai/other not found"):
            await examine_models("openai/other", say=lines.append)


def learn_that_prompts_are_clipped(folder: Path, address: str) -> None:
    """Make the running server notice that a model's prompts are clipped."""
    folder.mkdir()
    running = LearnedDialects()
    running.keep_in(folder)
    running.learn(("", address, "strict"), LearnedDialect(clipped_at=2_050))


async def test_learned_adaptations_are_listed_below_a_models_line(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    def strict(seen: Seen) -> Answer:
        if seen.method == "GET":
            return Answer({"data": [{"id": "strict"}]})
        if "tool_choice" in seen.body:
            return Answer({"error": {"message": "Unsupported parameter: 'tool_choice'"}}, 400)
        return completion("I cannot do that.")

    async with ModelServer(strict) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("RICORDO_MODEL", "openai/strict")
        learn_that_prompts_are_clipped(data, server.url)
        lines: list[str] = []
        await examine_models(say=lines.append)
    shutil.rmtree(data)
    assert lines[1].startswith("openai/strict")
    below = [line for line in lines[2:] if line.startswith("  ")]
    assert any("left out or sent otherwise: tool_choice" in line for line in below)
    assert any("cuts longer prompts off at about 2,050 tokens" in line for line in below)


async def test_a_provider_with_very_many_models_is_tried_only_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(*(f"m{number}" for number in range(MOST_OF_ONE + 2))) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        lines: list[str] = []
        await examine_models(say=lines.append)
        assert {seen.body["model"] for seen in server.requests if seen.method == "POST"} == {"m0"}
    assert [line.split()[0] for line in lines[:-1]] == ["model", "openai/m0"], (
        "only the default model is checked"
    )
    assert (
        lines[-1]
        == f"openai lists {MOST_OF_ONE + 2} models. Try one of them with: --model openai/m1"
    )


async def test_the_plain_doctor_asks_no_model_and_warns_of_small_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ollama(seen: Seen) -> Answer:
        if seen.path == "/v1/models":
            return Answer({"data": [{"id": "qwen3:8b", "owned_by": "library"}]})
        if seen.path == "/api/show":
            return Answer(
                {"model_info": {"qwen3.context_length": 40_960}, "parameters": "temperature 0.6"}
            )
        return Answer({"models": []})

    async with ModelServer(ollama) as server:
        monkeypatch.setenv("OLLAMA_BASE_URL", server.root)
        found = await asyncio.to_thread(lambda: {each.name: each for each in examine()})
        assert not any("chat" in seen.path for seen in server.requests)
    assert found["windows"].level == "warning"
    assert "ollama/qwen3:8b (4,096 tokens)" in found["windows"].text
    assert "OLLAMA_CONTEXT_LENGTH" in found["windows"].text
