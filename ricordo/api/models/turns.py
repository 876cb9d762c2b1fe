"""Request models of messages to an agent, and the response model of a whole turn."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Discriminator, Field, Tag, model_validator

from ricordo.api.models.base import Items, RequestModel, RequestPart, ResponseModel
from ricordo.api.models.messages import (
    AnyMessage,
    AssistantMessage,
    StoredMessageFields,
    SystemMessage,
    UserMessage,
)
from ricordo.api.models.runs import StopReasonResponse, UsageResponse
from ricordo.api.models.warnings import warn
from ricordo.domain.text import Json
from ricordo.errors import Unsupported


class TextContent(RequestPart):
    """A piece of text."""

    ignored: ClassVar = {"signature": "It belongs to texts of a model."}

    type: Literal["text"] = "text"
    text: str


class ImageSource(RequestPart):
    """The source of a picture: base64 in the request, or an address."""

    type: Literal["base64", "url"] = "base64"
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"] = "image/png"
    data: str | None = None
    url: str | None = None
    detail: str | None = None


class ImageContent(RequestPart):
    """A picture."""

    type: Literal["image"] = "image"
    source: ImageSource


def _content_kind(content: Any) -> str:
    if isinstance(content, dict):
        return str(content.get("type") or ("image" if "source" in content else "text"))
    return str(getattr(content, "type", "text"))


AnyContent = Annotated[
    Annotated[TextContent, Tag("text")] | Annotated[ImageContent, Tag("image")],
    Discriminator(_content_kind),
]
Content = str | Items[AnyContent]


_ROLES = {"user_message": "user", "system_message": "system", "assistant_message": "assistant"}


class MessageRequest(RequestPart):
    """A message to send."""

    ignored: ClassVar = {"batch_item_id": "The run of a message has its batch."}

    type: Literal["message"] | None = "message"
    role: Literal["user", "system", "assistant"]
    content: Content
    otid: str | None = Field(None, min_length=1, max_length=200)
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_type(cls, body: Any) -> Any:
        """Accept a message in the response format, where `message_type` names the role."""
        if not isinstance(body, dict) or "message_type" not in body:
            return body
        message = {name: field for name, field in body.items() if name != "message_type"}
        if role := _ROLES.get(str(body["message_type"])):
            message.setdefault("role", role)
        return message


MessageRequest.take_back(SystemMessage, UserMessage, AssistantMessage, StoredMessageFields)


class CallDecisionRequest(RequestPart):
    """A decision on one waiting call.

    A decision of the type `tool` is the result of a client's tool.
    """

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
        """Return whether it is a result; older clients leave out the type."""
        return self.type == "tool" or (self.type is None and self.tool_return is not None)


class ApprovalDecisionRequest(RequestPart):
    """An answer to waiting calls: one item for each call, or `approve` for all.

    With the type `tool_return`, the items are results of the client's tools. `approvals` may also
    be named `tool_returns`.
    """

    ignored: ClassVar = dict.fromkeys(
        ("sender_id", "group_id"), "The ids of the answered calls identify the request."
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


def _kind(message: Any) -> str:
    if isinstance(message, dict):
        kind = message.get("type") or (
            "message" if _OF_APPROVALS.isdisjoint(message) else "approval"
        )
    else:
        kind = getattr(message, "type", None) or "message"
    if kind == "tool_return":
        return "approval"
    return str(kind)


AnyMessageRequest = Annotated[
    Annotated[MessageRequest, Tag("message")] | Annotated[ApprovalDecisionRequest, Tag("approval")],
    Discriminator(_kind),
]


class ClientSkillRequest(RequestModel):
    """Instructions on the client's machine.

    The agent reads them at `location`, by tools of the client.
    """

    name: str = Field(min_length=1, max_length=200)
    description: str = Field("", max_length=4000)
    location: str = Field("", max_length=2000)


# The warning for requests that do not wait for the whole answer. They get no probabilities, since
# these are not stored.
NO_LOGPROBS = dict.fromkeys(
    ("return_logprobs", "top_logprobs"),
    "Only whole answers have probabilities. Send the request without streaming.",
)


class SendRequest(RequestModel):
    """Messages for an agent, and the form of the answer."""

    ignored: ClassVar = {
        "enable_thinking": "Reasoning is a setting of the agent.",
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
        description="Return the log probabilities of the last step's tokens, if the model "
        "provides them.",
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="With `return_logprobs`: the number of alternatives for each token.",
    )

    def warn_of_logprobs(self, reason: str) -> None:
        """Warn the client that the answer has no probabilities, if it requested them."""
        if names := [name for name in ("return_logprobs", "top_logprobs") if getattr(self, name)]:
            warn(names, reason)

    def require_streaming(self) -> None:
        """Raise Unsupported if it has options for streams but lacks `streaming`."""
        if (self.stream_tokens or self.background) and not self.streaming:
            raise Unsupported(
                "Streaming options set without streaming enabled. Set streaming to true, or leave "
                "them out."
            )


class AsyncSendRequest(SendRequest):
    """Messages for an agent, from a caller that does not wait for the answer."""

    ignored: ClassVar = SendRequest.ignored | NO_LOGPROBS

    callback_url: str | None = Field(
        None, max_length=2000, description="Called with a signed POST when the run has ended."
    )


class CancelRequest(RequestModel):
    """The runs to cancel; without ids, all active runs."""

    run_ids: Items[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_list(cls, body: Any) -> Any:
        """Accept the body of an older client, which is only a list of ids."""
        if isinstance(body, list):
            return {"run_ids": body}
        return body


class TokenFields(ResponseModel):
    """A token that a model wrote, or a likely alternative."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenResponse(TokenFields):
    """A token of an answer with its likely alternatives."""

    top_logprobs: list[TokenFields]


class LogprobsResponse(ResponseModel):
    """The tokens of the last step's answer with their log probabilities.

    `refusal` has the tokens of a model's refusal.
    """

    content: list[TokenResponse] | None
    refusal: list[TokenResponse] | None


class TurnResponse(ResponseModel):
    """A whole turn: its messages, the reason why it ended, and its usage."""

    messages: list[AnyMessage]
    stop_reason: StopReasonResponse
    usage: UsageResponse
    logprobs: LogprobsResponse | None
    turns: list[Json] | None
