"""Request and response models of OpenAI's HTTP API. Fields that change nothing here are ignored, as other servers do."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from ricordo.api.models.base import Items, Json, RequestModel, RequestPart, ResponseModel

_INSTRUCTIONS = "### Task:\nRespond to the user query using the provided context"
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
        text = self.text
        return (text.rpartition(_PASSAGES[1])[2] if text.startswith(_PASSAGES[0]) else text).strip()


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
    n: int | None = Field(None, ge=1, le=1)
    user: str | None = Field(None, max_length=1000)
    metadata: dict[str, Any] | None = None

    def named(self, name: str) -> str | None:
        """Return this text of the metadata; None where there is none."""
        value = (self.metadata or {}).get(name)
        return value if isinstance(value, str) and value else None


class ResponsesRequest(LenientRequest):
    """What is said to an agent, alone or after an earlier response. `model` is an agent's name or id."""

    model: str
    input: str | Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool = False
    user: str | None = Field(None, max_length=1000)
    metadata: dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        """Return the same as a chat, the instructions as its first message."""
        said = [ChatMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        first = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        chat = ChatRequest.model_construct(model=self.model, messages=[*first, *said])  # all of it was checked
        return chat.model_copy(update={"stream": self.stream, "user": self.user, "metadata": self.metadata})


class EmbeddingsRequest(LenientRequest):
    """Texts to embed. `model` is an embedding handle, or `default`."""

    model: str = "default"
    input: str | Items[str]
    encoding_format: Literal["float", "base64"] = "float"


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
