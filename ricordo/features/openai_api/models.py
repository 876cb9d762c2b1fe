"""Request and response models of OpenAI's HTTP API. Fields that change nothing here are ignored, as other servers do."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from ricordo.api.models.base import Items, Json, RequestModel, RequestPart, ResponseModel
from ricordo.domain.model import answer_schema
from ricordo.errors import Invalid

_INSTRUCTIONS = "### Task:\nRespond to the user query using the provided context"
T = TypeVar("T")
_LONGEST_SCHEMA = 100_000  # bytes
_PASSAGES = ("<context>", "</context>")


def _passages(text: str) -> str:
    """The text without what Open WebUI tells models about the passages of documents that it puts before it."""
    place = text.find(_PASSAGES[0]) if text.startswith(_INSTRUCTIONS) else 0
    return text[max(place, 0) :]


Text = Annotated[str, AfterValidator(_passages)]


class LenientPart(RequestPart):
    """A part of a request whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class LenientRequest(RequestModel):
    """A request whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class ImageAddress(LenientPart):
    """Where a picture lies: `https://…`, or `data:image/png;base64,…`."""

    url: str
    detail: str | None = None


class ContentPart(LenientPart):
    """A piece of a message: text, or a picture."""

    type: str
    text: Text | None = None
    image_url: ImageAddress | str | None = None


class CalledFunction(LenientPart):
    """Which function was called."""

    name: str = ""
    arguments: str = ""


class MadeCall(LenientPart):
    """A call of one of the client's tools, in an answer that is sent back."""

    id: str
    function: CalledFunction = CalledFunction()


class ChatMessage(LenientPart):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Items[ContentPart] | None = None
    tool_calls: Items[MadeCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.text)
        return self.content or ""

    @property
    def own_text(self) -> str:
        """The text without passages of documents before it, which clients look up for the last message alone."""
        return (self.text.rpartition(_PASSAGES[1])[2] if self.has_passages else self.text).strip()

    @property
    def has_passages(self) -> bool:
        """Whether passages of documents, which the user need not have written, stand before the text."""
        return self.text.startswith(_PASSAGES[0])


class FunctionDefinition(LenientPart):
    """A function that the client runs."""

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    parameters: Json | None = None


class ToolDefinition(LenientPart):
    """A tool that the client runs."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class StreamOptions(LenientPart):
    """What a stream has besides."""

    include_usage: bool = False


class ChatRequest(LenientRequest):
    """A chat to go on with. `model` is an agent's name or id."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: Items[ToolDefinition] | None = None
    tool_choice: str | Json | None = None
    response_format: Json | None = None
    n: int | None = Field(None, ge=1, le=1)
    user: str | None = Field(None, max_length=1000)
    metadata: dict[str, Any] | None = None

    def answer_format(self) -> Json | None:
        """Return the form of the answer; None where any text will do. Raises Invalid for one that is not known."""
        schema = answer_schema(self.response_format)
        if schema is not None and len(orjson.dumps(schema)) > _LONGEST_SCHEMA:
            raise Invalid(
                f"The schema of response_format has more than {_LONGEST_SCHEMA:,} bytes. Shorten it."
            )
        return None if schema is None else self.response_format

    def wanted_tools(self) -> frozenset[str]:
        """Return the tools one of which has to be called; none where the model may choose. Raises Invalid."""
        choice, offered = (
            self.tool_choice,
            frozenset(tool.function.name for tool in self.tools or ()),
        )
        if choice in (None, "auto", "none"):
            return frozenset()
        if choice in ("required", "any"):
            names, is_wanted = offered, True
        elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed = choice.get("allowed_tools", choice)
            names, is_wanted = _names(allowed.get("tools")), allowed.get("mode") == "required"
        else:
            names, is_wanted = _names([choice]), True
        if not names or not names <= offered:
            raise Invalid(
                "tool_choice names no tool of this request. Send auto, none, required, or one of the tools."
            )
        return names if is_wanted else frozenset()

    def named(self, name: str) -> str | None:
        """Return this text of the metadata; None where there is none."""
        value = (self.metadata or {}).get(name)
        return value if isinstance(value, str) and value else None


def _names(tools: Any) -> frozenset[str]:
    """Return the functions that a choice names, as chats and as responses write them."""
    named = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    names = [
        (tool["function"] if isinstance(tool.get("function"), dict) else tool).get("name")
        for tool in named
    ]
    return frozenset(name for name in names if isinstance(name, str))


class _Function(LenientPart):
    type: Literal["function"]


class FunctionTool(FunctionDefinition, _Function):
    """A function that the client runs, as responses have it."""

    strict: bool | None = None


class FunctionCallItem(LenientPart):
    """A call of one of the client's functions, in an answer that is sent back."""

    type: Literal["function_call"]
    call_id: str
    name: str = ""
    arguments: str = ""


class FunctionOutputItem(LenientPart):
    """What one of the client's functions gave."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: str | Items[ContentPart]


class ReasoningItem(LenientPart):
    """Thoughts in an answer that is sent back. The server has them already."""

    type: Literal["reasoning"]


def _item_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return str(kind or "message")


InputItem = Annotated[
    Annotated[ChatMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_item_kind),
]


class AnswerText(LenientPart):
    """The form of a response's text."""

    format: Json | None = None


class ResponsesRequest(LenientRequest):
    """What is said to an agent, alone or after an earlier response. `model` is an agent's name or id."""

    model: str
    input: Annotated[list[InputItem], Field(min_length=1, max_length=10_000)] | str
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Items[FunctionTool] | None = None
    tool_choice: str | Json | None = None
    text: AnswerText | None = None
    stream: bool = False
    user: str | None = Field(None, max_length=1000)
    metadata: dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        """Return the same as a chat, the instructions as its first message."""
        said = (
            [ChatMessage(role="user", content=self.input)]
            if isinstance(self.input, str)
            else _chat_of(self.input)
        )
        first = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        if not (first or said):
            raise Invalid("There is no message in the input. Send one, or what a function gave.")
        tools = [ToolDefinition.model_construct(function=tool) for tool in self.tools or ()]
        chat = ChatRequest.model_construct(
            model=self.model, messages=[*first, *said], tools=tools
        )  # all of it was checked
        names = ("stream", "user", "metadata", "tool_choice")
        update = {name: getattr(self, name) for name in names}
        return chat.model_copy(update={**update, "response_format": self._response_format()})

    def _response_format(self) -> Json | None:
        """Return the form of the text as chats write it."""
        sent = self.text.format if self.text else None
        if sent is None or sent.get("type") != "json_schema":
            return sent
        return {
            "type": "json_schema",
            "json_schema": {name: each for name, each in sent.items() if name != "type"},
        }


def _chat_of(items: Sequence[InputItem]) -> list[ChatMessage]:
    """Return the messages of a chat: words and the calls behind them are one message there."""
    chat: list[ChatMessage] = []
    for item in items:
        if isinstance(item, FunctionCallItem):
            call = MadeCall(
                id=item.call_id, function=CalledFunction(name=item.name, arguments=item.arguments)
            )
            begun = (
                chat.pop()
                if chat and chat[-1].role == "assistant"
                else ChatMessage(role="assistant")
            )
            chat.append(begun.model_copy(update={"tool_calls": [*(begun.tool_calls or ()), call]}))
        elif isinstance(item, FunctionOutputItem):
            chat.append(ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id))
        elif isinstance(item, ChatMessage):
            chat.append(item)
    return chat


Inputs = Annotated[list[T], Field(max_length=2048)]  # as many as OpenAI takes
Tokens = Annotated[list[int], Field(max_length=100_000)]


class EmbeddingsRequest(LenientRequest):
    """Texts to embed. `model` is an embedding handle, or `default`."""

    model: str = "default"
    input: str | Inputs[str] | Tokens | Inputs[Tokens]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=100_000)


class OpenAIAnswer(ResponseModel):
    """An answer with the fields that OpenAI's reference gives it."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    model: str


class OpenAIModel(ResponseModel):
    """An agent, as a model. `created` is in seconds."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ricordo"


class OpenAIModels(ResponseModel):
    """The agents that the caller may use."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class Embeddings(ResponseModel):
    """Vectors, in the order of their texts: numbers, or base64 of little-endian floats of 32 bits."""

    object: Literal["list"] = "list"
    model: str
    data: list[Json]
    usage: dict[str, int]
