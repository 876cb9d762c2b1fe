"""Request models of what is sent to an agent, and the response model of a whole turn."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Discriminator, Field, Tag, model_validator

from ricordo.api.models.base import Items, Json, RequestModel, RequestPart, ResponseModel
from ricordo.api.models.messages import (
    AnyMessage,
    AssistantMessage,
    StoredMessageFields,
    SystemMessage,
    UserMessage,
)
from ricordo.api.models.runs import StopReasonResponse, UsageResponse
from ricordo.api.models.warnings import warn
from ricordo.errors import Unsupported


class TextContent(RequestPart):
    """A piece of text."""

    ignored: ClassVar = {"signature": "It belongs to what a model said."}

    type: Literal["text"] = "text"
    text: str


class ImageSource(RequestPart):
    """Where a picture is: in the request as base64, or at an address."""

    type: Literal["base64", "url"] = "base64"
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"] = "image/png"
    data: str | None = None
    url: str | None = None
    detail: str | None = None


class ImageContent(RequestPart):
    """A picture."""

    type: Literal["image"] = "image"
    source: ImageSource


def _content_kind(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("type") or ("image" if "source" in value else "text"))
    return str(getattr(value, "type", "text"))


AnyContent = Annotated[
    Annotated[TextContent, Tag("text")] | Annotated[ImageContent, Tag("image")],
    Discriminator(_content_kind),
]
Content = str | Items[AnyContent]


_ROLES = {"user_message": "user", "system_message": "system", "assistant_message": "assistant"}


class MessageRequest(RequestPart):
    """A message to send."""

    ignored: ClassVar = {"batch_item_id": "Which batch a message was sent in is known by its run."}

    type: Literal["message"] | None = "message"
    role: Literal["user", "system", "assistant"]
    content: Content
    otid: str | None = Field(None, min_length=1, max_length=200)
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_type(cls, sent: Any) -> Any:
        """Take a message as the server answers it, whose type stands for its role."""
        if not isinstance(sent, dict) or "message_type" not in sent:
            return sent
        message = {name: each for name, each in sent.items() if name != "message_type"}
        if role := _ROLES.get(str(sent["message_type"])):
            message.setdefault("role", role)
        return message


MessageRequest.take_back(SystemMessage, UserMessage, AssistantMessage, StoredMessageFields)


class CallDecisionRequest(RequestPart):
    """What was decided about one call that waits; with the type `tool`, what the client's own tool gave."""

    type: Literal["approval", "tool"] | None = None
    tool_call_id: str
    approve: bool | None = None
    reason: str | None = None
    tool_return: Content | None = None
    status: Literal["success", "error"] = "success"
    stdout: Items[str] | None = None
    stderr: Items[str] | None = None

    @property
    def is_result(self) -> bool:
        """Whether it holds a result, also where an older client does not say so."""
        return self.type == "tool" or (self.type is None and self.tool_return is not None)


class ApprovalDecisionRequest(RequestPart):
    """An answer to calls that wait: one item for each of them, or `approve` for all.

    With the type `tool_return` the items are the results of the client's own tools, and may be called `tool_returns`.
    """

    ignored: ClassVar = dict.fromkeys(
        ("sender_id", "group_id"), "The calls that it answers say where it belongs."
    )

    type: Literal["approval", "tool_return"] | None = "approval"
    approvals: Items[CallDecisionRequest] | None = Field(
        None, validation_alias=AliasChoices("approvals", "tool_returns")
    )
    approve: bool | None = None
    approval_request_id: str | None = None
    reason: str | None = None
    otid: str | None = Field(None, min_length=1, max_length=200)


_OF_APPROVALS = {"approve", "approvals", "approval_request_id", "tool_returns"}


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        kind = value.get("type") or ("message" if _OF_APPROVALS.isdisjoint(value) else "approval")
    else:
        kind = getattr(value, "type", None) or "message"
    return "approval" if kind == "tool_return" else str(kind)


AnyMessageRequest = Annotated[
    Annotated[MessageRequest, Tag("message")] | Annotated[ApprovalDecisionRequest, Tag("approval")],
    Discriminator(_kind),
]


class ClientSkillRequest(RequestModel):
    """Instructions that lie with the client, which the agent reads at `location` with the client's tools."""

    name: str = Field(min_length=1, max_length=200)
    description: str = Field("", max_length=4000)
    location: str = Field("", max_length=2000)


# Only the answer of a request that waits for it has them: they are stored nowhere.
NO_LOGPROBS = dict.fromkeys(
    ("return_logprobs", "top_logprobs"),
    "Probabilities are in whole answers alone. Ask without streaming, and wait.",
)


class SendRequest(RequestModel):
    """Messages for an agent, and how the answer is wanted."""

    ignored: ClassVar = {
        "enable_thinking": "Whether a model thinks is a setting of the agent.",
        "return_token_ids": "Answers have no ids of tokens.",
    }

    messages: Items[AnyMessageRequest] | None = None
    input: Content | None = None
    max_steps: int = Field(50, ge=1, le=1000)
    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    include_return_message_types: Items[str] | None = None
    streaming: bool = False
    stream_tokens: bool = False
    include_pings: bool = True
    background: bool = False
    client_tools: Items[dict[str, Any]] | None = None
    client_skills: Items[ClientSkillRequest] | None = None
    override_model: str | None = None
    override_system: str | None = Field(
        None, validation_alias=AliasChoices("override_system", "system")
    )
    include_compaction_messages: bool = False
    return_logprobs: bool = Field(
        False,
        description="Answer with the log probabilities of the last step's tokens, where the model gives them.",
    )
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="With `return_logprobs`: so many alternatives to each token."
    )

    @property
    def logprobs(self) -> int | None:
        """How many alternatives to each token are wanted; None where no probabilities are."""
        return (self.top_logprobs or 0) if self.return_logprobs else None

    def warn_of_logprobs(self, reason: str) -> None:
        """Tell the client why its answer has no probabilities, where it asked for them."""
        if names := [name for name in ("return_logprobs", "top_logprobs") if getattr(self, name)]:
            warn(names, reason)

    def require_streaming(self) -> None:
        """Raise Unsupported where it has options of a stream and asks for none."""
        if (self.stream_tokens or self.background) and not self.streaming:
            raise Unsupported(
                "Streaming options set without streaming enabled. Set streaming to true, or leave them out."
            )


class AsyncSendRequest(SendRequest):
    """Messages for an agent, for a caller who does not wait for the answer."""

    ignored: ClassVar = SendRequest.ignored | NO_LOGPROBS

    callback_url: str | None = Field(
        None, max_length=2000, description="Called with a signed POST when the run has ended."
    )


class CancelRequest(RequestModel):
    """Which runs are meant; all that are active where it names none."""

    run_ids: Items[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_list(cls, sent: Any) -> Any:
        """Return the request of an older client, which sends the ids alone."""
        return {"run_ids": sent} if isinstance(sent, list) else sent


class TokenFields(ResponseModel):
    """A token that a model wrote, or might have written there."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenResponse(TokenFields):
    """A token of an answer, with what might have stood in its place."""

    top_logprobs: list[TokenFields]


class LogprobsResponse(ResponseModel):
    """The tokens of the last step's answer with their log probabilities; `refusal` where the model refused."""

    content: list[TokenResponse] | None
    refusal: list[TokenResponse] | None


class TurnResponse(ResponseModel):
    """A whole turn: what the agent said and did, why it ended, and what it took."""

    messages: list[AnyMessage]
    stop_reason: StopReasonResponse
    usage: UsageResponse
    logprobs: LogprobsResponse | None
    turns: list[Json] | None
