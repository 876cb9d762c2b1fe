"""Request and response models of schedules."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from ricordo.agents.request import (
    NewMessage,
)
from ricordo.api.messages import new_message
from ricordo.api.models.base import Items, RequestModel, RequestPart, ResponseModel
from ricordo.api.models.messages import MessageFormat
from ricordo.api.models.turns import ImageContent, MessageRequest
from ricordo.domain import cron
from ricordo.domain.clock import SECOND, stamp
from ricordo.domain.text import Json
from ricordo.errors import Invalid, TooLong
from ricordo.features.automation.schedules.queries import ScheduledMessage

_END_OF_YEAR_9999 = 253_402_300_799_000  # milliseconds
MAX_MESSAGE_LENGTH = 1_000_000  # characters of one schedule's messages and settings
_TYPES = (
    "system|user|assistant|reasoning|hidden_reasoning|tool_call|tool_return"
    "|approval_request|approval_response"
)
MessageType = Annotated[str, Field(pattern=f"^({_TYPES})_message$")]


class OneTime(RequestPart):
    """Once, at this time."""

    type: Literal["one-time"] = "one-time"
    scheduled_at: float = Field(ge=0, le=_END_OF_YEAR_9999, description="Milliseconds since 1970.")


class Recurring(RequestPart):
    """Repeatedly, at the times of a cron expression."""

    type: Literal["recurring"]
    cron_expression: str = Field(
        min_length=1,
        max_length=200,
        description="Minute, hour, day of the month, month, day of the week.",
    )
    timezone: str | None = Field(
        None,
        max_length=100,
        description="The IANA time zone of these times. By default the user's, else the agent's.",
    )


def _kind(schedule: Any) -> str:
    if isinstance(schedule, dict):
        kind = schedule.get("type")
    else:
        kind = getattr(schedule, "type", None)
    return str(kind or "one-time")


When = Annotated[
    Annotated[OneTime, Tag("one-time")] | Annotated[Recurring, Tag("recurring")],
    Discriminator(_kind),
]


class LaterMessage(MessageRequest):
    """A message to send later."""

    ignored: ClassVar = {
        **MessageRequest.ignored,
        "otid": "Each time it is sent, the message gets a new otid. Leave otid out.",
    }


def later_message(message: Json) -> NewMessage:
    """Return a stored message as a message of its turn.

    Args:
        message: One of `messages` in the form that `ScheduleRequest.sent` returns.

    Raises:
        Invalid: The message cannot be used, for example a part of it.
    """
    return new_message(LaterMessage.model_validate(message))


def message_format(message: Json) -> Json:
    """Return the format in which the schedule's runs return messages.

    Args:
        message: The stored message of the schedule, as `ScheduleRequest.sent` returns it.
    """
    return MessageFormat.from_json(message).to_json()


class ScheduleRequest(RequestModel):
    """Messages for an agent, with the time or times to send them."""

    messages: Items[LaterMessage] = Field(min_length=1)
    schedule: When
    callback_url: str | None = Field(
        None, max_length=2000, description="Called with a signed POST when a run has ended."
    )
    include_return_message_types: Items[MessageType] | None = None
    max_steps: int | None = Field(None, ge=1, le=1000)

    def sent(self) -> tuple[Json, Json]:
        """Return the message and the schedule in their stored form.

        Raises TooLong, Invalid.
        """
        message = self.model_dump(mode="json", exclude_none=True, exclude={"schedule"})
        if len(str(message)) > MAX_MESSAGE_LENGTH:
            raise TooLong(
                f"This schedule is longer than {MAX_MESSAGE_LENGTH:,} characters. "
                "Send less at once."
            )
        parts = [
            part
            for message_request in self.messages
            if not isinstance(message_request.content, str)
            for part in message_request.content
        ]
        if any(isinstance(part, ImageContent) and not part.source.data for part in parts):
            raise Invalid(
                "A picture in a schedule needs its data in base64, because its address may change "
                "until then."
            )
        return message, self.schedule.model_dump(mode="json")


def next_time(schedule: Json, after: int) -> int | None:
    """Return the schedule's next time after this time, in microseconds.

    Args:
        schedule: The stored schedule, as `ScheduleRequest.sent` returns it. A recurring one without
            a time zone comes from an older version, and is in UTC.
        after: A time in microseconds.

    Returns:
        The time; None if there is none, as for a single time that is past.

    Raises:
        Invalid: The cron expression or its time zone cannot be read.
    """
    if schedule["type"] == "recurring":
        expression = cron.read_stored(schedule["cron_expression"], schedule.get("timezone"))
        return expression.next_after(after)
    scheduled_at = round(schedule["scheduled_at"] * (SECOND // 1000))
    return scheduled_at if scheduled_at > after else None


class ScheduleMadeResponse(ResponseModel):
    """The id of a new schedule, and the first time of its message."""

    id: str
    next_scheduled_at: str | None


class ScheduleResponse(ResponseModel):
    """A schedule. Without a next time, it sends nothing any more.

    `problem` is the reason why the last time was missed.
    """

    id: str
    agent_id: str
    message: Json
    next_scheduled_time: str | None
    schedule: Json
    problem: str | None

    @classmethod
    def from_row(cls, row: ScheduledMessage) -> Json:
        """Return the response for a schedule.

        Args:
            row: The stored schedule.
        """
        return cls.of(row, next_scheduled_time=stamp(row.next_at))


ScheduleRequest.take_back(ScheduleResponse)


class SchedulesResponse(ResponseModel):
    """One page of an agent's schedules."""

    has_next_page: bool
    scheduled_messages: list[ScheduleResponse]
