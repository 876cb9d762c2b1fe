"""Asking for approval and answering, in the wire's words."""

from typing import Any

from tests.behaviour.scene import Scene, Wire, calls, said

WAITS = {"type": "requires_approval", "tool_name": "roll"}


def pending(answer: Wire) -> list[str]:
    """The ids of the calls that wait."""
    request = next(one for one in answer["messages"] if one["message_type"] == "approval_request_message")
    return [call["tool_call_id"] for call in request["tool_calls"]]


def decides(*decisions: tuple[str, bool] | tuple[str, bool, str], **more: Any) -> Wire:
    """An answer: what was decided about each call."""
    approvals = [
        {"type": "approval", "tool_call_id": one[0], "approve": one[1], "reason": one[2] if len(one) > 2 else None}
        for one in decisions
    ]
    return {"type": "approval", "approvals": approvals, **more}


def asks(scene: Scene, *named: tuple[str, Any], rules: list[Wire] | None = None, **body: Any) -> tuple[str, list[str]]:
    """An agent whose calls of games wait for approval; returns its id and the ids of the calls."""
    agent = scene.agent("roll", "toss", "draw", tool_rules=[WAITS] if rules is None else rules, **body)
    scene.says(calls(*(named or (("roll", {"sides": 8}),))))
    return agent, pending(scene.send(agent, "Play."))


def require_free(scene: Scene, agent: str) -> None:
    """Check that nothing waits any more and the next message is answered."""
    assert scene.state(agent)["pending_approval"] is None
    scene.says("Still here.")
    assert said(scene.send(agent, "Are you there?"))[-1] == "Still here."
