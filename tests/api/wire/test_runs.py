from typing import get_args

import pytest

from ricordo.api.wire.message_schemas import StopReasonShape, UsageShape
from ricordo.api.wire.runs import (
    run_to_wire,
    run_usage_to_wire,
    step_metrics_to_wire,
    step_to_wire,
    stop_reason_to_wire,
    usage_to_wire,
)
from ricordo.api.wire.schemas import RunShape, RunUsageShape, StepMetricsShape, StepShape
from ricordo.domain.run import RunStatus, StepStatus, StopReason
from ricordo.domain.usage import Usage
from tests.api.wire.fits import require_fits
from tests.support import make
from tests.support.clock import START

AGENT = make.agent()
FULL = Usage(100, 20, 60, 5, 7)


def test_an_open_run_has_no_end() -> None:
    wire = run_to_wire(make.run(AGENT))

    require_fits(RunShape, wire)
    assert (wire["status"], wire["stop_reason"], wire["completed_at"]) == ("running", None, None)
    assert wire["metadata"] == {"run_type": "send_message"}
    assert wire["request_config"] is None
    assert "lease_token" not in wire


@pytest.mark.parametrize("status", get_args(RunStatus))
def test_runs_of_every_status_fit_their_shape(status: RunStatus) -> None:
    run = make.run(
        AGENT,
        status=status,
        stop_reason="error",
        error={"type": "llm_error", "message": "No."},
        metadata={"n": 1},
        request_config={"use_assistant_message": True},
        ended_at=START + 1_500_000,
        ttft_ns=5,
        duration_ns=7,
    )

    wire = run_to_wire(run)

    require_fits(RunShape, wire)
    assert wire["metadata"] == {
        "run_type": "send_message",
        "n": 1,
        "error": {"type": "llm_error", "message": "No."},
    }
    assert (wire["created_at"], wire["completed_at"]) == (
        "2026-01-01T00:00:00.000000Z",
        "2026-01-01T00:00:01.500000Z",
    )
    assert (wire["ttft_ns"], wire["total_duration_ns"]) == (5, 7)


@pytest.mark.parametrize("status", get_args(StepStatus))
def test_steps_of_every_status_fit_their_shape(status: StepStatus) -> None:
    step = make.step(make.run(AGENT), status=status, usage=FULL, error={"type": "llm_error", "message": "No."})

    wire = step_to_wire(step)

    require_fits(StepShape, wire)
    assert (wire["prompt_tokens"], wire["completion_tokens"], wire["total_tokens"]) == (100, 20, 120)
    assert wire["prompt_tokens_details"] == {"cached_tokens": 60, "cache_creation_tokens": 5}
    assert wire["completion_tokens_details"] == {"reasoning_tokens": 7}
    assert (wire["error_type"], wire["error_data"]) == ("llm_error", {"type": "llm_error", "message": "No."})
    assert (wire["provider_name"], wire["model_handle"]) == ("scripted", "scripted/model")


def test_a_step_shows_what_was_said_about_it_and_usage_what_is_in_the_window() -> None:
    wire = step_to_wire(make.step(make.run(AGENT), feedback="negative", tags=("rude",)))

    require_fits(StepShape, wire)
    assert (wire["feedback"], wire["tags"]) == ("negative", ["rude"])
    assert usage_to_wire(FULL, 1, ["run-1"], 120)["context_tokens"] == 120
    assert usage_to_wire(FULL, 1, ["run-1"])["context_tokens"] is None


def test_a_step_without_details_has_none() -> None:
    wire = step_to_wire(make.step(make.run(AGENT)))

    require_fits(StepShape, wire)
    assert (wire["prompt_tokens_details"], wire["completion_tokens_details"]) == (None, None)
    assert (wire["error_type"], wire["error_data"]) == (None, None)


def test_the_times_of_a_step_are_nanoseconds() -> None:
    step = make.step(make.run(AGENT), model_ns=3, tools_ns=4, step_ns=9)

    wire = step_metrics_to_wire(step)

    require_fits(StepMetricsShape, wire)
    assert wire["step_start_ns"] == wire["llm_request_start_ns"] == START * 1000
    assert (wire["llm_request_ns"], wire["tool_execution_ns"], wire["step_ns"]) == (3, 4, 9)


@pytest.mark.parametrize("usage", [Usage(), FULL])
def test_usage_fits_both_of_its_shapes(usage: Usage) -> None:
    turn, run = usage_to_wire(usage, 2, ["run-1"]), run_usage_to_wire(usage)

    require_fits(UsageShape, turn)
    require_fits(RunUsageShape, run)
    assert turn["total_tokens"] == run["total_tokens"] == usage.total_tokens
    assert (turn["step_count"], turn["run_ids"]) == (2, ["run-1"])
    assert turn["cached_input_tokens"] == usage.cached_tokens


@pytest.mark.parametrize("reason", get_args(StopReason))
def test_every_stop_reason_fits_its_shape(reason: StopReason) -> None:
    wire = stop_reason_to_wire(reason)

    require_fits(StopReasonShape, wire)
    assert wire == {"message_type": "stop_reason", "stop_reason": reason}


def test_an_end_without_a_reason_is_an_error() -> None:
    assert stop_reason_to_wire(None) == {"message_type": "stop_reason", "stop_reason": "error"}
