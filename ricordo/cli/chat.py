"""`ricordo chat`: a conversation with an agent over HTTP, on a terminal or through a pipe."""

from collections.abc import Iterator
from contextlib import contextmanager

from ricordo.cli.answer import AnswerPrinter
from ricordo.cli.client import Client, Json, key_of, running_server
from ricordo.cli.commands import DEFAULT_BLOCKS, Chat, find_agent, run_command
from ricordo.cli.screen import Screen, screen
from ricordo.errors import RicordoError
from ricordo.settings import ProviderSettings, Settings, load_settings

FIRST_AGENT = "ricordo"


def chat(*, agent: str | None = None, model: str | None = None, server: str | None = None) -> bool:
    """Chat until the user leaves; returns whether every message was answered. Raises RicordoError if it cannot start."""
    settings, providers = load_settings()
    window = screen()
    with _server(settings, providers, server, window) as client:
        talk = Chat(client, window, _choose(client, agent, model))
        if window.is_live:
            name, handle = talk.agent["name"], talk.agent["model"]
            window.tell(f"{name} ({handle}) at {client.address}. /help lists the commands, Ctrl-D leaves.")
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
            all_answered &= _take(chat, line.strip())
    return all_answered


def _take(chat: Chat, line: str) -> bool:
    """Handle one line; returns whether it succeeded. An error ends the line, not the chat."""
    try:
        if line.startswith("/") and not line.startswith("//"):
            run_command(chat, line)
            return True
        return _say(chat, line.removeprefix("/") if line.startswith("//") else line)
    except RicordoError as error:
        chat.screen.complain(str(error))
        return False


def _say(chat: Chat, text: str) -> bool:
    events = chat.client.send(chat.agent["id"], text)
    try:
        return AnswerPrinter(chat.screen).show(events)
    except KeyboardInterrupt:
        # A turn continues when its reader leaves; only this stops it.
        chat.client.cancel(chat.agent["id"])
        chat.screen.complain("Stopped.")
        if not chat.screen.is_live:
            raise
        return False


def _choose(client: Client, name_or_id: str | None, model: str | None) -> Json:
    if name_or_id in (None, FIRST_AGENT):
        named = client.agents(FIRST_AGENT)
        agent = named[0] if named else client.create_agent(FIRST_AGENT, DEFAULT_BLOCKS, model)
    else:
        agent = find_agent(client, str(name_or_id))
    return client.change_model(agent["id"], model) if model and agent["model"] != model else agent


@contextmanager
def _server(settings: Settings, providers: ProviderSettings, address: str | None, window: Screen) -> Iterator[Client]:
    with running_server(Client, settings, address) as client:
        if client:
            yield client
            return
    # Slow to load, and needed only where no server runs.
    from ricordo.cli.background import background_server

    window.quietly("No server is running, so one is started for this chat.")
    with background_server(settings, providers) as own:
        client = Client(own, key_of(settings))
        try:
            yield client
        finally:
            client.close()
