"""What is sent to make a batch, and how batches are answered."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ricordo.api.models.base import Items, Json, RequestModel, stamp
from ricordo.api.models.jobs import JobResponse
from ricordo.api.models.turns import NO_LOGPROBS, SendRequest


class BatchItemRequest(SendRequest):
    """A request to one agent."""

    ignored: ClassVar = SendRequest.ignored | NO_LOGPROBS
    unsupported: ClassVar[tuple[str, ...]] = ("streaming", "stream_tokens", "background")

    agent_id: str


class BatchRequest(RequestModel):
    """Requests to agents, each answered by a turn of its own."""

    requests: Annotated[Items[BatchItemRequest], Field(min_length=1)]
    callback_url: str | None = Field(
        None, max_length=2000, description="Called with a signed POST when the batch has ended."
    )


class BatchResponse(JobResponse):
    """A batch. `metadata` counts its requests, and says of one batch alone which failed and why."""

    job_type: Literal["batch"] = "batch"  # type: ignore[assignment]

    @classmethod
    def of(cls, job: Any, /, **fields: Any) -> Json:
        """Return the batch, from its job and how many of its requests have each status."""
        counts, problems = fields["counts"], fields.get("problems")
        callback, total = job.payload["callback"], job.payload["requests"]
        done, failed = counts.get("completed", 0), counts.get("failed", 0)
        told = {
            "requests": total,
            "completed": done,
            "failed": failed,
            "waiting": counts.get("waiting", 0),
        }
        return super().of(job) | {
            "job_type": "batch",
            "metadata": told
            | ({} if problems is None else {"errors": problems})
            | ({"error": job.error} if job.error else {}),
            "callback_url": callback.get("url"),
            "callback_sent_at": stamp(callback.get("sent_at")),
            "callback_status_code": callback.get("status_code"),
            "callback_error": callback.get("error"),
        }
