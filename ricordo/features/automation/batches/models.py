"""Request and response models of batches."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ricordo.agents.request import (
    TurnRequest,
)
from ricordo.api.messages import request_of
from ricordo.api.models.base import Items, RequestModel
from ricordo.api.models.jobs import JobResponse
from ricordo.api.models.turns import NO_LOGPROBS, SendRequest
from ricordo.domain.clock import stamp
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json


class BatchItemRequest(SendRequest):
    """A request to one agent."""

    ignored: ClassVar = SendRequest.ignored | NO_LOGPROBS
    unsupported: ClassVar[tuple[str, ...]] = ("streaming", "stream_tokens", "background")

    agent_id: str


def turn_of(scope: Scope, request: BatchItemRequest) -> TurnRequest:
    """Return the turn of a request.

    Args:
        scope: The caller who created the batch.
        request: One request of the batch.

    Raises:
        Unsupported: The request has both `messages` and `input`, or neither.
        Invalid: A message, a tool or a decision in the request cannot be used.
    """
    return request_of(scope, request.agent_id, request)


def callback_body(batch: Job) -> Json:
    """Return the body of an ended batch's callback.

    Args:
        batch: The job of the batch, which has ended.
    """
    return {
        "job_id": batch.id,
        "status": JobResponse.of(batch)["status"],
        "completed_at": stamp(batch.ended_at),
    }


class BatchRequest(RequestModel):
    """Requests to agents, each answered by a separate turn."""

    requests: Annotated[Items[BatchItemRequest], Field(min_length=1)]
    callback_url: str | None = Field(
        None, max_length=2000, description="Called with a signed POST when the batch has ended."
    )


class BatchResponse(JobResponse):
    """A batch. `metadata` counts its requests by status.

    If the batch is retrieved by its id, `metadata` also has the errors of its failed requests.
    """

    job_type: Literal["batch"] = "batch"  # type: ignore[assignment]

    @classmethod
    def of(cls, job: Any, /, **fields: Any) -> Json:
        """Return the batch from its job.

        `counts` are the numbers of its requests by status, and `problems` are the errors of failed
        ones.
        """
        counts = fields["counts"]
        callback = job.payload["callback"]
        metadata = {
            "requests": job.payload["requests"],
            "completed": counts.get("completed", 0),
            "failed": counts.get("failed", 0),
            "waiting": counts.get("waiting", 0),
        }
        if fields.get("problems") is not None:
            metadata["errors"] = fields["problems"]
        if job.error:
            metadata["error"] = job.error
        return super().of(job) | {
            "job_type": "batch",
            "metadata": metadata,
            "callback_url": callback.get("url"),
            "callback_sent_at": stamp(callback.get("sent_at")),
            "callback_status_code": callback.get("status_code"),
            "callback_error": callback.get("error"),
        }
