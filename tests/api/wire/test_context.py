"""A context window on the wire."""

from ricordo.api.wire.context import ContextShape, StoredMessage, overview_to_wire
from ricordo.domain.agent import AgentState
from ricordo.domain.message import ApprovalPart, CompactionPart, ImagePart, ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.model import ToolSchema
from ricordo.memory.overview import overview
from tests.api.wire.fits import require_fits
from tests.support import make

AGENT = make.agent()
STATE = AgentState(AGENT, make.conversation(AGENT))
TOOLS = (ToolSchema("look", "Look around.", {"type": "object", "properties": {}}),)


def test_every_kind_of_message_has_the_shape_that_is_promised() -> None:
    window = [
        make.message(AGENT, "You are Nina.", "system"),
        make.message(
            AGENT, role="summary", parts=(TextPart("Before."), CompactionPart("window", ("message-1",), 9, 1, 99, 9, 2))
        ),
        make.message(AGENT, parts=(TextPart("See."), ImagePart("image/png", "eA==" * 1_000))),
        make.message(
            AGENT,
            role="approval",
            parts=(
                ReasoningPart("Hm.", signature="s"),
                ReasoningPart("", redacted="r"),
                ToolCallPart("call-1", "look", '{"at":"cat"}', is_gated=True),
            ),
        ),
        make.message(AGENT, role="approval", parts=(ApprovalPart("call-1", False, "No."),)),
        make.result(AGENT, "look", "A cat."),
    ]
    wire = overview_to_wire(overview(STATE, window, TOOLS))
    require_fits(ContextShape, wire)
    require_fits(list[StoredMessage], wire["messages"])
    system, summary, user, asked, decided, result = wire["messages"]
    assert (system["role"], summary["content"]) == ("system", [{"type": "text", "text": "Before."}])
    assert user["content"][1] == {"type": "image", "source": {"type": "base64"}}
    assert [part["type"] for part in asked["content"]] == ["reasoning", "redacted_reasoning"]
    assert asked["tool_calls"] == [
        {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"at":"cat"}'}}
    ]
    assert decided["approvals"] == [{"type": "approval", "tool_call_id": "call-1", "approve": False, "reason": "No."}]
    assert (result["tool_call_id"], result["tool_returns"][0]["func_response"]) == ("call-1", "A cat.")
    assert wire["functions_definitions"][0]["function"]["name"] == "look"


def test_the_sections_are_what_adds_up_to_the_current_size() -> None:
    wire = overview_to_wire(overview(STATE, [make.message(AGENT, "You are Nina.", "system")], TOOLS))
    parts = sum(value for key, value in wire.items() if key.startswith("num_tokens_"))
    assert wire["context_window_size_current"] == parts > 0
    assert wire["context_window_size_max"] == AGENT.context_window
    assert (wire["tool_usage_rules"], wire["directories"], wire["summary_memory"]) == (None, None, None)
    assert (wire["num_messages"], wire["core_memory"]) == (1, "")
