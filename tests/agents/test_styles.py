"""What a reply means, and what an agent is offered."""

import pytest

from ricordo.agents.styles import NativeStyle, Reading, style_of
from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.domain.model import ModelReply
from ricordo.errors import Unsupported
from ricordo.llm.scripted import call
from tests.support import make

ROLL, TOSS = call("roll"), call("toss")


@pytest.mark.parametrize(
    ("reply", "reading"),
    [
        (ModelReply((TextPart("Hello."),)), Reading((), "end_turn")),
        (ModelReply((TextPart("Once upon"),), finish="length"), Reading((), "max_tokens_exceeded")),
        (ModelReply((TextPart("No."),), finish="content_filter"), Reading((), "end_turn")),
        (ModelReply((ReasoningPart("Hm"), TextPart("Let me see."), ROLL, TOSS)), Reading((ROLL, TOSS), None)),
        (ModelReply((ROLL,), finish="length"), Reading((ROLL,), None)),
    ],
)
def test_text_ends_a_native_turn_and_calls_go_on(reply: ModelReply, reading: Reading) -> None:
    assert NativeStyle().read(reply) == reading


def test_a_native_agent_is_offered_all_its_tools_and_may_leave_them() -> None:
    tools = (make.tool("roll"), make.tool("toss"))
    schemas, choice = NativeStyle().present(tools)
    assert [schema.name for schema in schemas] == ["roll", "toss"]
    assert schemas[0].parameters == tools[0].json_schema["parameters"]
    assert choice == "auto"


def test_a_type_of_agent_without_a_style_is_refused_by_name() -> None:
    assert style_of("letta_v1_agent") == NativeStyle()
    with pytest.raises(Unsupported, match="voice_convo_agent"):
        style_of("voice_convo_agent")
