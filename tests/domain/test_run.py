"""Runs: how they end."""

import pytest

from ricordo.domain.run import RunStatus, StopReason, status_after


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("end_turn", "completed"),
        ("max_steps", "completed"),
        ("tool_rule", "completed"),
        ("requires_approval", "completed"),
        ("cancelled", "cancelled"),
        ("error", "failed"),
        ("llm_api_error", "failed"),
        ("invalid_tool_call", "failed"),
        ("insufficient_credits", "failed"),
        ("context_window_overflow_in_system_prompt", "failed"),
    ],
)
def test_a_run_ends_in_the_status_its_stop_reason_says(reason: StopReason, status: RunStatus) -> None:
    assert status_after(reason) == status
