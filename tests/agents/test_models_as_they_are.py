"""Agents with the models of local servers, in real turns over real HTTP.

Each message is answered, and the memory stays in the prompt.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ricordo.agents.history import PastMessage, import_messages
from ricordo.agents.request import (
    NewMessage,
    TurnRequest,
)
from ricordo.agents.turn import Answer, collect, run_turn
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelInfo, ModelSettings
from ricordo.domain.scope import Scope
from ricordo.llm.adaptation import lessons_of
from ricordo.llm.addresses import Connections
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.prompt.texts import text
from ricordo.storage import conversations
from tests.agents.conftest import OpenStage
from tests.llm.talk import Waits
from tests.llm.test_refusals import SPELLINGS
from tests.seams.stage import Stage, text_of, turn_request
from tests.support.canaries import canary
from tests.support.local_model_server import BODIES, LocalModel, LocalModels, Serving, size_of
from tests.support.model_server import Answer as Served
from tests.support.model_server import ModelServer, completion

BOOM = Served({"error": {"message": "boom"}}, 500)


class Server:
    """A mock server with models for the agents of one stage."""

    def __init__(self, stage: Stage, connections: Connections) -> None:
        self.models = LocalModels()
        self.http = ModelServer(self.models.answer, keeps=False)
        self.stage = stage
        self._connections = connections

    async def agent(
        self, model: LocalModel, *, window: int = 32_000, **spec: Any
    ) -> tuple[str, Serving]:
        """Make an agent with a separate model."""
        name = f"m{len(self.models.serving)}"
        serving = self.models.add(name, model)
        info = ModelInfo(f"local/{name}", "local", name, "openai", window, self.http.url)
        learned = lessons_of(info, self.stage.runtime.models.learned)
        self.stage.runtime.models.add(
            OpenAICompatibleModel(info, self._connections, Waits().policy(), learned=learned)
        )
        plain: dict[str, Any] = {
            "model": info.handle,
            "context_window": window,
            "has_base_tools": False,
        }
        return await self.stage.agent(**plain | spec), serving

    async def say(self, agent: str, *texts: str, **request: Any) -> Answer:
        new = tuple(NewMessage("user", (TextPart(text),)) for text in texts)
        return await collect(
            await run_turn(self.stage.runtime, turn_request(Scope(), agent, *new, **request))
        )


@pytest.fixture
async def server(open_stage: OpenStage) -> AsyncIterator[Server]:
    stage, connections = await open_stage(), Connections(timeout=20)
    opened = Server(stage, connections)
    async with opened.http:
        yield opened
        await connections.close()


def roles_of(body: dict[str, Any]) -> str:
    return "".join(row["role"][0] for row in body["messages"])


def is_answered(answer: Answer) -> bool:
    return answer.failure is None and "I heard you" in text_of(answer)


# --- case 01 ---


async def test_a_model_with_strict_roles_answers_again_after_failed_turns(
    server: Server,
) -> None:
    slow_down, empty = Served({"error": {"message": "slow down"}}, 429), completion("")
    for passing in ((BOOM,) * 4, (slow_down,) * 4, (empty, empty), (BOOM,) * 8):
        for streams in (False, True):
            model = LocalModel(template="alternation", passing=(None, *passing))
            agent, serving = await server.agent(model)
            assert is_answered(await server.say(agent, "Hello.", streams_tokens=streams))
            while serving.passed < len(model.passing):
                await server.say(agent, "Are you there?", streams_tokens=streams)
            for _ in range(3):
                before = len(serving.bodies)
                assert is_answered(await server.say(agent, "And now?", streams_tokens=streams))
            assert len(serving.bodies) == before + 1
            assert set(roles_of(serving.bodies[-1])[1:].split("au")) <= {"", "u"}


async def test_a_model_with_strict_roles_answers_after_consecutive_user_messages(
    server: Server,
) -> None:
    agent, serving = await server.agent(LocalModel(template="alternation"))
    assert is_answered(await server.say(agent, "One.", "Two."))
    assert "One.\n\nTwo." in serving.bodies[-1]["messages"][-1]["content"]
    # First several people write in a group. Then the window begins with an assistant message, as
    # after an import.
    new = tuple(
        NewMessage("user", (TextPart(f"{name} speaks."),), name=name)
        for name in ("Ada", "Bob", "Cy")
    )
    answer = await collect(await run_turn(server.stage.runtime, TurnRequest(Scope(), agent, new)))
    assert is_answered(answer)
    past = [
        PastMessage("assistant", ("I began.",)),
        PastMessage("assistant", ("And went on.",)),
        PastMessage("user", ("Hm.",)),
    ]
    agent, serving = await server.agent(LocalModel(template="mistral"))
    ids = await import_messages(server.stage.store, Scope(), agent, past)
    thread = await server.stage.thread(agent)
    await server.stage.store.write(
        lambda tx: conversations.change(
            tx, thread.id, window=[*thread.window[:1], *ids], prompt_key=""
        )
    )
    assert is_answered(await server.say(agent, "Go on."))
    assert serving.outcomes["answered"] == 1


# --- case 02 ---


async def talk(server: Server, agent: str, turns: int) -> list[Answer]:
    """Send this number of messages of 1,000 tokens each."""
    return [await server.say(agent, f"Part {number}: {'word ' * 800}") for number in range(turns)]


@pytest.mark.parametrize(
    "share", [pytest.param(5, id="short"), pytest.param(1, id="long", marks=pytest.mark.soak)]
)
async def test_a_chat_longer_than_the_servers_window_continues_after_any_refusal(
    server: Server, share: int
) -> None:
    spellings = [
        "",
        *SPELLINGS.values(),
        "E17",
        "Bad Request",
        "上下文过长",
        "Der Text ist zu lang",
    ]
    for place, words in list(enumerate(spellings))[::share]:
        body = list(BODIES)[place % len(BODIES)]
        model = LocalModel(
            window=4_000, window_words=words, body=body, status=(400, 422, 400)[place % 3]
        )
        agent, serving = await server.agent(model, window=128_000)
        answers = await talk(server, agent, 6)
        assert all(map(is_answered, answers)), (words, [a.failure for a in answers if a.failure])
        # The limit is learned once: later turns compact before the server refuses.
        assert serving.outcomes["length"] <= (8 if words in ("E17", "Bad Request", "") else 3), (
            words,
            serving.outcomes,
        )
        summaries = [one for one in await server.stage.history(agent) if one.role == "summary"]
        assert summaries, words


async def test_a_learned_window_holds_for_later_conversations_too(
    server: Server,
) -> None:
    words = SPELLINGS["LM Studio"]
    agent, serving = await server.agent(
        LocalModel(window=4_000, window_words=words), window=128_000
    )
    await talk(server, agent, 6)
    refused = serving.outcomes["length"]
    model = (await server.stage.state(agent)).agent.model
    other = await server.stage.agent(model=model, context_window=128_000, has_base_tools=False)
    assert all(map(is_answered, await talk(server, other, 6)))
    assert refused >= 1
    assert serving.outcomes["length"] == refused
    # The agent's settings do not change.
    assert (await server.stage.state(other)).agent.context_window == 128_000


# --- case 06 ---


async def test_an_output_budget_as_large_as_the_window_is_reduced_at_every_call(
    server: Server,
) -> None:
    words = (
        "This endpoint's maximum context length is {limit} tokens. However, you requested about {total} tokens ({n} of text"
        " input, 0 of tool input, {budget} in the output). Please reduce the length of either one."
    )
    for window, budget in ((32_768, 32_768), (8_192, 8_192), (8_192, 100_000), (16_000, 15_900)):
        model = LocalModel(window=window, budget_counts=True, window_words=words)
        settings = ModelSettings(max_output_tokens=budget)
        agent, serving = await server.agent(model, window=window, model_settings=settings)
        assert is_answered(await server.say(agent, "Hi."))
        assert serving.outcomes["length"] == 0
        assert serving.bodies[-1]["max_tokens"] > window // 2
        assert all(map(is_answered, await talk(server, agent, 8)))


# --- case 09 ---


async def test_a_model_that_only_streams_answers_blocking_and_background_turns(
    server: Server,
) -> None:
    words = "This model only support stream mode, please enable the stream parameter to access the model."
    agent, serving = await server.agent(LocalModel(only_streams=words))
    assert is_answered(await server.say(agent, "Hello."))
    assert is_answered(await server.say(agent, "Hello.", is_background=True, purpose="task"))
    assert is_answered(await server.say(agent, "Hello.", streams_tokens=True))
    assert serving.outcomes["stream"] == 1


# --- case 40 ---


async def test_a_token_count_of_a_clipped_prompt_is_noticed_and_hardly_lowers_the_estimate(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for usage in ("clipped", "low", "cached apart", "none", "honest"):
        caplog.clear()
        agent, serving = await server.agent(LocalModel(usage=usage), window=6_000)
        answers = await talk(server, agent, 10)
        assert all(map(is_answered, answers))
        assert max(map(size_of, serving.bodies)) <= 6_000, usage
        learned = lessons_of_agent(server, await server.stage.state(agent))
        is_noticed = any("cuts longer prompts off" in line for line in learned.lines())
        assert is_noticed == (usage == "clipped"), usage
        assert is_noticed == any(
            "cuts longer prompts off" in str(vars(row).get("lesson")) for row in caplog.records
        )


def lessons_of_agent(server: Server, state: Any) -> Any:
    return server.stage.runtime.models.get(state.agent.model).learned.dialect  # type: ignore[attr-defined]


async def test_a_message_quoted_in_a_servers_error_is_never_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"I told you {canary('said')}."
    for status in (400, 401, 413, 422, 429, 500):
        quoting = Served(
            {"error": {"message": f"cannot take {said!r}", "type": "invalid_request_error"}}, status
        )
        agent, serving = await server.agent(LocalModel(passing=(quoting,) * 8))
        with caplog.at_level(logging.INFO):
            await server.say(agent, said)
        assert serving.passed
    assert caplog.records  # `LogWatch` checks the log lines here, as in every test.


async def test_a_token_count_may_raise_the_estimate(server: Server) -> None:
    agent, _ = await server.agent(LocalModel(usage="double"), window=16_000)
    await talk(server, agent, 8)
    assert ((await server.stage.thread(agent)).token_percent or 0) > 150


async def test_the_default_output_limit_leaves_room_for_a_long_prompt(server: Server) -> None:
    words = "max_tokens is too large: {budget} and {n} of {limit}"
    agent, serving = await server.agent(
        LocalModel(window=8_000, budget_counts=True, window_words=words), window=8_000
    )
    assert all(map(is_answered, await talk(server, agent, 9)))
    assert serving.outcomes["length"] == 0
    assert len({body["max_tokens"] for body in serving.bodies if "max_tokens" in body}) > 1


async def test_an_answer_that_repeats_the_instructions_is_asked_again_and_never_stored(
    server: Server,
) -> None:
    copied = text("letta_v1").splitlines()[-2]
    for streams in (False, True):
        model = LocalModel(passing=(completion(copied), None, completion(copied.upper())))
        agent, serving = await server.agent(model, system=text("letta_v1"))
        for said in ("Hello.", "My dog is called Rex."):
            answer = await server.say(agent, said, streams_tokens=streams)
            assert is_answered(answer)
            assert copied.casefold() not in text_of(answer).casefold()
        assert len(serving.bodies) == 4
        shown = [
            row for body in serving.bodies for row in body["messages"] if row["role"] == "assistant"
        ]
        assert not any(copied.casefold() in str(row["content"]).casefold() for row in shown)
