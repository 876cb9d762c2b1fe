"""Whom to tell when a run has ended: the job for it is added in the transaction that ends the run, so none is lost."""

from ricordo.domain.job import Job
from ricordo.domain.run import Run
from ricordo.storage import jobs
from ricordo.storage.store import Transaction

KIND = "callback"
MOST_ATTEMPTS = 6  # the last one about ten minutes after the first


def callback_job(run: Run) -> Job | None:
    """The job that tells of this run's end; None where it has not ended, or nobody asked to be told."""
    if run.ended_at is None or not run.callback.get("url"):
        return None
    return Job(
        KIND,
        run.organization_id,
        {"run_id": run.id},
        key=f"{KIND}:{run.id}",
        most_attempts=MOST_ATTEMPTS,
        user_id=run.user_id,
    )


def add_callback(tx: Transaction, run: Run) -> None:
    """Add that job where there is one, in the transaction that ends the run."""
    if job := callback_job(run):
        jobs.add(tx, job)
