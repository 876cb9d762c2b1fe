"""Jobs over HTTP: lists, one job, cancel, delete, and the queue."""

import httpx2
import pytest

from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.storage import jobs, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import organizations
from tests.seams.server import ServerInThread

YEARS_AHEAD = 4_000_000_000_000_000


@pytest.fixture(autouse=True)
def no_jobs(server: ServerInThread) -> None:
    """Delete the jobs of the previous test."""

    def remove_all(tx: Transaction) -> None:
        from sqlalchemy import text

        tx.connection.execute(text("DELETE FROM jobs"))

    server.write(remove_all)


def wait(server: ServerInThread, kind: str = "later", **fields: object) -> Job:
    """A job that waits for years, so that the server's own worker leaves it alone."""
    job = Job(kind, LOCAL_ORGANIZATION, {"page": 1}, not_before=YEARS_AHEAD, **fields)  # type: ignore[arg-type]
    added = server.write(lambda tx: jobs.add(tx, job))
    assert added
    return added


def claimed(server: ServerInThread, kind: str = "now", **fields: object) -> Job:
    """A job that another worker holds."""

    def work(tx: Transaction) -> Job:
        assert jobs.add(tx, Job(kind, LOCAL_ORGANIZATION, **fields))  # type: ignore[arg-type]
        (job,) = jobs.claim(tx, "elsewhere", 1)
        return job

    return server.write(work)


def test_a_job_shows_its_kind_and_progress(server: ServerInThread, http: httpx2.Client) -> None:
    job = claimed(server, "search.reindex", key="space", user_id="user-1", most_attempts=3)
    server.write(
        lambda tx: jobs.renew(tx, "elsewhere", [job], {job.id: {"done": 30, "total": 100}})
    )

    shown = http.get(f"/v1/jobs/{job.id}").json()

    assert (shown["id"], shown["status"], shown["job_type"], shown["user_id"]) == (
        job.id,
        "running",
        "job",
        "user-1",
    )
    assert shown["completed_at"] is None
    about = shown["metadata"]
    assert (about["kind"], about["key"], about["attempts"], about["most_attempts"]) == (
        "search.reindex",
        "space",
        1,
        3,
    )
    assert about["progress"] == {"done": 30, "total": 100}

    server.write(lambda tx: jobs.fail(tx, job, {"type": "Invalid", "message": "No."}))
    failed = http.get(f"/v1/jobs/{job.id}").json()
    assert (failed["status"], failed["metadata"]["error"]) == (
        "failed",
        {"type": "Invalid", "message": "No."},
    )
    assert failed["total_duration_ns"] > 0
    assert failed["completed_at"] == failed["updated_at"]


def test_jobs_are_listed_by_status_and_kind(server: ServerInThread, http: httpx2.Client) -> None:
    waiting, running, done = wait(server), claimed(server), claimed(server, "other")
    server.write(lambda tx: jobs.finish(tx, done))

    def ids(path: str, **query: object) -> list[str]:
        found = http.get(f"/v1/jobs/{path}", params=query).json()
        return [job["id"] for job in found]

    assert ids("") == [done.id, running.id, waiting.id]
    assert ids("", order="asc", limit=1, after=waiting.id) == [running.id]
    assert ids("", active=True) == ids("active") == [running.id, waiting.id]
    assert ids("", statuses=["completed", "pending"]) == [done.id, waiting.id]
    assert ids("", statuses="expired") == []
    assert ids("", kind="other") == [done.id]
    assert http.get("/v1/jobs/", params={"statuses": "sleepy"}).status_code == 422
    assert http.get("/v1/jobs/", params={"source_id": "source-1"}).status_code == 422


def test_a_job_can_be_deleted_and_can_be_cancelled_until_it_has_ended(
    server: ServerInThread, http: httpx2.Client
) -> None:
    waiting, done = wait(server), claimed(server)
    server.write(lambda tx: jobs.finish(tx, done))

    assert http.patch(f"/v1/jobs/{waiting.id}/cancel").json()["status"] == "cancelled"
    refused = http.patch(f"/v1/jobs/{done.id}/cancel")
    assert (refused.status_code, refused.json()["detail"].partition(":")[0]) == (409, "CONFLICT")

    assert http.delete(f"/v1/jobs/{done.id}").json()["id"] == done.id
    for method, path in [("GET", ""), ("DELETE", ""), ("PATCH", "/cancel")]:
        assert http.request(method, f"/v1/jobs/{done.id}{path}").status_code == 404


def test_a_user_sees_and_changes_only_jobs_about_that_user(
    server: ServerInThread, http: httpx2.Client
) -> None:
    ada, eve = (
        server.write(lambda tx, name=name: users.find_or_make(tx, Scope(), name))
        for name in ("ada", "eve")
    )
    of_ada, of_eve, of_server = (
        wait(server, user_id=ada.id),
        wait(server, user_id=eve.id),
        wait(server),
    )
    acting = {"x-ricordo-user": "ada"}
    for path in ("", "active"):
        listed = http.get(f"/v1/jobs/{path}", headers=acting).json()
        assert [job["id"] for job in listed] == [of_ada.id]
        assert len(http.get(f"/v1/jobs/{path}").json()) == 3
    assert http.get("/v1/jobs/queue", headers=acting).json()["waiting"] == 1
    for job in (of_eve, of_server):
        for method, path in [("GET", ""), ("DELETE", ""), ("PATCH", "/cancel")]:
            answer = http.request(method, f"/v1/jobs/{job.id}{path}", headers=acting)
            assert answer.status_code == 404
        assert http.get(f"/v1/jobs/{job.id}").json()["status"] == "created"
    assert http.patch(f"/v1/jobs/{of_ada.id}/cancel", headers=acting).status_code == 200


def test_the_queue_shows_its_depth_and_what_failed(
    server: ServerInThread, http: httpx2.Client
) -> None:
    wait(server)
    failing = claimed(server, "embed", most_attempts=1)
    server.write(
        lambda tx: jobs.fail(
            tx, failing, {"type": "Unavailable", "message": "The service is down."}
        )
    )

    queue = http.get("/v1/jobs/queue").json()

    assert (queue["waiting"], queue["running"], queue["failed"]) == (1, 0, 1)
    assert queue["oldest_wait_seconds"] == 0
    assert queue["depth"] == {"embed": {"failed": 1}, "later": {"waiting": 1}}
    (error,) = queue["errors"]
    told = {
        "job_id": failing.id,
        "kind": "embed",
        "status": "failed",
        "attempts": 1,
        "most_attempts": 1,
    }
    assert error == {**told, "type": "Unavailable", "message": "The service is down."}


def test_the_queue_does_not_show_other_organizations_jobs(
    server: ServerInThread, http: httpx2.Client
) -> None:
    def work(tx: Transaction) -> None:
        from sqlalchemy import insert

        tx.run(insert(organizations), {"id": "org-other", "name": "Other", "created_at": 1})
        for kind in ("late", "hopeless"):
            jobs.add(tx, Job(kind, "org-other", {"secret": 1}, most_attempts=1))
        (_, hopeless) = jobs.claim(tx, "elsewhere", 2)
        jobs.fail(tx, hopeless, {"type": "Unavailable", "message": "The secret service is down."})
        jobs.add(tx, Job("later", "org-other"))

    wait(server)
    server.write(work)

    queue = http.get("/v1/jobs/queue").json()

    assert queue["depth"] == {"later": {"waiting": 1}}
    assert (queue["waiting"], queue["running"], queue["failed"]) == (1, 0, 0)
    assert queue["oldest_wait_seconds"] == 0
    assert queue["errors"] == []
