"""Answers in a JSON schema, and required calls.

They are requested with OpenAI's and Pydantic's clients, and as LangChain, the AI SDK and Instructor
do. The models are scripted servers: one follows the schema, one puts text around it, and one does
not support schemas.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import openai.resources
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from ricordo.errors import Invalid
from ricordo.features.openai.models import ChatRequest
from tests.features.openai.conftest import openai_client, user
from tests.seams.http import ok, refused
from tests.seams.scene import CLAUDE, OPENAI, Scene, Wire, calls, open_scene
from tests.support.model_server import Answer, claude, completion


class Meeting(BaseModel):
    """When people meet."""

    day: Literal["Monday", "Tuesday"]
    people: list[str]


FITS = {"day": "Monday", "people": ["Ada", "Bea"]}
TEXT = json.dumps(FITS)
SCHEMA = Meeting.model_json_schema()
STRICT = {
    "type": "json_schema",
    "json_schema": {"name": "Meeting", "schema": SCHEMA, "strict": True},
}
TOOL: Wire = {
    "type": "function",
    "function": {"name": "Meeting", "description": "When.", "parameters": SCHEMA},
}
QUESTION: Any = [user("When do Ada and Bea meet?")]
# How models write JSON when they add other text.
AROUND = [
    TEXT,
    f"```json\n{TEXT}\n```",
    f"```\n{TEXT}\n```",
    f"Here it is:\n\n```json\n{json.dumps(FITS, indent=2)}\n```\nAnything else?",
    f"Sure! {TEXT}",
    f"{TEXT}\n\nThat is when they meet.",
    f"{{not json}} but {TEXT}",
    f"[1, 2] is no meeting, and {TEXT} is",
    f"\n\n  {TEXT}  \n",
    f"The schema: {{}}. The answer: {TEXT}.",
]
# Answers that do not fit, and a word of the error that the model gets.
WRONG = [
    ("They meet on Monday.", "not JSON"),
    ('{"day": "Sunday", "people": []}', "Sunday"),
    ('{"day": "Monday"}', "people"),
    ('{"day": "Monday", "people": "Ada"}', "at people"),
    ('{"day": "Monday", "people": [1]}', "at people/0"),
    ("[]", "object"),
    ("null", "object"),
    ('"Monday"', "object"),
    ('{"day": "Monday", "people": ["Ada"', "not JSON"),
    ("```json\n```", "not JSON"),
]


@pytest.fixture(scope="module")
def running_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with open_scene(tmp_path_factory.mktemp("structured"), model_retries=0) as opened:
        yield opened


@pytest.fixture
def scene(running_scene: Scene) -> Iterator[Scene]:
    running_scene.models.requests.clear()
    running_scene.models._answers.clear()
    yield running_scene
    assert not running_scene.models._answers, "some scripted replies were not requested"


@pytest.fixture
def client(scene: Scene) -> Iterator[OpenAI]:
    with openai_client(scene.server, "any") as opened:
        yield opened


def agent_of(scene: Scene, model: str = OPENAI, **body: Any) -> str:
    return str(ok(scene.http.post("/v1/agents/", json={"model": model, **body}))["id"])


def said_by(model: str, text: str) -> Answer:
    return claude({"type": "text", "text": text}) if model == CLAUDE else completion(text)


def with_text_around(model: str) -> list[str]:
    """Return answers with text around them; all models use the same code to find the JSON."""
    return AROUND if model == OPENAI else AROUND[::4]


def called_by(model: str, arguments: Wire, text: str = "") -> Answer:
    if model == OPENAI:
        return calls(("Meeting", arguments), text=text or None)
    block = {"type": "tool_use", "id": "call_1", "name": "Meeting", "input": arguments}
    return claude(*([{"type": "text", "text": text}] if text else []), block, stop="tool_use")


# OpenAI's own client.


@pytest.mark.parametrize("model", [OPENAI, CLAUDE])
def test_the_openai_client_parses_structured_chats_and_responses(
    scene: Scene, client: OpenAI, model: str
) -> None:
    agent = agent_of(scene, model)
    for text in with_text_around(model):
        scene.says(said_by(model, text))
        chat = client.chat.completions.parse(
            model=agent, messages=QUESTION, response_format=Meeting
        )
        assert chat.choices[0].message.parsed == Meeting(**FITS), text
        scene.says(said_by(model, text))
        response = client.responses.parse(model=agent, input=QUESTION, text_format=Meeting)
        assert response.output_parsed == Meeting(**FITS), text
    scene.says(called_by(model, FITS))
    tools: Any = [{**TOOL, "function": {**TOOL["function"], "strict": True}}]
    tools[0]["function"]["parameters"] = {**SCHEMA, "additionalProperties": False}
    made = client.chat.completions.parse(
        model=agent, messages=QUESTION, tools=tools, tool_choice="required"
    )
    (call,) = made.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments) == FITS


@pytest.mark.parametrize("model", [OPENAI, CLAUDE])
def test_an_answer_that_does_not_fit_is_retried_once_with_the_error(
    scene: Scene, client: OpenAI, model: str
) -> None:
    agent = agent_of(scene, model)
    for text, told in WRONG:
        before = len(scene.asked)
        scene.says(said_by(model, text), said_by(model, TEXT))
        chat = client.chat.completions.parse(
            model=agent, messages=QUESTION, response_format=Meeting
        )
        assert chat.choices[0].message.parsed == Meeting(**FITS), text
        assert len(scene.asked) - before == 2
        assert told in json.dumps(scene.asked[-1]["messages"][-1], ensure_ascii=False), text
    # The wrong answer is not stored, and the second answer is returned unchanged.
    scene.says(said_by(model, "No."), said_by(model, "Never."))
    answer = client.chat.completions.create(model=agent, messages=QUESTION, response_format=STRICT)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "Never."
    stored = json.dumps(ok(scene.http.get("/v1/messages/", params={"limit": 1000})))
    assert '"No."' not in stored


@pytest.mark.parametrize("model", [OPENAI, CLAUDE])
def test_json_object_answers_are_parsed_and_text_answers_unchanged(
    scene: Scene, client: OpenAI, model: str
) -> None:
    agent = agent_of(scene, model)
    for text in ('{"anything": 1}', '```json\n{"anything": 1}\n```', 'It is {"anything": 1}'):
        scene.says(said_by(model, text))
        answer = client.chat.completions.create(
            model=agent, messages=QUESTION, response_format={"type": "json_object"}
        )
        assert json.loads(answer.choices[0].message.content or "") == {"anything": 1}
    for free in ({"type": "text"}, None):
        scene.says(said_by(model, f"It is {TEXT}"))
        body: Any = {"response_format": free} if free else {}
        answer = client.chat.completions.create(model=agent, messages=QUESTION, **body)
        assert answer.choices[0].message.content == f"It is {TEXT}"
    assert "JSON" not in str(scene.asked[-1].get("system") or scene.asked[-1]["messages"][0])


def test_a_structured_stream_contains_only_the_json(scene: Scene, client: OpenAI) -> None:
    agent = agent_of(scene)
    for first in (None, "Let me think."):
        scene.says(*([completion(first)] if first else []), completion(f"Here: {TEXT}"))
        with client.chat.completions.stream(
            model=agent, messages=QUESTION, response_format=Meeting
        ) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == Meeting(**FITS)
        scene.says(*([completion(first)] if first else []), completion(f"Here: {TEXT}"))
        with client.responses.stream(model=agent, input=QUESTION, text_format=Meeting) as answering:
            assert answering.get_final_response().output_parsed == Meeting(**FITS)
    scene.says(called_by(OPENAI, FITS, "I call it."))
    tools: Any = [{**TOOL, "function": {**TOOL["function"], "strict": True}}]
    tools[0]["function"]["parameters"] = {**SCHEMA, "additionalProperties": False}
    with client.chat.completions.stream(
        model=agent, messages=QUESTION, tools=tools, tool_choice="required"
    ) as calling:
        (call,) = calling.get_final_completion().choices[0].message.tool_calls or ()
        assert json.loads(call.function.arguments) == FITS


# Required calls.


@pytest.mark.parametrize("model", [OPENAI, CLAUDE])
def test_a_forced_client_tool_is_called(scene: Scene, client: OpenAI, model: str) -> None:
    agent = agent_of(scene, model, tools=["toss"])
    other = {
        "type": "function",
        "function": {"name": "other", "parameters": {"type": "object", "properties": {}}},
    }
    named = {"type": "function", "function": {"name": "Meeting"}}
    allowed = {"mode": "required", "tools": [named]}
    for choice in (named, {"type": "allowed_tools", "allowed_tools": allowed}):
        scene.says(called_by(model, FITS))
        made = client.chat.completions.create(
            model=agent, messages=QUESTION, tools=[TOOL, other], tool_choice=choice
        )  # type: ignore[call-overload]
        (call,) = made.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("Meeting", FITS)
        assert (made.choices[0].finish_reason, made.choices[0].message.content) == (
            "tool_calls",
            None,
        )
        offered = [one.get("name") or one["function"]["name"] for one in scene.asked[-1]["tools"]]
        assert offered == ["Meeting"]
        forced = json.dumps(scene.asked[-1]["tool_choice"])
        assert any(word in forced for word in ("Meeting", "required", "any"))
    # If the model writes a text instead of the call, it is asked again for the call. A text that is
    # the call's arguments counts as the call.
    scene.says(said_by(model, "On Monday."), called_by(model, FITS))
    made = client.chat.completions.create(
        model=agent, messages=QUESTION, tools=[TOOL], tool_choice=named
    )  # type: ignore[call-overload]
    assert made.choices[0].finish_reason == "tool_calls"
    for text in with_text_around(model):
        scene.says(said_by(model, text))
        made = client.chat.completions.create(
            model=agent, messages=QUESTION, tools=[TOOL], tool_choice=named
        )  # type: ignore[call-overload]
        (call,) = made.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == FITS, text
    tool: Any = {"type": "function", "name": "Meeting", "parameters": SCHEMA, "strict": False}
    scene.says(called_by(model, FITS))
    response = client.responses.create(
        model=agent,
        input=QUESTION,
        tools=[tool],
        tool_choice={"type": "function", "name": "Meeting"},
    )
    assert [item.type for item in response.output] == ["function_call"]


def test_a_required_client_call_may_follow_the_agents_own_calls(
    scene: Scene, client: OpenAI
) -> None:
    agent = agent_of(scene, tools=["toss"])
    second = {
        "type": "function",
        "function": {"name": "other", "parameters": {"type": "object", "properties": {}}},
    }
    scene.says(calls(("toss", {})), called_by(OPENAI, FITS))
    made = client.chat.completions.create(
        model=agent,
        messages=QUESTION,
        tools=[TOOL, second],
        tool_choice="required",  # type: ignore[list-item]
    )
    assert made.choices[0].finish_reason == "tool_calls"
    assert [body["tool_choice"] for body in scene.asked[-2:]] == ["required", "required"]
    scene.says(*[calls(("toss", {}))] * 5, called_by(OPENAI, FITS))
    client.chat.completions.create(
        model=agent, messages=QUESTION, tools=[TOOL, second], tool_choice="required"
    )  # type: ignore[list-item]
    assert {one["function"]["name"] for one in scene.asked[-1]["tools"]} == {"Meeting", "other"}


def test_invalid_response_formats_and_tool_choices_are_refused(
    scene: Scene, client: OpenAI
) -> None:
    agent = agent_of(scene)
    wrong: list[Wire] = [
        {"response_format": {"type": "yaml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"} | {"schema": {}}}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        {"tools": [TOOL], "tool_choice": {"type": "custom"}},
        {"tools": [TOOL], "tool_choice": "sometimes"},
    ]
    for body in wrong:
        with pytest.raises(BadRequestError) as told:
            client.chat.completions.create(model=agent, messages=QUESTION, **body)
        assert told.value.body is not None
    assert scene.asked == []


def test_a_send_message_agent_gives_structured_answers_too(scene: Scene, client: OpenAI) -> None:
    agent = agent_of(scene, agent_type="memgpt_v2_agent")
    scene.says(
        calls(("send_message", {"message": FITS, "thinking": "Hm.", "request_heartbeat": False}))
    )
    chat = client.chat.completions.parse(model=agent, messages=QUESTION, response_format=Meeting)
    assert chat.choices[0].message.parsed == Meeting(**FITS)


# Other clients.


@pytest.mark.parametrize("kind", [NativeOutput, PromptedOutput, ToolOutput])
async def test_pydantic_ai_agents_get_their_output(scene: Scene, kind: Any) -> None:
    for model in (OPENAI, CLAUDE):
        agent = agent_of(scene, model)
        if kind is ToolOutput:
            block = {"type": "tool_use", "id": "call_1", "name": "final_result", "input": FITS}
            scene.says(
                calls(("final_result", FITS)) if model == OPENAI else claude(block, stop="tool_use")
            )
        else:
            scene.says(said_by(model, f"Here it is: {TEXT}" if kind is NativeOutput else TEXT))
        async with AsyncOpenAI(
            base_url=f"{scene.server.url}/v1", api_key="any", max_retries=0
        ) as client:
            answering = OpenAIChatModel(agent, provider=OpenAIProvider(openai_client=client))
            answer = await Agent(answering, output_type=kind(Meeting)).run("When do they meet?")
        assert answer.output == Meeting(**FITS)


# By client: the field in which the client reads the answer, and its request. The requests have the
# forms that langchain-openai, the AI SDK and Instructor send.
REPLAYED: dict[str, tuple[str, Wire]] = {
    "LangChain with_structured_output(method='json_schema')": (
        "content",
        {
            "messages": [{"role": "user", "content": "When?"}],
            "response_format": STRICT,
            "stream": False,
        },
    ),
    "LangChain with_structured_output(method='function_calling')": (
        "call",
        {
            "messages": [{"role": "user", "content": "When?"}],
            "tools": [TOOL],
            "parallel_tool_calls": False,
            "tool_choice": {"type": "function", "function": {"name": "Meeting"}},
        },
    ),
    "LangChain with_structured_output(method='json_mode')": (
        "content",
        {
            "messages": [{"role": "user", "content": "JSON, please."}],
            "response_format": {"type": "json_object"},
        },
    ),
    "AI SDK generateObject": (
        "content",
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "When?"},
            ],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": SCHEMA, "strict": True, "name": "response"},
            },
        },
    ),
    "AI SDK generateObject, output no-schema": (
        "content",
        {
            "messages": [{"role": "user", "content": "When?"}],
            "response_format": {"type": "json_object"},
        },
    ),
    "Instructor, tools": (
        "call",
        {
            "messages": [{"role": "user", "content": "When?"}],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "Meeting"}},
        },
    ),
    "Instructor, JSON": (
        "content",
        {
            "messages": [
                {"role": "system", "content": "As JSON."},
                {"role": "user", "content": "When?"},
            ],
            "response_format": {"type": "json_object"},
        },
    ),
}


@pytest.mark.parametrize("name", REPLAYED)
def test_requests_of_other_clients_get_structured_answers(scene: Scene, name: str) -> None:
    place, body = REPLAYED[name]
    for model in (OPENAI, CLAUDE):
        agent = agent_of(scene, model)
        scene.says(
            called_by(model, FITS) if place == "call" else said_by(model, f"Here it is: {TEXT}")
        )
        answer = ok(scene.http.post("/v1/chat/completions", json={"model": agent, **body}))
        message = answer["choices"][0]["message"]
        found = (
            message["tool_calls"][0]["function"]["arguments"]
            if place == "call"
            else message["content"]
        )
        assert json.loads(found) == FITS
        assert answer["choices"][0]["finish_reason"] == (
            "tool_calls" if place == "call" else "stop"
        )


# Errors and embeddings.


def paths_of_openais_client() -> set[str]:
    """Return the paths below `/v1` that the installed client of OpenAI can request."""
    call = re.compile(
        r'self\._(?:get|post|put|patch|delete|get_api_list)\(\s*(?:\w+\()?f?"(/[^"]+)"'
    )
    sources = Path(openai.resources.__path__[0]).rglob("*.py")
    paths = {path for source in sources for path in call.findall(source.read_text("utf-8"))}
    return {f"/v1{re.sub(r'{[^}]*}', 'x', path.partition('?')[0])}" for path in paths}


def test_each_path_of_openais_client_has_its_errors_or_is_one_of_lettas(scene: Scene) -> None:
    paths = paths_of_openais_client()
    assert len(paths) > 60
    without: set[str] = set()
    for path in sorted(paths):
        answer = scene.http.get(path, headers={"authorization": "Bearer wrong"})
        if answer.status_code >= 400 and "error" not in answer.json():
            without.add(path.split("/")[2])
    # Letta has paths that begin with these names too.
    assert without <= {"agents", "conversations", "skills"}


def test_every_error_on_openai_paths_has_openais_format(scene: Scene) -> None:
    agent, long = agent_of(scene), "x" * 100
    cases: list[tuple[str, str, Any, int]] = [
        ("POST", "/v1/chat/completions", {"model": "nobody", "messages": QUESTION}, 404),
        ("POST", "/v1/chat/completions", {"model": agent}, 400),
        ("POST", "/v1/chat/completions", {"model": agent, "messages": [], "stream": "maybe"}, 400),
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400),
        ("GET", "/v1/chat/completions", None, 405),
        ("POST", "/v1/chat/completion", {}, 404),
        ("POST", "/v1/chat/completions/chatcmpl-1", {}, 404),
        ("GET", "/v1/chat", None, 404),
        ("POST", "/v1/completions", {"prompt": "x"}, 404),
        ("DELETE", "/v1/responses/resp_1", None, 404),
        ("GET", "/v1/responses", None, 405),
        (
            "POST",
            "/v1/responses",
            {"model": agent, "input": "x", "previous_response_id": "resp_x"},
            404,
        ),
        ("PUT", "/v1/embeddings", {}, 405),
        ("POST", "/v1/embeddings", {"input": {"x": 1}}, 400),
        ("POST", "/v1/embeddings", {"input": "x", "model": "nobody/nothing"}, 404),
        ("POST", "/v1/images/generations", {}, 404),
        ("POST", "/v1/audio/speech", {}, 404),
        ("POST", "/v1/moderations", {"input": long}, 404),
        ("GET", "/v1/models/nobody", None, 404),
        ("DELETE", f"/v1/models/{agent}", None, 405),
        ("GET", "/latest/chat", None, 404),
    ]
    for method, path, body, status in cases:
        sent: Any = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = scene.http.request(
            method, path, **sent, headers={"content-type": "application/json"}
        )
        where = (method, path, answer.text[:300])
        assert answer.status_code == status, where
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, where
        assert error["message"], where
        assert error["type"].endswith("_error"), where
    for path in ("/v1/agents/x/y", "/v1/blocks/x/y", "/users/x/y/z"):
        assert "error" not in scene.http.get(path).json()
    too_long = scene.http.post("/v1/chat/completions", content=b" " * (40 * 1024 * 1024))
    assert (too_long.status_code, "error" in too_long.json()) == (413, True)
    refused(scene.http.get("/v1/agents/nobody"), 422)


def test_token_ids_are_embedded_as_text_and_vectors_can_be_shortened(
    scene: Scene,
) -> None:
    server = scene.server
    handle = next(
        one["handle"]
        for one in ok(scene.http.get("/v1/models/embedding"))
        if "embedder" in one["handle"]
    )

    def vectors(sent: Any, **more: Any) -> list[list[float]]:
        answer = ok(
            scene.http.post("/v1/embeddings", json={"model": handle, "input": sent, **more})
        )
        return [one["embedding"] for one in answer["data"]]

    texts = {
        "Hello world": [9906, 1917],
        "hello world!": [15339, 1917, 0],
        "Grüße": [6600, 2448, 24352],
    }
    for text, tokens in texts.items():
        assert vectors(tokens) == vectors([tokens]) == vectors(text), text
    assert vectors(list(texts.values())) == vectors([*texts])
    assert server.embedder.asked[-1] == [*texts]
    assert vectors([[9906, 100257]]) == vectors("Hello")
    for dimensions in (1, 8, 64):
        (short,) = vectors("Hello world", dimensions=dimensions)
        assert len(short) == dimensions
        assert sum(number * number for number in short) == pytest.approx(1.0 if any(short) else 0.0)
    for body in (
        {"input": [100_300]},
        {"input": [-1]},
        {"input": "x", "dimensions": 65},
        {"input": "x", "dimensions": 0},
    ):
        assert scene.http.post("/v1/embeddings", json={"model": handle, **body}).status_code == 400


ANY_SHAPE = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, "weather", "required", "function", ""]),
    lambda member: (
        st.lists(member, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "allowed_tools", "tools", "mode", "function", "name"]), member
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["tools", "mode", "function", "name"]), ANY_SHAPE)
    | st.builds(lambda one: {"type": "allowed_tools", "allowed_tools": one}, ANY_SHAPE)
    | st.text(max_size=9)
)
def test_a_tool_choice_of_any_shape_names_offered_tools_or_is_refused(choice: Any) -> None:
    request = ChatRequest.model_validate(
        {
            "model": "Nina",
            "messages": QUESTION,
            "tools": [{"type": "function", "function": {"name": "weather"}}],
            "tool_choice": choice,
        }
    )
    named: frozenset[str] = frozenset()
    with suppress(Invalid):
        named = request.wanted_tools()
    assert named <= {"weather"}
