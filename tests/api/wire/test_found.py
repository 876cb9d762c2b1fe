from ricordo.api.wire.found import found_message_to_wire, result_to_wire
from ricordo.api.wire.message_schemas import FoundMessageShape, MessageResultShape
from ricordo.domain.message import ReasoningPart, TextPart, ToolCallPart
from ricordo.domain.passage import Relevance
from tests.api.wire.fits import require_fits
from tests.support import make

WHY = Relevance(0.5, fts_rank=1, mode="fts")
AGENT = make.agent()


def test_a_found_message_holds_what_was_said_and_where() -> None:
    message = make.message(AGENT, "I like tea.")

    wire = found_message_to_wire(message, WHY)

    require_fits(FoundMessageShape, wire)
    assert wire == {
        "message_type": "user_message",
        "content": "I like tea.",
        "message_id": message.id,
        "agent_id": AGENT.id,
        "conversation_id": message.conversation_id,
        "created_at": "2026-01-01T00:00:00.000000Z",
        "relevance": {"search_mode": "fts", "rrf_score": 0.5, "vector_rank": None, "fts_rank": 1},
    }


def test_what_an_agent_said_through_its_tool_is_what_it_said() -> None:
    wire = found_message_to_wire(make.call(AGENT, "send_message", '{"message": "Good morning"}'), WHY)
    assert (wire["message_type"], wire["content"]) == ("assistant_message", "Good morning")


def test_a_result_is_the_whole_message_beside_its_ranks() -> None:
    parts = (ReasoningPart("Hm."), TextPart("Let me look."), ToolCallPart("call-1", "roll_dice", "{}"))
    message = make.message(AGENT, role="assistant", parts=parts, model="model", run_id="run-1", name="Nina")

    wire = result_to_wire(message, WHY)

    require_fits(MessageResultShape, wire)
    assert (wire["embedded_text"], wire["rrf_score"], wire["fts_rank"]) == ("Let me look.", 0.5, 1)
    kept = wire["message"]
    assert kept["content"] == [{"type": "text", "text": "Let me look."}]
    assert kept["tool_calls"] == [{"name": "roll_dice", "arguments": "{}", "tool_call_id": "call-1"}]
    assert (kept["role"], kept["model"], kept["run_id"], kept["name"]) == ("assistant", "model", "run-1", "Nina")
