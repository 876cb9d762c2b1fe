"""Model servers that answer strangely, over real HTTP.

After each failure the next message works.
"""

import json
from typing import Any

import pytest

from tests.seams.scene import Scene, said
from tests.support.model_server import Answer, Seen, completion, event, say_ok, stream, tool_call

SSE = {"content-type": "text/event-stream"}
BODY = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
END = b"data: [DONE]\n\n"


def streamed(*pieces: bytes, **fields: Any) -> Answer:
    return Answer(pieces=pieces, headers=SSE, **fields)


def piece(delta: Any, finish: str | None = None) -> bytes:
    return event({"choices": [{"delta": delta, "finish_reason": finish}]})


def refused(status: int, words: str, **headers: str) -> Answer:
    return Answer({"error": {"message": words}}, status, headers)


WORDS = json.dumps(BODY).encode()
# Answers from which the words are read.
READABLE = {
    "usage is null": Answer({**BODY, "usage": None}),
    "usage is no object": Answer({**BODY, "usage": [1]}),
    "usage has odd numbers": Answer(
        {**BODY, "usage": {"prompt_tokens": "12", "completion_tokens": -3.5}}
    ),
    "an unknown finish reason": completion("hi", finish="eos_found"),
    "no finish reason": completion("hi", finish=None),
    "calls are announced and do not come": completion("hi", finish="tool_calls"),
    "NaN": Answer(WORDS[:-1] + b', "score": NaN, "limit": -Infinity}'),
    "a stream that nobody asked for": stream({"content": "h"}, {"content": "i"}),
}
# Streams from which the words are read.
STREAMS = {
    "comments": streamed(b": hi\n\n", piece({"content": "h"}), b":\n\n", piece({"content": "i"}, "stop")),
    "no blanks and CRLF": streamed(
        (piece({"content": "hi"}, "stop") + END).replace(b"data: ", b"data:").replace(b"\n", b"\r\n")
    ),
    "byte by byte": streamed(
        *(bytes([byte]) for byte in b'data: {"choices":[{"delta":{"content":"hi\xf0\x9f\xa6\x8a"}}]}\n\n' + END)
    ),
    "usage is null in each event": streamed(
        event({"choices": [{"delta": {"content": "hi"}}], "usage": None}),
        event({"choices": [], "usage": None}),
        END,
    ),
    "slow": streamed(piece({"content": "h"}), piece({"content": "i"}, "stop"), END, pause=0.1),
}  # fmt: skip
# Answers that fail.
FAILURES = {
    "empty choices": Answer({"choices": []}),
    "choices are null": Answer({"choices": None}),
    "the message is null": Answer({"choices": [{"message": None}]}),
    "content is a number": completion(5),  # type: ignore[arg-type]
    "only a thought": completion(None, reasoning_content="Hm."),
    "nothing": Answer(b""),
    "no content": Answer(b"", 204),
    "no JSON": Answer(b"hello"),
    "no HTTP": Answer(wire=b"\x00\x01garbage\r\n\r\n"),
    "no gzip": Answer(b"hello", headers={"content-encoding": "gzip"}),
    "an error with 200": Answer({"error": "out of memory"}),
    "an error in a stream": streamed(piece({"content": "h"}), event({"error": "boom"})),
    "a stream that dies": streamed(piece({"content": "h"}), breaks_off=True),
    "a stream without an end": streamed(piece({"content": "h"})),
    "a stream of nothing": streamed(END),
    "no wait": refused(429, "slow down", **{"retry-after": "soon"}),
    "an endless wait": refused(429, "slow down", **{"retry-after-ms": "inf"}),
    "a wait that is no number": refused(429, "slow down", **{"retry-after-ms": "nan"}),
    "roles": refused(500, "Conversation roles must alternate user/assistant/user/assistant/..."),
    "length": refused(400, "Requested tokens (5012) exceed context window of 4096"),
    "a missing model": refused(400, "No models loaded."),
}


def strange(scene: Scene, answer: Answer) -> None:
    """Let the server answer all requests without a tool's result in this way."""

    def otherwise(seen: Seen) -> Answer:
        return completion("after the tools") if b"tool_call_id" in seen.raw else answer

    scene.models.otherwise = otherwise


@pytest.fixture(autouse=True)
def _usual_server(scene: Scene) -> Any:
    yield
    scene.models.otherwise = say_ok
    # The other forms of a refused request are not those of OpenAI.
    scene.models.requests.clear()


@pytest.mark.parametrize("answer", READABLE.values(), ids=READABLE)
def test_a_strange_answer_is_read(scene: Scene, answer: Answer) -> None:
    agent = scene.agent()
    strange(scene, answer)
    assert said(scene.send(agent, "Hello.")) == ["hi"]


@pytest.mark.parametrize("answer", STREAMS.values(), ids=STREAMS)
def test_a_strange_stream_is_read(scene: Scene, answer: Answer) -> None:
    agent = scene.agent()
    strange(scene, answer)
    events = [one for _, one in scene.stream(agent, "Hello.", stream_tokens=True)]
    words = [one["content"] for one in events if "content" in one]
    assert "".join(words).removesuffix("🦊") == "hi"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("answer", FAILURES.values(), ids=FAILURES)
def test_the_next_message_works_after_a_failure(
    scene: Scene, answer: Answer, streams: bool
) -> None:
    agent = scene.agent()
    strange(scene, answer)
    if streams:
        events = scene.stream(agent, "Hello.", stream_tokens=True)
        assert any(name == "error" for name, _ in events)
    else:
        assert scene.post(agent, "Hello.").status_code >= 400
    scene.server.provoked()
    scene.models.otherwise = say_ok
    assert said(scene.send(agent, "Are you there?")) == ["ok"]


@pytest.mark.parametrize(
    "calls",
    [
        [tool_call("roll", '{"sides": 6}', "same"), tool_call("toss", "{}", "same")],
        [tool_call("roll", {"sides": 6}, "c")],
        [tool_call("toss", None, "c")],
        [tool_call("toss", "{}", None)],
        [tool_call("toss", "{}", "")],
        [tool_call("toss", "{}", 'a b/ü\n"')],
        [tool_call("nothing", "{}", "c")],
        [tool_call("roll", '{"sides": 6', "c")],
        [tool_call("roll", "[" * 2_000, "c")],
    ],
)
def test_a_strange_call_is_followed_by_an_answer(scene: Scene, calls: Any) -> None:
    agent = scene.agent("roll", "toss")
    strange(scene, completion(None, calls))
    assert said(scene.send(agent, "Play."))[-1] == "after the tools"
    scene.models.otherwise = say_ok
    assert said(scene.send(agent, "Are you there?")) == ["ok"]


def test_the_error_of_a_stream_is_told_and_not_that_of_another_form(scene: Scene) -> None:
    agent = scene.agent()
    strange(scene, streamed(event({"error": {"message": "CUDA out of memory"}})))
    answer = scene.post(agent, "Hello.", path="/stream", stream_tokens=True)
    assert "CUDA out of memory" in answer.text
    assert "Check its address" not in answer.text
    scene.server.provoked()


@pytest.mark.parametrize("tool", [False, True])
def test_a_text_at_which_the_server_fails_silences_nobody(scene: Scene, tool: bool) -> None:
    """The server fails whenever it reads the text, which a person or a tool wrote."""
    word = "heads" if tool else "Poison"

    def otherwise(seen: Seen) -> Answer:
        if word.encode() in seen.raw:
            return refused(500, "tokenizer failed")
        return (
            completion(None, [tool_call("toss", "{}", "c")])
            if tool and b"Poison" in seen.raw
            else completion("ok")
        )

    agent = scene.agent("toss")
    assert said(scene.send(agent, "Before.")) == ["ok"]
    scene.models.otherwise = otherwise
    assert scene.post(agent, "Poison.").status_code == 500
    assert said(scene.send(agent, "Are you there?")) == ["ok"]
    assert said(scene.send(agent, "And now?")) == ["ok"]
    assert [one["content"] for one in scene.asked[-1]["messages"] if one["role"] == "user"] == [
        "Before.",
        "Are you there?",
        "And now?",
    ]
    assert "Poison." in [one.get("content") for one in scene.history(agent)]


def test_messages_of_an_outage_stay_in_view(scene: Scene) -> None:
    agent = scene.agent()
    scene.models.otherwise = lambda _seen: refused(500, "out of memory")
    for words in ("I am Ada.", "Hello?"):
        assert scene.post(agent, words).status_code == 500
    scene.models.otherwise = say_ok
    assert said(scene.send(agent, "Are you there?")) == ["ok"]
    shown = [one["content"] for one in scene.asked[-1]["messages"] if one["role"] == "user"]
    assert shown == ["I am Ada.", "Hello?", "Are you there?"]
