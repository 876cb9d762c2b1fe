"""The slash commands of `ricordo chat`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ricordo.cli.client import Client, Json
from ricordo.cli.screen import Screen, shortened
from ricordo.errors import Invalid, NotFound

DEFAULT_BLOCKS = {
    "persona": "I am a companion who remembers. I am warm, brief and honest, and I say so when I do not know something.",
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


def find_agent(client: Client, name_or_id: str) -> Json:
    """Return the agent with this id, else the oldest with this name. Raises NotFound."""
    if name_or_id.startswith("agent-"):
        try:
            return client.agent(name_or_id)
        except (NotFound, Invalid):
            pass  # a name may begin like an id
    if named := client.agents(name_or_id):
        return named[0]
    raise NotFound(f'There is no agent "{name_or_id}". /agents lists them in a chat; /new {name_or_id} creates it.')


def run_command(chat: Chat, line: str) -> None:
    """Run a slash command. Raises Invalid for an unknown one."""
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        raise Invalid(f"There is no /{name}. /help lists the commands; // begins a message with a slash.")
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
        chat.screen.tell(f"{block['label']}  {size}  {shortened(block['description'] or '')}".rstrip())


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
    for known in sorted({current, *chat.client.models()}):
        chat.screen.tell(f"{'*' if known == current else ' '} {known}")


def _search(chat: Chat, words: str) -> None:
    results = chat.client.search(chat.agent["id"], words)
    for result in results:
        tags = f"  [{', '.join(result['tags'])}]" if result["tags"] else ""
        chat.screen.tell(f"{result['timestamp'][:10]}  {result['content']}{tags}")
    found = f"{len(results)} found" if results else "Nothing found"
    chat.screen.tell(f"{found} in the archive, best first. To search what was said, ask {chat.agent['name']} about it.")


def _reset(chat: Chat, argument: str) -> None:
    name = chat.agent["name"]
    question = f"Delete every message of {name}? Its blocks and its archive stay. (/reset yes does not ask.)"
    if argument.lower() != "yes" and not chat.screen.confirm(question):
        return
    chat.client.reset(chat.agent["id"])
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
