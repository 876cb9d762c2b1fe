"""Adaptation of requests to what a model's server accepts, over real HTTP.

However the server refuses, later requests are valid for it, and each refusal has to happen only
once.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ricordo.domain.message import ImagePart, Message, TextPart
from ricordo.domain.model import ModelInfo, ModelRequest, ModelSettings, TextChunk
from ricordo.errors import ModelError
from ricordo.llm.adaptation import lessons_of
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import whole_reply
from ricordo.llm.learned_dialect import (
    GUESS_SECONDS,
    LESSON_SECONDS,
    LearnedDialect,
    LearnedDialects,
)
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from tests.llm.talk import (
    CLOCK,
    HISTORIES,
    WEATHER,
    Waits,
    ask,
    claude_at,
    collect,
    said,
    weather_call,
    weather_return,
)
from tests.support.local_model_server import (
    BODIES,
    FIELD_BODIES,
    FIELDS,
    STREAM_WORDS,
    TEMPLATE_WORDS,
    TEMPLATES,
    LocalModel,
    LocalModels,
    Serving,
)
from tests.support.model_server import Answer, ModelServer, Seen, claude, claude_stream

# The error texts of these refusals do not name the cause, so it has to be guessed.
WORDLESS = {"Bad Request", "E1042", ""}
SETTINGS = ModelSettings(
    temperature=0.5,
    max_output_tokens=300,
    parallel_tool_calls=False,
    response_format={
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object"}},
    },
)
# A failed turn, two messages in a request, an import that begins in the middle, group talk, a late
# alert, calls.
TALKS: dict[str, tuple[Message | str, ...]] = {
    **{name: messages for name, messages in HISTORIES.items() if "picture" not in name},
    "two messages of the user": ("A", "B"),
    "a turn that failed": ("A", said("assistant", "B"), "C", "D", "E"),
    "a call, then the user": (
        "A",
        said("assistant", weather_call()),
        said("tool", weather_return()),
        "B",
        said("assistant", "C"),
        "D",
    ),
    "several answers": (
        "A",
        said("assistant", "B"),
        said("assistant", "C", weather_call()),
        said("tool", weather_return()),
    ),
    "a summary first": (said("summary", "So far."), "A"),
}
REFUSED_TALKS = {
    name: TALKS[name]
    for name in (
        "two messages of the user",
        "a call, then the user",
        "begins with the assistant",
        "a system message in the middle",
    )
}


class Room:
    """One mock server with several models by name; `open` makes a client of one of them."""

    def __init__(self, connections: Connections) -> None:
        self.models = LocalModels()
        self.server = ModelServer(self.models.answer, keeps=False)
        self.learned = LearnedDialects(now=lambda: self.time)
        self.time = 1_000_000.0
        self._connections = connections
        self._numbers = itertools.count()

    def open(
        self, model: LocalModel, *, owner: str = "", window: int = 32_000
    ) -> tuple[OpenAICompatibleModel, Serving]:
        name = f"m{next(self._numbers)}"
        # A text that is also valid if JSON was asked for.
        model = replace(model, text=model.text or '{"text": "I heard you."}')
        return self.again(name, owner=owner, window=window, serving=self.models.add(name, model))

    def again(
        self, name: str, *, serving: Serving, owner: str = "", window: int = 32_000
    ) -> tuple[OpenAICompatibleModel, Serving]:
        info = ModelInfo(f"local/{name}", "local", name, "openai", window, self.server.url)
        learned = lessons_of(info, self.learned, owner)
        return OpenAICompatibleModel(
            info, self._connections, Waits().policy(), learned=learned
        ), serving


@pytest.fixture
async def room(connections: Connections) -> AsyncIterator[Room]:
    opened = Room(connections)
    async with opened.server:
        yield opened


async def requests_of(model: OpenAICompatibleModel, serving: Serving, request: ModelRequest) -> int:
    """Ask the model, and return the number of requests that it took."""
    before = len(serving.bodies)
    reply = await whole_reply(model, request)
    assert any(isinstance(part, TextPart) and "I heard you" in part.text for part in reply.parts)
    return len(serving.bodies) - before


def named(request: ModelRequest, name: str) -> ModelRequest:
    """Return the request as part of a separate conversation."""
    messages = [
        replace(message, id=f"{name} {place}") for place, message in enumerate(request.messages)
    ]
    return replace(request, messages=tuple(messages))


ROLES = [name for name in TEMPLATES if name != "any"]


@pytest.mark.parametrize(
    "share", [pytest.param(8, id="short"), pytest.param(1, id="long", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("template", ROLES)
async def test_messages_are_sent_in_the_roles_that_a_template_accepts(
    room: Room, template: str, share: int
) -> None:
    bodies, statuses = itertools.cycle(BODIES), itertools.cycle((400, 422, 500))
    for place, words in enumerate(TEMPLATE_WORDS):
        status = next(statuses)
        # Each template is tested with its error text, and with some of the other templates' error
        # texts. Every template gets a different choice of them.
        if place and place % share != ROLES.index(template) % share:
            continue
        model, serving = room.open(
            LocalModel(template=template, template_words=words, status=status, body=next(bodies))
        )
        # The long form: all transcripts with the template's error text, and the refused transcripts
        # with all other texts.
        chosen = TALKS if place == 0 else REFUSED_TALKS
        talks = [named(ask(*talk, tools=[WEATHER]), name) for name, talk in chosen.items()]
        for talk in talks:
            await requests_of(model, serving, talk)
        # A form that no error text asked for is remembered when it also helped later calls.
        if words in WORDLESS:
            assert len(serving.bodies) <= 8 * len(talks)
            for talk in talks * 2:
                await requests_of(model, serving, talk)
        else:
            assert len(serving.bodies) - len(talks) <= 9, (words, status, serving.outcomes)
        for talk in talks:
            assert await requests_of(model, serving, talk) == 1, (words, status)


async def test_consecutive_user_messages_are_joined_whole_and_in_order(
    room: Room,
) -> None:
    model, serving = room.open(LocalModel(template="mistral"))
    picture = ImagePart("image/png", url="https://example.org/a.png")
    request = ask(
        "One.", "Two.", said("user", "Three.", picture), said("assistant", "Four."), "Five."
    )
    await requests_of(model, serving, request)
    system, first, answer, last = serving.bodies[-1]["messages"]
    assert (system["role"], answer["content"], last["content"]) == ("system", "Four.", "Five.")
    assert [part.get("text") for part in first["content"]] == ["One.\n\nTwo.", "Three.", None]
    assert first["content"][-1]["type"] == "image_url"


async def test_calls_and_results_are_unchanged_where_the_template_knows_them(
    room: Room,
) -> None:
    model, serving = room.open(LocalModel(template="mistral"))
    await requests_of(model, serving, ask(*TALKS["a call, then the user"], tools=[WEATHER]))
    rows = serving.bodies[-1]["messages"]
    assert [row["role"] for row in rows] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert rows[2]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert serving.bodies[-1]["tools"]


async def test_without_roles_for_tools_calls_and_results_become_text(
    room: Room,
) -> None:
    model, serving = room.open(LocalModel(template="alternation"))
    await requests_of(model, serving, ask(*TALKS["a call, then the user"], tools=[WEATHER]))
    rows = serving.bodies[-1]["messages"]
    assert [row["role"] for row in rows] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert '"get_weather"' in rows[2]["content"]
    assert rows[3]["content"] == "Result of get_weather: sunny\n\nB"


@pytest.mark.parametrize("body", list(FIELD_BODIES))
async def test_a_refused_field_is_left_out_and_the_others_stay(room: Room, body: str) -> None:
    paths = [
        *FIELDS,
        "messages.content.type",
        "tools.function.strict",
        "seed",
        "stream_options.include_usage",
    ]
    for path in paths:
        model, serving = room.open(LocalModel(refused_fields=(path,), field_body=body))
        request = ask(
            "x",
            tools=[WEATHER, CLOCK],
            stream=path.startswith("stream_options"),
            user_id="user-9",
            settings=replace(SETTINGS, extra={"seed": 7}),
        )
        calls = await requests_of(model, serving, request)
        assert calls <= 4, path
        if body == "silent":
            assert await requests_of(model, serving, request) == calls, path
        assert await requests_of(model, serving, request) == 1, path
        if body == "silent":
            continue
        kept = {
            name
            for name in FIELDS
            if name.split("_")[0] != path.split("_")[0] and name != "stream_options"
        }
        assert kept - {"max_tokens"} <= serving.bodies[-1].keys(), path
        assert len(serving.bodies[-1]["tools"]) == 2


async def test_a_refused_output_limit_is_renamed_and_a_refused_schema_becomes_plain_json(
    room: Room,
) -> None:
    model, serving = room.open(LocalModel(refused_fields=("max_tokens",)))
    await requests_of(model, serving, ask("x", settings=SETTINGS))
    assert serving.bodies[-1]["max_completion_tokens"] == 300
    model, serving = room.open(
        LocalModel(refused_fields=("response_format.json_schema",), field_body="text")
    )
    await requests_of(model, serving, ask("x", settings=SETTINGS))
    assert serving.bodies[-1].get("response_format") in ({"type": "json_object"}, None)


async def test_refusing_one_value_of_a_field_does_not_rule_out_others(room: Room) -> None:
    def too_hot(model: LocalModel, body: dict[str, Any]) -> bool:
        return bool(body.get("temperature", 0) > 2)

    model, serving = room.open(
        LocalModel(refuses=too_hot, refusal_words="'temperature' must be between 0 and 2.")
    )
    await requests_of(model, serving, ask("x", settings=ModelSettings(temperature=5)))
    assert "temperature" not in serving.bodies[-1]
    await requests_of(model, serving, ask("x", settings=ModelSettings(temperature=0.7)))
    assert serving.bodies[-1]["temperature"] == 0.7


async def test_a_refused_forced_tool_becomes_the_only_tool_and_a_required_call_a_choice(
    room: Room,
) -> None:
    def is_by_name(model: LocalModel, body: dict[str, Any]) -> bool:
        return isinstance(body.get("tool_choice"), dict)

    model, serving = room.open(
        LocalModel(
            refuses=is_by_name,
            refusal_words="tool_choice: Input should be a valid string",
            text="I heard you.",
        )
    )
    await requests_of(model, serving, ask("x", tools=[WEATHER, CLOCK], forced_tool="get_time"))
    assert serving.bodies[-1]["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in serving.bodies[-1]["tools"]] == ["get_time"]
    words = "tool_choice: expected none or auto"
    model, serving = room.open(
        LocalModel(
            refuses=lambda _m, b: b.get("tool_choice") == "required",
            refusal_words=words,
            text="I heard you.",
        )
    )
    await requests_of(model, serving, ask("x", tools=[WEATHER], tool_choice="required"))
    assert serving.bodies[-1]["tool_choice"] == "auto"


async def test_a_model_without_tools_is_asked_without_them(room: Room) -> None:
    for body in BODIES:
        model, serving = room.open(
            LocalModel(takes_tools=False, template="no tool roles", body=body)
        )
        for talk in TALKS.values():
            await requests_of(model, serving, ask(*talk, tools=[WEATHER]))
        assert "tools" not in serving.bodies[-1]
        assert model.learned.dialect.takes_no_tools


STREAMING = (
    *STREAM_WORDS,
    "Only streaming is supported for this model",
    "stream=true is required",
    "{'stream': 'must be true'}",
    "このモデルはストリーミングのみ対応しています",
    "이 모델은 스트리밍만 지원합니다",
    "Эта модель работает только в потоковом режиме",
    "Bad Request",
    "",
)


async def test_a_model_that_only_streams_also_answers_requests_without_streaming(
    room: Room,
) -> None:
    for words, body in zip(STREAMING, itertools.cycle(BODIES), strict=False):
        model, serving = room.open(LocalModel(only_streams=words, body=body))
        chunks, reply = await collect(model, ask("x"))
        assert chunks == []
        assert reply.parts
        assert reply.usage.prompt_tokens > 0
        if words in WORDLESS:
            await requests_of(model, serving, ask("y"))
        assert await requests_of(model, serving, ask("y")) == 1, words


async def test_a_server_without_streams_also_answers_streaming_requests(room: Room) -> None:
    for words in (
        "Streaming is not supported",
        "stream: unsupported",
        "当前模型不支持流式输出",
        "Bad Request",
    ):
        model, serving = room.open(
            LocalModel(refuses=lambda _m, b: bool(b.get("stream")), refusal_words=words)
        )
        chunks, reply = await collect(model, ask("x", stream=True))
        assert [chunk for chunk in chunks if isinstance(chunk, TextChunk)], words
        assert reply.parts
        assert serving.outcomes["answered"] == 1


@pytest.mark.parametrize("most", [64, 256, 4_096])
async def test_a_too_large_output_limit_is_lowered_once(room: Room, most: int) -> None:
    request = ask("x", settings=ModelSettings(max_output_tokens=16_000))
    # The refusal and the request may have different names for the field.
    for refused, name in (((), "max_tokens"), (("max_tokens",), "max_completion_tokens")):
        model, serving = room.open(LocalModel(most_output=most, refused_fields=refused))
        await requests_of(model, serving, request)
        assert serving.bodies[-1][name] == most
        assert await requests_of(model, serving, request) == 1


async def test_an_output_limit_that_leaves_no_room_for_the_prompt_is_lowered_for_that_call(
    room: Room,
) -> None:
    words = (
        "This endpoint's maximum context length is {limit} tokens. However, you requested about "
        "{total} tokens ({n} of text input, 0 of tool input, {budget} in the output). Please "
        "reduce the length of either one."
    )
    model, serving = room.open(
        LocalModel(window=32_768, budget_counts=True, window_words=words), window=32_768
    )
    await requests_of(model, serving, ask("Hi.", settings=ModelSettings(max_output_tokens=32_768)))
    assert 20_000 < serving.bodies[-1]["max_tokens"] < 32_768


async def test_a_refusal_that_no_change_helps_is_an_error_after_a_few_tries(room: Room) -> None:
    for words, most in (
        ("Bad Request", 4),
        ("Invalid API key", 1),
        ("The model m1 does not exist", 1),
        ("roles!", 8),
    ):
        model, serving = room.open(LocalModel(refuses=lambda _m, _b: True, refusal_words=words))
        with pytest.raises(ModelError, match=words):
            await whole_reply(model, ask(*TALKS["a call, then the user"], tools=[WEATHER]))
        assert len(serving.bodies) <= most, words
        assert not model.learned.dialect.lines()


async def test_a_passing_server_error_does_not_remove_tools_from_later_requests(
    room: Room,
) -> None:
    broken = LocalModel(refuses=lambda _m, _b: True, refusal_words="boom", status=500)
    model, serving = room.open(broken)
    with pytest.raises(ModelError, match="boom"):
        await whole_reply(model, ask("A", "B", tools=[WEATHER]))
    serving.model = LocalModel()
    assert await requests_of(model, serving, ask("A", "B", tools=[WEATHER])) == 1
    assert serving.bodies[-1]["tools"]


async def test_a_passing_failure_teaches_nothing_however_often_it_comes(
    room: Room,
) -> None:
    request = ask("A", "B", tools=[WEATHER])
    for status, words in itertools.product((400, 422, 500), ("boom", "E17", "")):
        passing = LocalModel(refusal_words=words, status=status, text="I heard you.")
        model, serving = room.open(LocalModel())
        for _ in range(4):
            serving.model = replace(passing, refuses=_first(4 if status == 500 else 1))
            await requests_of(model, serving, request)
            # The usual form is sent again, and is accepted.
            assert await requests_of(model, serving, request) == 1
            assert [row["role"] for row in serving.bodies[-1]["messages"]] == [
                "system",
                "user",
                "user",
            ]
        assert not model.learned.dialect.lines(), (status, words)


def _first(times: int) -> Callable[[LocalModel, dict[str, Any]], bool]:
    """Return a rule that refuses this number of requests, and accepts all later ones."""
    left = [True] * times
    return lambda _model, _body: bool(left and left.pop())


async def test_concurrent_calls_during_one_outage_count_as_one_proof(room: Room) -> None:
    model, serving = room.open(LocalModel(template="mistral", template_words="E17"))
    await asyncio.gather(*(whole_reply(model, ask("A", "B")) for _ in range(10)))
    assert not model.learned.dialect.lines()
    # After a guess failed, its successful calls are counted from zero again.
    serving.model = replace(serving.model, template="any")
    await whole_reply(model, ask("A", "B"))
    serving.model = replace(serving.model, template="mistral")
    await whole_reply(model, ask("A", "B"))
    assert not model.learned.dialect.lines()
    await whole_reply(model, ask("A", "B"))
    assert model.learned.dialect.by_turns


async def test_lessons_survive_restarts_and_expire_after_some_days(
    room: Room, tmp_path: Path
) -> None:
    room.learned.keep_in(tmp_path)
    model, serving = room.open(LocalModel(template="mistral", refused_fields=("temperature",)))
    request = ask("A", "B", settings=SETTINGS)
    assert await requests_of(model, serving, request) == 3
    later = LearnedDialects(now=lambda: room.time)
    later.keep_in(tmp_path)
    room.learned = later
    again, _ = room.again(model.info.name, serving=serving)
    assert await requests_of(again, serving, request) == 1
    assert again.learned.dialect == model.learned.dialect
    room.time += LESSON_SECONDS + 1
    assert not again.learned.dialect.lines()
    # A guess is valid for an hour, and with it all other lessons about the model.
    model, serving = room.open(LocalModel(template="mistral", template_words="E1042"))
    for _ in range(2):
        await requests_of(model, serving, request)
    assert model.learned.dialect.by_turns
    model.learned.learn_window(4_000)
    room.time += GUESS_SECONDS + 1
    assert not model.learned.dialect.lines()


def test_servers_with_one_data_folder_keep_each_others_lessons(tmp_path: Path) -> None:
    servers = [LearnedDialects(now=lambda: 0) for _ in range(2)]
    for server in servers:
        server.keep_in(tmp_path)
    for number, server in enumerate(servers):
        server.learn(("", "x", str(number)), LearnedDialect(most_output=number + 100))
    later = LearnedDialects(now=lambda: 0)
    later.keep_in(tmp_path)
    assert [later.get(("", "x", name)).most_output for name in "01"] == [100, 101]
    assert [path.name for path in tmp_path.iterdir()] == ["learned_models.json"]


async def test_a_damaged_file_of_lessons_is_ignored(room: Room, tmp_path: Path) -> None:
    for content in (b"", b"{", b"[1]", b'{"a": 1}', b'[{"key": 1}]', b"\xff"):
        (tmp_path / "learned_models.json").write_bytes(content)
        learned = LearnedDialects()
        learned.keep_in(tmp_path)
        assert not learned.get(("", "x", "y")).lines()


async def test_lessons_of_one_organization_do_not_apply_to_others(room: Room) -> None:
    model, serving = room.open(LocalModel(refused_fields=("temperature",)), owner="org-1")
    await requests_of(model, serving, ask("x", settings=SETTINGS))
    assert model.learned.dialect.lines()
    for owner in ("", "org-2"):
        other, _ = room.again(model.info.name, serving=serving, owner=owner)
        assert not other.learned.dialect.lines()


async def test_the_number_of_lessons_is_bounded() -> None:
    learned = LearnedDialects()
    for number in range(1_100):
        lessons_of(ModelInfo(f"x/{number}", "x", str(number), "openai"), learned).learn_window(
            2_000
        )
    assert len(learned._entries) == 1_000


@pytest.mark.parametrize("seed", range(8))
def test_models_that_count_differently_in_one_conversation_clip_nothing(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - replayed by its seed
    learned = LearnedDialects()
    ratios = {("openai", "http://one", f"m{ratio}"): ratio for ratio in (50, 80, 100, 130)}
    models = random.sample(list(ratios), 4)
    estimate = 3_000
    for prompt in range(20):
        key = models[prompt // 5]  # the conversation's model changes after some prompts
        learned.note_count(key, "conversation-1", estimate, estimate * ratios[key] // 100)
        assert learned.get(key).clipped_at is None
        estimate += random.randrange(estimate // 6, estimate // 4)


def test_a_model_that_clips_is_noticed_beside_another_model() -> None:
    learned = LearnedDialects()
    clips, honest = ("openai", "http://one", "clips"), ("openai", "http://one", "honest")
    for estimate in range(3_000, 20_000, 2_000):
        learned.note_count(clips, "conversation-1", estimate, 2_000)
        learned.note_count(honest, "conversation-1", estimate, estimate)
    assert learned.get(clips).clipped_at == 2_000
    assert learned.get(honest).clipped_at is None


async def test_a_learned_window_is_void_when_the_server_reports_another(room: Room) -> None:
    model, serving = room.open(LocalModel())
    model.learned.learn_window(4_000)
    assert model.learned.window == 4_000
    other, _ = room.again(model.info.name, serving=serving, window=64_000)
    assert other.learned.window is None


# --- providers that are called with their SDKs ---


def claude_error(words: str, status: int = 400) -> Answer:
    return Answer(
        {"type": "error", "error": {"type": "invalid_request_error", "message": words}}, status
    )


def strict_claude(refuses: Callable[[dict[str, Any]], str | None]) -> Callable[[Seen], Answer]:
    """A server of Anthropic's format that answers the requests it does not refuse."""

    def answer(seen: Seen) -> Answer:
        words = refuses(seen.body)
        if words is not None:
            return claude_error(words)
        text = {"type": "text", "text": "I heard you."}
        return claude_stream(text) if seen.body.get("stream") else claude(text)

    return answer


async def test_an_sdk_request_is_adapted_once_after_a_refusal(
    connections: Connections, waits: Waits
) -> None:
    def budget(body: dict[str, Any]) -> str | None:
        most, asked = 4_096, body["max_tokens"]
        return (
            f"max_tokens: {asked} > {most}, which is the maximum allowed number of output tokens"
            if asked > most
            else None
        )

    def field(name: str, words: str) -> Callable[[dict[str, Any]], str | None]:
        return lambda body: words if name in body else None

    rules: dict[str, Callable[[dict[str, Any]], str | None]] = {
        "temperature": field("temperature", "`temperature` is not supported by this model"),
        "metadata": field("metadata", "metadata: Extra inputs are not permitted"),
        "budget": budget,
        "seed": field("seed", "seed: Extra inputs are not permitted"),
        "stream": lambda body: (
            None if body.get("stream") else "This model only supports streaming requests"
        ),
        "no stream": lambda body: (
            "Streaming is not supported for this model" if body.get("stream") else None
        ),
    }
    for name, refuses in rules.items():
        async with ModelServer(strict_claude(refuses)) as server:
            model = claude_at(server, connections, waits)
            settings = ModelSettings(temperature=0.5, max_output_tokens=9_000, extra={"seed": 7})
            request = ask("x", tools=[WEATHER], user_id="u", settings=settings)
            request = replace(request, stream=name == "no stream")
            for requests in (2, 3):
                chunks, reply = await collect(model, request)
                assert reply.parts == (TextPart("I heard you."),), name
                assert bool(chunks) == request.stream, name
                assert len(server.requests) == requests, name
            kept = {"model", "messages", "tools", "max_tokens"} <= server.requests[-1].body.keys()
            assert kept, name


async def test_an_sdk_request_gets_a_lower_output_limit_when_the_prompt_needs_the_room(
    connections: Connections, waits: Waits
) -> None:
    def refuses(body: dict[str, Any]) -> str | None:
        asked = body["max_tokens"] + 100
        words = (
            f"input length and `max_tokens` exceed context limit: 100 + {body['max_tokens']} > "
            "200000, decrease max_tokens"
        )
        return words if asked > 200_000 else None

    async with ModelServer(strict_claude(refuses)) as server:
        model = claude_at(server, connections, waits)
        await collect(
            model, ask("x", settings=ModelSettings(max_output_tokens=200_000), stream=True)
        )
        assert 150_000 < server.requests[-1].body["max_tokens"] < 200_000
        assert len(server.requests) == 2


async def test_an_sdk_error_counts_as_too_long_by_its_words_and_the_requests_size(
    connections: Connections, waits: Waits
) -> None:
    for words in ("El contexto supera el límite (4000 tokens)", "CONTEXT_TOO_LARGE", "输入过长"):
        async with ModelServer(lambda _seen, words=words: claude_error(words)) as server:
            model = claude_at(server, connections, waits)
            with pytest.raises(ModelError) as caught:
                await collect(model, ask("word " * 4_000))
            assert caught.value.kind == "context_window_exceeded", words
            assert caught.value.is_judged
            assert len(server.requests) == 1
