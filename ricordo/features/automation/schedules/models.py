"""What is sent to make a schedule, and how schedules are answered."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from ricordo.api.models.base import Items, Json, RequestModel, RequestPart, ResponseModel, stamp
from ricordo.api.models.turns import ImageContent, MessageRequest
from ricordo.domain.clock import SECOND
from ricordo.errors import Invalid, TooLong
from ricordo.features.automation.schedules import cron
from ricordo.features.automation.schedules.queries import ScheduledMessage

_LATEST = 253_402_300_799_000  # milliseconds: the end of the year 9999
LONGEST = 1_000_000  # bytes of one schedule as JSON
_TYPES = "system|user|assistant|reasoning|hidden_reasoning|tool_call|tool_return|approval_request|approval_response"
MessageType = Annotated[str, Field(pattern=f"^({_TYPES})_message$")]


class OneTime(RequestPart):
    """Once, at this time."""

    type: Literal["one-time"] = "one-time"
    scheduled_at: float = Field(ge=0, le=_LATEST, description="Milliseconds since 1970.")


class Recurring(RequestPart):
    """Again and again, as a cron expression says."""

    type: Literal["recurring"]
    cron_expression: str = Field(
        min_length=1,
        max_length=200,
        description="Minute, hour, day of the month, month, day of the week.",
    )
    timezone: str | None = Field(
        None,
        max_length=100,
        description="The IANA time zone of these times; left out: the user's, or the agent's.",
    )


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return str(kind or "one-time")


When = Annotated[
    Annotated[OneTime, Tag("one-time")] | Annotated[Recurring, Tag("recurring")],
    Discriminator(_kind),
]


class LaterMessage(MessageRequest):
    """A message to send later."""

    ignored: ClassVar = {
        **MessageRequest.ignored,
        "otid": "Each time it is sent, the message gets an otid of its own.",
    }


class ScheduleRequest(RequestModel):
    """Messages for an agent, and when they are sent."""

    messages: Items[LaterMessage] = Field(min_length=1)
    schedule: When
    callback_url: str | None = Field(
        None, max_length=2000, description="Called with a signed POST when a run has ended."
    )
    include_return_message_types: Items[MessageType] | None = None
    max_steps: int | None = Field(None, ge=1, le=1000)

    def sent(self) -> tuple[Json, Json]:
        """Return the message and the schedule as they are stored and shown. Raises TooLong, Invalid."""
        message = self.model_dump(mode="json", exclude_none=True, exclude={"schedule"})
        if len(str(message)) > LONGEST:
            raise TooLong(
                f"This schedule is longer than {LONGEST:,} characters. Send less at once."
            )
        parts = [
            part
            for one in self.messages
            if not isinstance(one.content, str)
            for part in one.content
        ]
        if any(isinstance(part, ImageContent) and not part.source.data for part in parts):
            raise Invalid(
                "A picture that is sent later needs its data in base64, as its address may lead elsewhere then."
            )
        return message, self.schedule.model_dump(mode="json")


def next_time(schedule: Json, after: int) -> int | None:
    """Return when a schedule comes next after this time (microseconds); None where it does not. Raises Invalid.

    One without a time zone was made by an older version, and is in UTC.
    """
    if schedule["type"] == "recurring":
        return cron.read_stored(schedule["cron_expression"], schedule.get("timezone")).next_after(
            after
        )
    at = round(schedule["scheduled_at"] * (SECOND // 1000))
    return at if at > after else None


class ScheduleMadeResponse(ResponseModel):
    """The id of a new schedule, and when its message is sent first."""

    id: str
    next_scheduled_at: str | None


class ScheduleResponse(ResponseModel):
    """A schedule. Without a next time it sends nothing any more; `problem` says why the last time was missed."""

    id: str
    agent_id: str
    message: Json
    next_scheduled_time: str | None
    schedule: Json
    problem: str | None

    @classmethod
    def from_row(cls, row: ScheduledMessage) -> Json:
        return cls.of(row, next_scheduled_time=stamp(row.next_at))


ScheduleRequest.take_back(ScheduleResponse)


class SchedulesResponse(ResponseModel):
    """One page of an agent's schedules."""

    has_next_page: bool
    scheduled_messages: list[ScheduleResponse]
