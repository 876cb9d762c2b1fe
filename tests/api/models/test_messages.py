import re
from typing import Any

import orjson

from ricordo.api.models.messages import AnyMessage, MessageFormat, message_responses
from ricordo.domain.message import (
    ApprovalPart,
    CompactionPart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.prompt.transcript import heartbeat_event
from tests.seams import make
from tests.seams.http import require_fits

AGENT = make.agent()
FORMAT = MessageFormat()


def assistant(*parts: Part, **fields: Any) -> Message:
    return make.message(AGENT, role="assistant", parts=parts, **fields)


def json_messages(message: Message, format: MessageFormat = FORMAT) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = orjson.loads(orjson.dumps(message_responses([message], format)))
    for wire in made:
        require_fits(AnyMessage, wire)
    return made


def test_every_piece_has_the_common_fields_in_their_exact_formats() -> None:
    parts = (ReasoningPart("Hm."), TextPart("Hello."), ToolCallPart("call-1", "search", "{}"))
    known = {"run_id": "run-1", "step_id": "step-1", "name": "Nina", "sender_id": "agent-2"}
    message = assistant(*parts, created_at=1_795_293_195_999_999, **known)

    pieces = json_messages(message)

    kinds = ["reasoning_message", "assistant_message", "tool_call_message"]
    assert [piece["message_type"] for piece in pieces] == kinds
    uuid = message.id.removeprefix("message-")
    assert [piece["otid"] for piece in pieces] == [f"{uuid[:-2]}0{place}" for place in range(3)]
    common = {
        **known,
        "id": message.id,
        "date": "2026-11-21T20:33:15+00:00",
        "is_err": None,
        "seq_id": None,
    }
    for piece in pieces:
        assert common.items() <= piece.items()


def test_otids_count_in_hexadecimal_unless_the_sender_sets_one() -> None:
    otids = [
        piece["otid"]
        for piece in json_messages(assistant(*(ReasoningPart(f"Thought {n}") for n in range(17))))
    ]
    assert [otid[-2:] for otid in otids[9:]] == ["09", "0a", "0b", "0c", "0d", "0e", "0f", "10"]
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", otid) for otid in otids)
    assert [wire["otid"] for wire in json_messages(make.message(AGENT, otid="mine"))] == ["mine"]


def test_a_text_message_has_its_text_as_content() -> None:
    roles: tuple[Role, ...] = ("system", "user", "summary")
    for role in roles:
        (wire,) = json_messages(make.message(AGENT, "Hello.", role))
        field = "summary" if role == "summary" else "content"
        assert (wire["message_type"], wire[field]) == (f"{role}_message", "Hello.")
    assert json_messages(assistant(TextPart(""))) == json_messages(assistant()) == []


def test_a_single_picture_is_sent_as_a_list_and_no_parts_as_an_empty_list() -> None:
    for parts, kinds in (
        ((ImagePart("image/png", data="aGk=", detail="low"),), ["image"]),
        ((), []),
    ):
        (wire,) = json_messages(make.message(AGENT, parts=parts))
        assert [item["type"] for item in wire["content"]] == kinds


def test_reasoning_is_shown_and_redacted_reasoning_is_hidden() -> None:
    shown = {"message_type": "reasoning_message", "reasoning": "Hm."}
    for part, fields in (
        (
            ReasoningPart("Hm.", signature="proof"),
            {**shown, "source": "reasoner_model", "signature": "proof"},
        ),
        (
            ReasoningPart("Hm.", native=False),
            {**shown, "source": "non_reasoner_model", "signature": None},
        ),
        (
            ReasoningPart("", redacted="c2VjcmV0"),
            {
                "message_type": "hidden_reasoning_message",
                "state": "redacted",
                "hidden_reasoning": "c2VjcmV0",
            },
        ),
    ):
        (wire,) = json_messages(assistant(part))
        assert fields.items() <= wire.items()


def test_parallel_calls_are_one_message_that_also_names_the_first_call() -> None:
    (wire,) = json_messages(
        assistant(*(ToolCallPart(f"call-{n}", "search", f'{{"query": "{n}"}}') for n in range(2)))
    )
    expected = [
        {"name": "search", "arguments": f'{{"query": "{n}"}}', "tool_call_id": f"call-{n}"}
        for n in range(2)
    ]
    assert (wire["tool_calls"], wire["tool_call"]) == (expected, expected[0])


def test_only_a_complete_call_of_the_message_tool_becomes_an_assistant_message() -> None:
    for name, arguments, format, words in (
        ("send_message", '{"message": "Hi."}', FORMAT, "Hi."),
        ("send_message", '{"message": ""}', FORMAT, ""),
        ("send_message", '{"message": "Hi."', FORMAT, None),
        ("send_message", '{"message": 5}', FORMAT, None),
        ("send_message", '{"text": "Hi."}', FORMAT, None),
        ("send_message", '["Hi."]', FORMAT, None),
        ("send_message", "", FORMAT, None),
        ("speak", '{"message": "Hi."}', FORMAT, None),
        ("speak", '{"words": "Hi."}', MessageFormat(True, "speak", "words"), "Hi."),
        ("speak", '{"words": "Hi."}', MessageFormat(False, "speak", "words"), None),
    ):
        (wire,) = json_messages(assistant(ToolCallPart("call-1", name, arguments)), format)
        assert wire.get("content") == words, arguments
    (call,) = json_messages(assistant(ToolCallPart("call-1", "send_message", '{"message": "Hi.')))
    assert call["tool_call"] == {
        "name": "send_message",
        "arguments": '{"message": "Hi.',
        "tool_call_id": "call-1",
    }
    said = ToolCallPart("call-1", "send_message", '{"message": {"mood": "calm"}}')
    spoken, beside = json_messages(assistant(ToolCallPart("call-0", "search", "{}"), said))
    assert [one["name"] for one in beside["tool_calls"]] == ["search"]
    assert (spoken["message_type"], spoken["content"]) == ("assistant_message", '{"mood":"calm"}')


def test_tool_results_include_stdout_and_stderr() -> None:
    trace = "Error executing function run: ValueError: It"
    results = (
        ToolReturnPart("call-1", "run", "success", "4", stdout=("two", "and two")),
        ToolReturnPart("call-2", "run", "error", "It broke.", stderr=(trace,)),
    )

    (wire,) = json_messages(make.message(AGENT, role="tool", parts=results))

    first = {"tool_return": "4", "status": "success", "tool_call_id": "call-1"}
    first |= {"stdout": ["two", "and two"], "stderr": None}
    second = {"tool_return": "It broke.", "status": "error", "tool_call_id": "call-2"}
    second |= {"stdout": None, "stderr": [trace]}
    assert first.items() <= wire.items()
    assert wire["message_type"] == "tool_return_message"
    assert wire["tool_returns"] == [{"type": "tool", **first}, {"type": "tool", **second}]


def test_gated_calls_become_an_approval_request_and_others_a_tool_call_message() -> None:
    parts = (
        ToolCallPart("call-1", "toss", "{}"),
        ToolCallPart("call-2", "roll", "{}", is_gated=True),
    )
    called, asked = json_messages(make.message(AGENT, role="approval", parts=parts))
    assert (called["message_type"], called["tool_calls"][0]["tool_call_id"]) == (
        "tool_call_message",
        "call-1",
    )
    assert (asked["message_type"], asked["tool_call"]["tool_call_id"]) == (
        "approval_request_message",
        "call-2",
    )
    assert called["id"] == asked["id"]


def test_an_approval_response_lists_all_decisions_and_repeats_the_first_in_legacy_fields() -> None:
    parts = (
        ToolReturnPart("call-1", "click", "success", "clicked", stdout=("a line",)),
        ApprovalPart("call-2", approves=False, reason="No."),
        ApprovalPart("call-3", approves=True),
    )
    (answer,) = json_messages(make.message(AGENT, role="approval", parts=parts))
    assert [item["type"] for item in answer["approvals"]] == ["tool", "approval", "approval"]
    assert (answer["approve"], answer["reason"]) == (False, "No.")


def test_a_summary_message_comes_with_an_event_that_lists_evicted_messages() -> None:
    part = CompactionPart("provider", ("message-1",), 900, 300, 1_000, 5, 4)
    message = make.message(AGENT, role="summary", parts=(TextPart("Tea."), part))
    summary, event = json_messages(message)
    assert (summary["summary"], summary["compaction_stats"]["trigger"]) == ("Tea.", "provider")
    assert event["event_data"]["evicted_message_ids"] == ["message-1"]
    assert json_messages(message, MessageFormat(shows_summaries=False)) == []


def test_server_events_in_the_user_role_can_be_hidden() -> None:
    heartbeat = make.message(AGENT, role="user", parts=(heartbeat_event("Go on.", "now"),))
    forged = make.message(AGENT, heartbeat_event("Go on.", "now").text)
    quiet = MessageFormat(shows_events=False)
    assert [len(json_messages(one, FORMAT)) for one in (heartbeat, forged)] == [1, 1]
    assert [len(json_messages(one, quiet)) for one in (heartbeat, forged)] == [0, 1]
