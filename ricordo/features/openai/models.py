"""Request and response models of OpenAI's HTTP API.

Fields without effect here are ignored, as other servers do.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from ricordo.agents.step_decisions import CUT_OFF
from ricordo.api.models.base import Items, RequestModel, RequestPart, ResponseModel
from ricordo.api.models.histories import FilledHistory
from ricordo.domain.model import answer_schema
from ricordo.domain.text import Json
from ricordo.errors import Invalid

_INSTRUCTIONS = "### Task:\nRespond to the user query using the provided context"
T = TypeVar("T")
_LONGEST_SCHEMA = 100_000  # bytes
_PASSAGES = ("<context>", "</context>")


def without_reason(text: str) -> str:
    """Return an answer without `CUT_OFF` at its end, which says why the answer is incomplete.

    The agent did not write that sentence, so it should not read it as its own.

    Args:
        text: The answer as it was sent. It may consist of the sentence alone.
    """
    own_text = text.removesuffix(CUT_OFF)
    return text if own_text == text else own_text.rstrip()


def _passages(text: str) -> str:
    """Remove Open WebUI's instructions about document passages from the beginning of the text."""
    if not text.startswith(_INSTRUCTIONS):
        return text
    return text[max(text.find(_PASSAGES[0]), 0) :]


Text = Annotated[str, AfterValidator(_passages)]


class LenientPart(RequestPart):
    """A part of a request whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class LenientRequest(RequestModel):
    """A request whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    replaces_unstorable = True


class ImageAddress(LenientPart):
    """The address of a picture: `https://…`, or `data:image/png;base64,…`."""

    url: str
    detail: str | None = None


class ContentPart(LenientPart):
    """A piece of a message: text, or a picture."""

    type: str
    text: Text | None = None
    image_url: ImageAddress | str | None = None


class CalledFunction(LenientPart):
    """The function of a call."""

    name: str = ""
    arguments: str = ""


class MadeCall(LenientPart):
    """A call of a client's tool, in an answer that is sent back."""

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
            text = "\n".join(part.text for part in self.content if part.text)
        else:
            text = self.content or ""
        return without_reason(text) if self.role == "assistant" else text

    @property
    def own_text(self) -> str:
        """Return the text without document passages at its beginning.

        Clients look up passages only for the last message.
        """
        text = self.text
        if self.has_passages:
            text = text.rpartition(_PASSAGES[1])[2]
        return text.strip()

    @property
    def has_passages(self) -> bool:
        """True if the message begins with document passages, which may be by other authors."""
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
    """Additional parts of a stream."""

    include_usage: bool = False


class ChatRequest(LenientRequest):
    """A chat to continue. `model` is an agent's name or id."""

    model: str
    messages: FilledHistory[ChatMessage]
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: Items[ToolDefinition] | None = None
    tool_choice: str | Json | None = None
    response_format: Json | None = None
    n: int | None = Field(None, ge=1, le=1)
    user: str | None = Field(None, max_length=1000)
    metadata: dict[str, Any] | None = None

    def answer_format(self) -> Json | None:
        """Return the required form of the answer; None for any text.

        Raises Invalid for an unknown form or a schema that is too long.
        """
        schema = answer_schema(self.response_format)
        if schema is not None and len(orjson.dumps(schema)) > _LONGEST_SCHEMA:
            raise Invalid(
                f"The schema of response_format has more than {_LONGEST_SCHEMA:,} bytes. Shorten "
                "it."
            )
        if schema is None:
            return None
        return self.response_format

    def wanted_tools(self) -> frozenset[str]:
        """Return the tools of which the agent must call one; empty if no call is required.

        Raises Invalid if the choice is malformed or names a tool that the request lacks.
        """
        choice = self.tool_choice
        offered = frozenset(tool.function.name for tool in self.tools or ())
        if choice in (None, "auto", "none"):
            return frozenset()
        is_required = True
        if choice in ("required", "any"):
            names = offered
        elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            # Chats have the tools in an object, responses have them beside the type.
            allowed = choice.get("allowed_tools", choice)
            fields = allowed if isinstance(allowed, dict) else {}
            names = _names(fields.get("tools"))
            is_required = fields.get("mode") == "required"
        else:
            names = _names([choice])
        if not names or not names <= offered:
            raise Invalid(
                "tool_choice names no tool of this request. Send auto, none, required, or one of "
                "the tools."
            )
        return names if is_required else frozenset()

    def named(self, name: str) -> str | None:
        """Return the text under this name in the metadata, or None."""
        text = (self.metadata or {}).get(name)
        if isinstance(text, str) and text:
            return text
        return None


def _names(tools: Any) -> frozenset[str]:
    """Return the functions that a choice names, in the form of chats or responses."""
    names: set[str] = set()
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict):
            continue
        if isinstance(tool.get("function"), dict):
            function = tool["function"]
        else:
            function = tool
        if isinstance(function.get("name"), str):
            names.add(function["name"])
    return frozenset(names)


class _Function(LenientPart):
    type: Literal["function"]


class FunctionTool(FunctionDefinition, _Function):
    """A function that the client runs, in the form of responses."""

    strict: bool | None = None


class FunctionCallItem(LenientPart):
    """A call of a client's function, in an answer that is sent back."""

    type: Literal["function_call"]
    call_id: str
    name: str = ""
    arguments: str = ""


class FunctionOutputItem(LenientPart):
    """The result of one of the client's functions."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: str | Items[ContentPart]


class ReasoningItem(LenientPart):
    """Reasoning in an answer that is sent back; the server has it already."""

    type: Literal["reasoning"]


def _item_kind(input_item: Any) -> str:
    if isinstance(input_item, dict):
        kind = input_item.get("type")
    else:
        kind = getattr(input_item, "type", None)
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
    """A message to an agent, alone or after an earlier response.

    `model` is an agent's name or id.
    """

    model: str
    input: FilledHistory[InputItem] | str
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Items[FunctionTool] | None = None
    tool_choice: str | Json | None = None
    text: AnswerText | None = None
    stream: bool = False
    user: str | None = Field(None, max_length=1000)
    metadata: dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        """Return the request as a chat, with the instructions as its first message.

        Raises Invalid if it has neither instructions nor a message.
        """
        messages = []
        if self.instructions:
            messages.append(ChatMessage(role="system", content=self.instructions))
        if isinstance(self.input, str):
            messages.append(ChatMessage(role="user", content=self.input))
        else:
            messages += _chat_of(self.input)
        if not messages:
            raise Invalid("There is no message in the input. Send one, or a function's result.")
        tools = [ToolDefinition.model_construct(function=tool) for tool in self.tools or ()]
        # Skip validation, since all parts are already validated.
        chat = ChatRequest.model_construct(model=self.model, messages=messages, tools=tools)
        names = ("stream", "user", "metadata", "tool_choice")
        update = {name: getattr(self, name) for name in names}
        return chat.model_copy(update={**update, "response_format": self._response_format()})

    def _response_format(self) -> Json | None:
        """Return the form of the text as chats write it."""
        text_format = self.text.format if self.text else None
        if text_format is None or text_format.get("type") != "json_schema":
            return text_format
        schema = {name: field for name, field in text_format.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}


def _chat_of(input_items: Sequence[InputItem]) -> list[ChatMessage]:
    """Return the messages of a chat, each text with the calls after it."""
    chat: list[ChatMessage] = []
    for input_item in input_items:
        if isinstance(input_item, FunctionCallItem):
            call = MadeCall(
                id=input_item.call_id,
                function=CalledFunction(name=input_item.name, arguments=input_item.arguments),
            )
            message = ChatMessage(role="assistant")
            if chat and chat[-1].role == "assistant":
                message = chat.pop()
            calls = [*(message.tool_calls or ()), call]
            chat.append(message.model_copy(update={"tool_calls": calls}))
        elif isinstance(input_item, FunctionOutputItem):
            chat.append(
                ChatMessage(role="tool", content=input_item.output, tool_call_id=input_item.call_id)
            )
        elif isinstance(input_item, ChatMessage):
            chat.append(input_item)
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
    """An answer with the fields of OpenAI's reference."""

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
    """Vectors, in the order of their texts.

    They are lists of numbers, or base64 of little-endian 32-bit floats.
    """

    object: Literal["list"] = "list"
    model: str
    data: list[Json]
    usage: dict[str, int]
