"""The tools of an MCP client: API calls with its key's rights."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Request
from pydantic import Field, ValidationError

from ricordo.api.call import RequestContext
from ricordo.domain.model import ToolSchema
from ricordo.domain.scope import NOBODY, REQUEST_SCOPE
from ricordo.errors import Invalid
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.tools.presentation import given_arguments
from ricordo.tools.toolbox import arguments_model, describe

Json = dict[str, Any]
_CUT = 4_000  # characters of one message or passage that a search shows
_MOST_AGENTS = 50
_VERSION_DIGITS = 12  # of a version's id
Label = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=50_000)]
_AgentName = Annotated[str, Field(max_length=300)]


class Memory:
    """Access to one person's memory for the client of a request.

    A client acts as a service for its key's person. Its writes obey the policies of blocks, and it
    approves nothing. So a change that needs the owner's approval waits, even if the key itself may
    approve.
    """

    def __init__(self, request: Request, context: RequestContext) -> None:
        scope = context.scope
        if scope.subject_id:
            self.user_id = scope.subject
        else:
            self.user_id = scope.user_id
        allowed = frozenset(name for name in scope.scopes if name.endswith((":read", ":write")))
        self.scopes = allowed - {"users:read", "users:write", "providers:read", "providers:write"}
        narrowed = replace(
            scope,
            role="service",
            caller="an MCP client",
            subject_id=self.user_id or NOBODY,
            scopes=self.scopes,
            reach=None,  # a token's limit to this path was already checked
        )
        inner = Request({**request.scope, REQUEST_SCOPE: narrowed})
        self._api = Api(inner, user="")

    async def get(self, path: str, **query: Any) -> Any:
        """Return the answer of the API to a read, with the client's rights.

        Args:
            path: The path, such as "/v1/agents/".
            **query: The parameters of the query.

        Raises:
            RicordoError: The API refuses; the message is its sentence.
        """
        return await self._api.get(path, **query)

    async def send(self, method: str, path: str, body: Json) -> Any:
        """Send a request to the API with the client's rights, and return the answer.

        Args:
            method: "POST" or "PUT".
            path: The path, such as "/v1/messages/search".
            body: The body, as a value for JSON.

        Raises:
            RicordoError: The API refuses; the message is its sentence.
        """
        return await self._api.ask(method, path, body)

    def block(self, label: str, rest: str = "") -> str:
        """Return the path of one of the person's blocks.

        Args:
            label: The block's label, not encoded; "" for all blocks.
            rest: The end of the path, such as "/propose".

        Raises:
            Invalid: if the key belongs to no person.
        """
        # `Api` takes unencoded paths.
        blocks = f"/users/{self._person}/blocks"
        if label:
            return f"{blocks}/{label}{rest}"
        return f"{blocks}{rest}"

    @property
    def profile_path(self) -> str:
        """The path of the person's profile. Raises Invalid if the key belongs to no person."""
        return f"/v1/users/{self._person}/profile"

    @property
    def _person(self) -> str:
        if self.user_id is None:
            raise Invalid(
                "This key belongs to a service. Name the user in the header X-Ricordo-User."
            )
        return self.user_id

    async def agent(self, name: str) -> Json:
        """Return the agent of this name or id, or the only agent if the name is empty.

        Args:
            name: The name or id of an agent; "" for the only agent that the client sees.

        Raises:
            Invalid: No agent, or several, have the name.
            RicordoError: The API refuses, as for an unknown id.
        """
        if name.startswith("agent-"):
            agent: Json = await self.get(f"/v1/agents/{quote(name, safe='')}")
            return agent
        name_filter = {"name": name} if name else {}
        agents = await self.get("/v1/agents/", limit=_MOST_AGENTS, **name_filter)
        if len(agents) != 1:
            problem = f"There are {len(agents)} agents"
            if name:
                problem = f'{len(agents)} agents are named "{name}"'
            raise Invalid(f"{problem}. Name one by its id; list_agents shows them.")
        return dict(agents[0])


async def list_agents(memory: Memory) -> str:
    """List the agents of this server that you can ask, with their ids."""
    agents = await memory.get("/v1/agents/", limit=_MOST_AGENTS)
    lines = [
        f"{agent['name']} ({agent['id']}): {agent['description'] or 'no description'}"
        for agent in agents
    ]
    return "\n".join(lines) or "There is no agent yet."


async def read_memory(memory: Memory, label: Annotated[str, Field(max_length=200)] = "") -> str:
    """Read the remembered facts about the person you talk with.

    Returns all blocks of their memory, or one.

    Args:
        label: The label of one block. Left out: all of them.
    """
    path = memory.block(label)
    if label:
        blocks = [await memory.get(path)]
    else:
        blocks = await memory.get(path)
    return "\n\n".join(map(_shown, blocks)) or "Nothing is remembered yet."


def _shown(block: Json) -> str:
    if block["pending"]:
        waiting = f", proposals that wait for the owner: {block['pending']}"
    else:
        waiting = ""
    if block["description"]:
        about = f"{block['description']}\n"
    else:
        about = ""
    if block["version"]:
        version = f", version {block['version'][:_VERSION_DIGITS]}"
    else:
        version = ""
    header = f"# {block['label']} (policy {block['policy']}{version}{waiting})"
    return f"{header}\n{about}{block['body']}"


async def search_memory(
    memory: Memory,
    query: Text,
    agent: _AgentName = "",
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> str:
    """Search conversations with agents and their archives, by words and by meaning.

    Args:
        query: What to look for.
        agent: The name or id of an agent. Left out: all agents.
        limit: How many messages, and how many passages at most.
    """
    body: Json = {"query": query, "limit": limit}
    if agent:
        body["agent_id"] = (await memory.agent(agent))["id"]
    lines = []
    matches_well = False
    for hit in await memory.send("POST", "/v1/messages/search", body):
        matches_well = matches_well or hit["relevance"]["matches_well"]
        speaker = hit["message_type"].removesuffix("_message")
        lines.append(
            f"[message {hit['message_id']}, {hit['created_at']}, {speaker}] {hit['content'][:_CUT]}"
        )
    if "archives:read" in memory.scopes:
        for hit in await memory.send("POST", "/v1/passages/search", body):
            passage = hit["passage"]
            matches_well = matches_well or hit["relevance"]["matches_well"]
            lines.append(
                f"[passage {passage['id']}, {passage['created_at']}] {passage['text'][:_CUT]}"
            )
    if lines and not matches_well:
        lines.insert(0, "Nothing was found that matches well. The nearest results:")
    return "\n".join(lines) or "Nothing was found."


async def remember(
    memory: Memory,
    text: Text,
    agent: _AgentName = "",
    tags: Annotated[list[str] | None, Field(max_length=20)] = None,
) -> str:
    """Keep a text in an agent's archive, where searches find it.

    It is in no prompt until it is searched for.

    Args:
        text: The text to keep.
        agent: The name or id of the agent. It can be left out where there is only one.
        tags: Words to find it by later.
    """
    keeper = await memory.agent(agent)
    (passage,) = await memory.send(
        "POST", f"/v1/agents/{keeper['id']}/archival-memory", {"text": text, "tags": tags or []}
    )
    return f"Stored as {passage['id']} in the archive of {keeper['name']}."


async def write_memory(
    memory: Memory,
    label: Label,
    text: Text,
    reason: Annotated[str, Field(max_length=500)],
    version: Annotated[str, Field(max_length=40)] = "",
) -> str:
    """Write the whole text of a block of the person's memory.

    If its owner wants to approve changes, this proposes it. Send the version that you read: then
    changes that others made since are kept, and a write that contradicts them is refused.

    Args:
        label: The block's label, such as `human` or `projects/thesis`. A new label makes a new
            block.
        text: The whole new text.
        reason: Why, in a sentence. The owner reads it.
        version: The version that read_memory showed for this block. Left out: the text replaces
            whatever is there now.
    """
    body: Json = {"body": text, "message": reason}
    if version:
        body["version"] = version
    answer = await memory.send("PUT", memory.block(label), body)
    if "diff" in answer or answer.get("proposal_id"):
        return "It was proposed to the owner, who decides. Nothing has changed yet."
    return f"{label} was written, as version {answer['version']}."


async def propose_memory(
    memory: Memory,
    label: Label,
    old_text: Annotated[str, Field(max_length=50_000)],
    new_text: Annotated[str, Field(max_length=50_000)],
    reason: Annotated[str, Field(max_length=500)],
) -> str:
    """Propose a change of one piece of a block.

    It changes nothing until the owner approves it.

    Args:
        label: The block's label.
        old_text: The piece that is there now, word for word. Empty: the new text is added at the
            end.
        new_text: The text for its place.
        reason: Why, in a sentence. The owner reads it.
    """
    if not old_text and "memory:read" in memory.scopes:
        old_text, new_text = await _addition(memory, label, new_text)
    body = {"old_string": old_text, "new_string": new_text, "reasoning": reason}
    try:
        await memory.send("POST", memory.block(label, "/propose"), body)
    except RefusedByApi as error:
        # The sentence is about the fields of the HTTP API.
        message = str(error).replace(", or set replace_all", "")
        message = message.replace("old_string", "old_text").replace("new_string", "new_text")
        raise Invalid(message) from None
    return "It was proposed to the owner, who decides. Nothing has changed yet."


async def _addition(memory: Memory, label: str, new_text: str) -> tuple[str, str]:
    """Return the old and the new piece of an edit that adds the text at the block's end."""
    try:
        text = str((await memory.get(memory.block(label)))["body"])
    except RefusedByApi as error:
        if error.status != 404:
            raise
        return "", new_text
    if not text.strip():
        return text, new_text
    lines = text.rstrip().split("\n")
    ends = ("\n".join(lines[-count:]) for count in range(1, len(lines) + 1))
    old_text = next(end for end in ends if text.count(end) == 1)
    return old_text, f"{old_text}\n{new_text}"


async def ask_agent(memory: Memory, message: Text, agent: _AgentName = "") -> str:
    """Say something to an agent of this server, and return its answer.

    The agent remembers the conversation.

    Args:
        message: What to say.
        agent: The name or id of the agent. It can be left out where there is only one.
    """
    partner = await memory.agent(agent)
    answer = await memory.send("POST", f"/v1/agents/{partner['id']}/messages", {"input": message})
    texts = [
        str(part["content"])
        for part in answer["messages"]
        if part["message_type"] == "assistant_message"
    ]
    if text := "\n".join(texts):
        return text
    if any(part["message_type"] == "approval_request_message" for part in answer["messages"]):
        return "One of its tool calls waits for approval."
    return "It said nothing."


@dataclass(frozen=True, slots=True)
class MemoryTool:
    """A tool of the MCP server; a key needs all of `scopes` to use it."""

    run: Callable[..., Awaitable[str]]
    scopes: tuple[str, ...]
    is_destructive: bool = False

    @property
    def reads(self) -> bool:
        """True if the tool changes nothing."""
        return all(scope.endswith(":read") for scope in self.scopes)


TOOLS: Mapping[str, MemoryTool] = {
    tool.run.__name__: tool
    for tool in (
        MemoryTool(list_agents, ("agents:read",)),
        MemoryTool(read_memory, ("memory:read",)),
        MemoryTool(search_memory, ("messages:read",)),
        MemoryTool(propose_memory, ("memory:write",)),
        MemoryTool(write_memory, ("memory:write",), is_destructive=True),
        MemoryTool(remember, ("agents:read", "archives:write")),
        MemoryTool(ask_agent, ("agents:read", "messages:write")),
    )
}
_ARGUMENTS = {name: arguments_model(tool.run) for name, tool in TOOLS.items()}


def offered(memory: Memory) -> dict[str, MemoryTool]:
    """Return the tools that the client's key allows.

    Args:
        memory: The memory of the client's person, with the key's scopes.
    """
    return {name: tool for name, tool in TOOLS.items() if set(tool.scopes) <= memory.scopes}


def schema_of_tool(name: str) -> ToolSchema:
    """Return the name, description and parameters that clients see.

    Args:
        name: A key of `TOOLS`.
    """
    return describe(TOOLS[name].run, _ARGUMENTS[name])


async def call(memory: Memory, name: str, arguments: Mapping[str, Any]) -> str:
    """Run a tool.

    Args:
        memory: The memory of the client's person.
        name: The tool's name, as the client sent it.
        arguments: The arguments, not yet checked.

    Raises:
        Invalid: if the client may not call the tool, or the arguments do not fit.
        RicordoError: with the API's sentence, if the API refuses.
    """
    tool = offered(memory).get(name)
    if tool is None:
        reason = "there is no such tool"
        if name in TOOLS:
            reason = "the key of this client does not allow it"
        raise Invalid(f'The tool "{name[:80]}" cannot be called: {reason}.')
    try:
        checked = _ARGUMENTS[name].model_validate(given_arguments(arguments, schema_of_tool(name)))
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5]
        )
        raise Invalid(f"The arguments do not fit. {faults}") from None
    keywords = {
        str(field.alias): getattr(checked, name)
        for name, field in type(checked).model_fields.items()
    }
    return await partial(tool.run, memory)(**keywords)
