from typing import get_args

import pytest

from ricordo.api.wire.jobs import STATUSES, JobShape, QueueShape, WireStatus, job_to_wire, queue_to_wire
from ricordo.domain.job import Job, JobStatus
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.storage.job_queue import Queue
from tests.api.wire.fits import require_fits
from tests.support.clock import START


def job(**fields: object) -> Job:
    return Job("embed", LOCAL_ORGANIZATION, **{"created_at": START, "not_before": START, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("status", get_args(JobStatus))
def test_jobs_of_every_status_fit_their_shape_and_are_found_by_it(status: JobStatus) -> None:
    one = job(status=status, started_at=START + 5, ended_at=START + 25, error={"type": "E", "message": "m"}, attempts=2)

    wire = job_to_wire(one)

    require_fits(JobShape, wire)
    assert status in STATUSES[wire["status"]]
    assert wire["total_duration_ns"] == 20_000
    assert wire["updated_at"] == "2026-01-01T00:00:00.000025Z"


def test_a_job_that_was_never_tried_is_created_and_one_to_be_tried_again_is_pending() -> None:
    assert job_to_wire(job())["status"] == "created"
    assert job_to_wire(job(attempts=1))["status"] == "pending"


def test_every_status_that_clients_know_can_be_asked_for() -> None:
    assert set(STATUSES) == set(get_args(WireStatus))
    assert {kept for statuses in STATUSES.values() for kept in statuses} == set(get_args(JobStatus))


def test_the_agent_of_a_job_is_the_one_in_its_payload() -> None:
    assert job_to_wire(job(payload={"agent_id": "agent-1"}))["agent_id"] == "agent-1"


def test_a_queue_fits_its_shape() -> None:
    failed = job(status="failed", error={"type": "E", "message": "m"}, attempts=1, ended_at=START)
    wire = queue_to_wire(Queue({"embed": {"waiting": 2, "failed": 1}}, 1_500_000, (failed,)))

    require_fits(QueueShape, wire)
    assert (wire["waiting"], wire["running"], wire["failed"], wire["oldest_wait_seconds"]) == (2, 0, 1, 1.5)
