"""The transcript as a model gets it: whatever the history, every call has exactly one result, right after it."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.message import ApprovalPart, CompactionPart, Message, TextPart, ToolCallPart, ToolReturnPart
from ricordo.prompt.transcript import INTERRUPTED, paired, transcript
from tests.seams import make
from tests.seams.stores import START

AGENT = make.agent()
NOON = START + 12 * 3600 * 1_000_000
ids = st.sampled_from(["a", "b", "c"])


def asks(*call_ids: str) -> Message:
    return make.message(AGENT, role="assistant", parts=tuple(ToolCallPart(id, "roll_dice", "{}") for id in call_ids))


def answers(*call_ids: str) -> Message:
    parts = tuple(ToolReturnPart(id, "roll_dice", "success", "six") for id in call_ids)
    return make.message(AGENT, role="tool", parts=parts)


def results(messages: list[Message]) -> list[tuple[str, list[str]]]:
    return [(message.role, [part.call_id for part in message.tool_returns]) for message in messages]


histories = st.lists(
    st.one_of(
        st.builds(lambda call_ids: asks(*call_ids), st.lists(ids, unique=True)),
        st.builds(lambda call_ids: answers(*call_ids), st.lists(ids, min_size=1)),
        st.builds(lambda: make.message(AGENT, "Hello.")),
    ),
    max_size=8,
)


@given(histories)
def test_every_call_is_answered_once_right_after_it_and_nothing_else_is_answered(history: list[Message]) -> None:
    open_calls: list[str] = []
    for message in paired(history):
        if message.role == "tool":
            for part in message.tool_returns:
                open_calls.remove(part.call_id)
        else:
            assert open_calls == []
            open_calls = [call.call_id for call in message.tool_calls]
    assert open_calls == []


@given(histories)
def test_pairing_keeps_all_that_was_said_and_changes_nothing_that_is_sound(history: list[Message]) -> None:
    once = paired(history)
    kept, said = ([one for one in some if one.role != "tool"] for some in (once, history))
    assert [(one.id, one.text, len(one.parts)) for one in kept] == [(one.id, one.text, len(one.parts)) for one in said]
    assert paired(once) == once


@given(histories)
def test_no_two_calls_have_one_id(history: list[Message]) -> None:
    used = [call.call_id for message in paired(history) for call in message.tool_calls]
    assert len(used) == len(set(used))


def test_a_call_without_a_result_is_said_to_be_interrupted() -> None:
    asked = asks("a", "b")
    history = paired([asked, answers("b"), make.message(AGENT, "Are you there?")])
    assert results(history) == [("assistant", []), ("tool", ["b"]), ("tool", ["a"]), ("user", [])]
    assert history[2].tool_returns == (ToolReturnPart("a", "roll_dice", "error", INTERRUPTED),)
    assert INTERRUPTED.startswith("interrupted")


def test_only_results_are_packaged_each_with_the_time_it_came_in_the_agents_zone() -> None:
    said = make.message(AGENT, "Roll.")
    call = make.call(AGENT, "roll_dice")
    result = make.result(AGENT, "roll_dice", "six", created_at=NOON)
    sent = transcript([said, call, result], "Europe/Rome", 128_000)
    assert sent[:2] == (said, call)
    assert [part.content for part in sent[2].tool_returns] == [
        '{\n  "status": "OK",\n  "message": "six",\n  "time": "2026-01-01 01:00:00 PM CET+0100"\n}'
    ]


def packaged(part: ToolReturnPart, context_window: int = 1) -> dict[str, object]:
    messages = [asks(part.call_id), make.message(AGENT, role="tool", parts=(part,))]
    value: dict[str, object] = orjson.loads(transcript(messages, "UTC", context_window)[1].tool_returns[0].content)
    return value


def test_a_json_result_is_packaged_as_json_and_words_that_look_like_it_as_words() -> None:
    assert packaged(ToolReturnPart("a", "search", "success", '{"n":1}', is_json=True))["message"] == {"n": 1}
    assert packaged(ToolReturnPart("a", "search", "success", '{"n":1}'))["message"] == '{"n":1}'


def test_a_long_result_is_cut_to_a_fifth_of_the_window_and_never_below_five_thousand_characters() -> None:
    long = ToolReturnPart("a", "read", "success", "ü" * 9_000)
    assert packaged(long, 1_000)["message"] == "ü" * 5_000 + "... [truncated 4000 chars]"
    assert packaged(long, 10_000)["message"] == "ü" * 8_000 + "... [truncated 1000 chars]"
    assert packaged(long, 11_250)["message"] == "ü" * 9_000


def test_a_json_result_that_must_be_cut_is_words() -> None:
    content = orjson.dumps(["x" * 6_000]).decode()
    sent = packaged(ToolReturnPart("a", "read", "success", content, is_json=True))["message"]
    assert sent == content[:5_000] + f"... [truncated {len(content) - 5_000} chars]"


def test_a_request_for_approval_is_the_assistants_and_its_answer_is_not_sent() -> None:
    asked = make.message(AGENT, role="approval", parts=(ToolCallPart("a", "roll_dice", "{}", is_gated=True),))
    decided = make.message(AGENT, role="approval", parts=(ApprovalPart("a", approves=True),))
    sent = transcript([asked, decided, answers("a")], "UTC", 128_000)
    assert [message.role for message in sent] == ["assistant", "tool"]
    # While nobody has answered, a request that is sent all the same is still valid.
    assert [message.role for message in transcript([asked], "UTC", 128_000)] == ["assistant", "tool"]


def test_a_summary_is_an_alert_in_the_users_role_that_counts_what_left() -> None:
    part = CompactionPart("window", ("message-1", "message-2"), 900, 300, 1_000, 5, 4)
    summary = make.message(AGENT, role="summary", parts=(TextPart("Ada likes tea."), part), created_at=NOON)
    (sent,) = transcript([summary], "Europe/Rome", 128_000)
    alert = orjson.loads(sent.text)
    assert (sent.role, alert["type"], alert["time"]) == ("user", "system_alert", "2026-01-01 01:00:00 PM CET+0100")
    assert alert["message"].startswith("Note: 2 messages from the beginning of the conversation have been hidden")
    assert alert["message"].endswith("\n Ada likes tea.")


def test_what_users_say_is_an_event_for_the_types_that_want_it_so() -> None:
    said = make.message(AGENT, "Roll.", created_at=NOON)
    (packed,) = transcript([said], "UTC", 128_000, packs_user_messages=True)
    assert orjson.loads(packed.text)["message"] == "Roll."
    assert transcript([said], "UTC", 128_000) == (said,)
