"""Request and response models of scheduled messages, as the clients of the retired Letta V1 server's hosted product send them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ricordo.api.models.base import Items, Json, RequestModel, ResponseModel
from ricordo.api.models.turns import MessageRequest


class OneTimeRequest(RequestModel):
    """One time, in milliseconds since 1970, UTC."""

    type: Literal["one-time"] = "one-time"
    scheduled_at: float = Field(ge=0, lt=10**14)


class RecurringRequest(RequestModel):
    """Again and again, by a cron expression on the clock of the agent's timezone."""

    type: Literal["recurring"]
    cron_expression: str = Field(min_length=1, max_length=200)


class ScheduleRequest(RequestModel):
    """Messages to send, and when."""

    ignored: ClassVar = {}

    messages: Annotated[Items[MessageRequest], Field(min_length=1)]
    schedule: RecurringRequest | OneTimeRequest
    callback_url: str | None = None
    include_return_message_types: Items[str] | None = None
    max_steps: float | None = Field(None, ge=1, le=1000)

    def message(self) -> Json:
        """Return what is sent each time, as it was asked for."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"schedule"})


class NewScheduleResponse(ResponseModel):
    """A message that was scheduled, and when it is sent next."""

    id: str
    next_scheduled_at: str | None


class ScheduleResponse(ResponseModel):
    """A scheduled message. `error` says why the last one could not be sent."""

    id: str
    agent_id: str
    message: Json
    next_scheduled_time: str | None
    schedule: Json
    error: str | None


class ScheduleListResponse(ResponseModel):
    """Scheduled messages, the newest first."""

    has_next_page: bool
    scheduled_messages: list[ScheduleResponse]
