"""`ricordo chat`: a conversation over HTTP, and its slash commands.

It works on a terminal or through a pipe.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import typer

from ricordo.cli.client import Client, Json, any_server
from ricordo.cli.screen import AnswerPrinter, Screen, as_typed, screen, shortened
from ricordo.domain.model import LIBRARIAN
from ricordo.errors import Invalid, NotFound, RicordoError

FIRST_AGENT = "ricordo"
DEFAULT_BLOCKS = {
    "persona": "I am a companion who remembers. I am warm, brief and honest, "
    "and I say so when I do not know something.",
    "human": "",
}


@dataclass(slots=True)
class Chat:
    """A running chat: its agent and its screen."""

    client: Client
    screen: Screen
    agent: Json
    is_over: bool = False


class Command(NamedTuple):
    """A slash command: its argument, its description, and its function."""

    argument: str
    meaning: str
    act: Callable[[Chat, str], None]


def chat(*, agent: str | None = None, model: str | None = None, server: str | None = None) -> bool:
    """Chat until the user leaves; return True if no message and no command failed.

    Args:
        agent: The name or id of an agent. None: the agent "ricordo", which is created if missing.
        model: A model's handle; the agent gets this model if it has another one.
        server: The address of a server; None for the running server of the settings, or a new one
            for this chat.

    Raises:
        RicordoError: The chat cannot start.
    """
    window = screen()
    starting = "No server is running, so one is started for this chat."
    with any_server(server, lambda _: window.quietly(starting)) as client:
        talk = Chat(client, window, _choose_agent(client, agent, model))
        if window.is_live:
            name = talk.agent["name"]
            handle = talk.agent["model"]
            window.tell(
                f"{name} ({handle}) at {client.address}. /help lists the commands, Ctrl-D leaves."
            )
        if better := better_model(client, talk.agent):
            show = window.tell if window.is_live else window.complain
            show(
                f"{better} is configured, but {talk.agent['name']} uses the librarian. Change it "
                f"with: /model {better}"
            )
        return _talk(talk)


def _talk(chat: Chat) -> bool:
    all_answered = True
    while not chat.is_over:
        try:
            line = chat.screen.ask()
        except KeyboardInterrupt:
            if not chat.screen.is_live:
                raise
            chat.screen.end_line()
            chat.screen.quietly("Ctrl-D leaves.")
            continue
        if line is None:
            break
        if line.strip():
            all_answered &= _handle_line(chat, line.strip())
    return all_answered


def _handle_line(chat: Chat, line: str) -> bool:
    """Handle one line; return True if it succeeded. After an error the chat continues."""
    try:
        if line.startswith("/") and not line.startswith("//"):
            run_command(chat, line)
            return True
        return _send_message(chat, line.removeprefix("/") if line.startswith("//") else line)
    except RicordoError as error:
        chat.screen.complain(str(error))
        return False


def _send_message(chat: Chat, text: str) -> bool:
    events = chat.client.send(chat.agent["id"], text)
    try:
        return AnswerPrinter(chat.screen).show(events)
    except KeyboardInterrupt:
        # A turn continues when its reader leaves, so only this request stops it.
        chat.client.ask("POST", f"/v1/agents/{chat.agent['id']}/messages/cancel", body={})
        chat.screen.complain("Stopped.")
        if not chat.screen.is_live:
            raise
        return False


def _choose_agent(client: Client, name_or_id: str | None, model: str | None) -> Json:
    if name_or_id in (None, FIRST_AGENT):
        named = client.agents(FIRST_AGENT)
        agent = named[0] if named else client.create_agent(FIRST_AGENT, DEFAULT_BLOCKS, model)
    else:
        agent = find_agent(client, str(name_or_id))
    return client.change_model(agent["id"], model) if model and agent["model"] != model else agent


def find_agent(client: Client, name_or_id: str) -> Json:
    """Return the agent with this id, else the oldest with this name.

    Args:
        client: The client of a server.
        name_or_id: A name or an id. A name may begin like an id.

    Raises:
        NotFound: There is no such agent.
        RicordoError: The server cannot be reached, or refuses the request.
    """
    if name_or_id.startswith("agent-"):
        try:
            return client.agent(name_or_id)
        except (NotFound, Invalid):
            pass  # a name may begin like an id
    if named := client.agents(name_or_id):
        return named[0]
    raise NotFound(
        f'There is no agent "{name_or_id}". /agents lists them in a chat; /new {name_or_id} '
        "creates it."
    )


def better_model(client: Client, agent: Json) -> str | None:
    """Return the default model, if the agent uses the librarian and a model is configured.

    Otherwise return None.

    Args:
        client: The client of a server.
        agent: The agent, as the server answers it.
    """
    default = client.default_model() if agent["model"] == LIBRARIAN else None
    return default if default != LIBRARIAN else None


def set_model(name_or_id: str, handle: str | None, server: str | None) -> None:
    """Show an agent's model, or change it.

    Args:
        name_or_id: The name or id of the agent.
        handle: The handle of the new model; None or "" only shows the current one.
        server: The address of a server; None for the running server of the settings, or a new one
            for this command.

    Raises:
        NotFound: There is no such agent or model.
        RicordoError: The server cannot be reached or started, or refuses the change.
    """
    with any_server(server, lambda _: None) as client:
        agent = find_agent(client, name_or_id)
        if handle:
            agent = client.change_model(agent["id"], handle)
        typer.echo(f"{agent['name']} uses {agent['model']}.")
        if better := better_model(client, agent):
            command = f"`ricordo agent model {shlex.quote(name_or_id)} {better}`"
            typer.echo(as_typed(f"{better} is configured. Use it with {command}."))


def run_command(chat: Chat, line: str) -> None:
    """Run a slash command.

    Args:
        chat: The running chat.
        line: The line with its slash: the command's name, then its argument.

    Raises:
        Invalid: There is no such command, or its argument is missing.
        RicordoError: The server refused the request.
    """
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        raise Invalid(
            f"There is no /{name}. /help lists the commands; // begins a message with a slash."
        )
    argument = argument.strip()
    if command.argument.isupper() and not argument:
        raise Invalid(f"/{name} needs more: /{name} {command.argument}")
    command.act(chat, argument)


def _help(chat: Chat, _argument: str) -> None:
    for name, command in COMMANDS.items():
        chat.screen.tell(f"{f'/{name} {command.argument}':<18}{command.meaning}")
    chat.screen.tell("Ctrl-C stops an answer, Ctrl-D leaves. // begins a message with a slash.")


def _agents(chat: Chat, _argument: str) -> None:
    for agent in chat.client.agents():
        mark = "*" if agent["id"] == chat.agent["id"] else " "
        chat.screen.tell(f"{mark} {agent['name']}  {agent['model']}  {agent['id']}")


def _agent(chat: Chat, name_or_id: str) -> None:
    chat.agent = find_agent(chat.client, name_or_id)
    chat.screen.tell(f"You talk with {chat.agent['name']} now ({chat.agent['model']}).")


def _new(chat: Chat, name: str) -> None:
    chat.agent = chat.client.create_agent(name, DEFAULT_BLOCKS)
    chat.screen.tell(f"Created {name} ({chat.agent['model']}). You talk with it now.")


def _blocks(chat: Chat, _argument: str) -> None:
    for block in _read_blocks(chat):
        size = f"{len(block['value'])} of {block['limit']} characters"
        chat.screen.tell(
            f"{block['label']}  {size}  {shortened(block['description'] or '')}".rstrip()
        )


def _block(chat: Chat, label: str) -> None:
    blocks = _read_blocks(chat)
    value = next((block["value"] for block in blocks if block["label"] == label), None)
    if value is None:
        labels = ", ".join(block["label"] for block in blocks) or "none"
        raise NotFound(f'{chat.agent["name"]} has no block "{label}". It has: {labels}.')
    chat.screen.tell(value or "(empty)")


def _model(chat: Chat, handle: str) -> None:
    if handle:
        chat.agent = chat.client.change_model(chat.agent["id"], handle)
        chat.screen.tell(f"{chat.agent['name']} now uses {chat.agent['model']}.")
        return
    current = chat.client.agent(chat.agent["id"])["model"]
    models = chat.client.ask("GET", "/v1/models/")
    for listed in sorted({current, *(model["handle"] for model in models)}):
        chat.screen.tell(f"{'*' if listed == current else ' '} {listed}")


def _search(chat: Chat, query: str) -> None:
    path = f"/v1/agents/{chat.agent['id']}/archival-memory/search"
    answer = chat.client.ask("GET", path, query={"query": query})
    passages = [passage for passage in answer["results"] if passage["relevance"]["matches_well"]]
    for passage in passages:
        tags = f"  [{', '.join(passage['tags'])}]" if passage["tags"] else ""
        chat.screen.tell(f"{passage['timestamp'][:10]}  {passage['content']}{tags}")
    count = "Nothing found in the archive"
    if passages:
        count = f"{len(passages)} found in the archive, best first"
    chat.screen.tell(f"{count}. To search what was said, ask {chat.agent['name']} about it.")


def _reset(chat: Chat, argument: str) -> None:
    name = chat.agent["name"]
    question = (
        f"Delete every message of {name}? Its blocks and its archive stay. "
        "(/reset yes does not ask.)"
    )
    if argument.lower() != "yes" and not chat.screen.confirm(question):
        return
    chat.client.ask("PATCH", f"/v1/agents/{chat.agent['id']}/reset-messages")
    chat.screen.tell(f"The messages of {name} are deleted. Its memory is unchanged.")


def _quit(chat: Chat, _argument: str) -> None:
    chat.is_over = True


def _read_blocks(chat: Chat) -> list[Json]:
    return list(chat.client.agent(chat.agent["id"])["memory"]["blocks"])


COMMANDS = {
    "help": Command("", "this list", _help),
    "agents": Command("", "list the agents; * is the current one", _agents),
    "agent": Command("NAME", "talk with another agent, by name or id", _agent),
    "new": Command("NAME", "create an agent and talk with it", _new),
    "blocks": Command("", "list its memory blocks and their sizes", _blocks),
    "block": Command("LABEL", "read one block", _block),
    "model": Command("[handle]", "list the models, or change its model", _model),
    "search": Command("WORDS", "search its archive", _search),
    "reset": Command("", "delete its messages (asks first)", _reset),
    "quit": Command("", "leave", _quit),
}
