"""Request and response models of OpenAI's HTTP API. Fields that change nothing here are ignored, as other servers do."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from ricordo.api.models.base import Items, Json, RequestModel, RequestPart, ResponseModel

_LENIENT = ConfigDict(extra="ignore")


class ImageAddress(RequestPart):
    """Where a picture lies: `https://…`, or `data:image/png;base64,…`."""

    model_config = _LENIENT

    url: str
    detail: str | None = None


class ContentPart(RequestPart):
    """A piece of a message: text, or a picture."""

    model_config = _LENIENT

    type: str
    text: str | None = None
    image_url: ImageAddress | str | None = None


class CalledFunction(RequestPart):
    """Which function was called."""

    model_config = _LENIENT

    name: str = ""
    arguments: str = ""


class MadeCall(RequestPart):
    """A call of one of the client's tools, in an answer that is sent back."""

    model_config = _LENIENT

    id: str
    function: CalledFunction = CalledFunction()


class ChatMessage(RequestPart):
    """One message of a chat."""

    model_config = _LENIENT

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[ContentPart] | None = None
    tool_calls: Items[MadeCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.text)
        return self.content or ""


class FunctionDefinition(RequestPart):
    """A function that the client runs."""

    model_config = _LENIENT

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    parameters: Json | None = None


class ToolDefinition(RequestPart):
    """A tool that the client runs."""

    model_config = _LENIENT

    type: Literal["function"] = "function"
    function: FunctionDefinition


class StreamOptions(RequestPart):
    """What a stream has besides."""

    model_config = _LENIENT

    include_usage: bool = False


class ChatRequest(RequestModel):
    """A chat to go on with. `model` is an agent's name or id."""

    model_config = _LENIENT

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


class EmbeddingsRequest(RequestModel):
    """Texts to embed. `model` is an embedding handle, or `default`."""

    model_config = _LENIENT

    model: str = "default"
    input: str | Items[str]
    encoding_format: Literal["float", "base64"] = "float"


class FunctionOutput(ResponseModel):
    """Which function the client has to call."""

    name: str
    arguments: str


class CallOutput(ResponseModel):
    """A call that the client has to make."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionOutput


class AnswerMessage(ResponseModel):
    """What the agent answered."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[CallOutput] | None = None
    refusal: str | None = None


class Choice(ResponseModel):
    """The one answer."""

    index: int = 0
    message: AnswerMessage
    finish_reason: str
    logprobs: Json | None = None


class TokenUsage(ResponseModel):
    """The tokens of a turn, of all its steps."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Json
    completion_tokens_details: Json


class ChatCompletion(ResponseModel):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: TokenUsage


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


class Embedding(ResponseModel):
    """The vector of one text: numbers, or base64 of little-endian floats of 32 bits."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(ResponseModel):
    """Vectors, in the order of their texts."""

    object: Literal["list"] = "list"
    model: str
    data: list[Embedding]
    usage: dict[str, int]
