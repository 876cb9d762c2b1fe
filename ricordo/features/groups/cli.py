"""`ricordo group`: list groups, show one, and talk with it.

If no server runs, one is started for the command.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from ricordo.cli.client import Client, any_server
from ricordo.cli.screen import AnswerPrinter, printable, screen, shortened
from ricordo.errors import Invalid, NotFound

Json = dict[str, Any]
app = typer.Typer(help="Groups of agents that talk together.", no_args_is_help=True)
_SERVER = typer.Option(None, help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]")
_WHICH = typer.Argument(help="Id of the group, or its description.")
# The settings that `show` lists if they are set.
_SETTINGS = {
    "max_turns": "turns at most",
    "termination_token": "ends with",
    "sleeptime_agent_frequency": "works after this number of turns",
    "max_message_buffer_length": "messages in view at most",
    "min_message_buffer_length": "messages that stay in view",
}


@app.command("list")
def list_groups(server: str | None = _SERVER) -> None:
    """List the groups, the oldest first."""
    with any_server(server, lambda _settings: None) as client:
        groups = _all_groups(client)
        names = {agent["id"]: agent["name"] for agent in client.agents()} if groups else {}
    for group in groups:
        members = ", ".join(names.get(id, id) for id in group["agent_ids"])
        manager = group["manager_agent_id"]
        manager_part = f", led by {names.get(manager, manager)}" if manager else ""
        about = shortened(group["description"], 60)
        typer.echo(
            printable(
                f"{group['id']}  {group['manager_type']:<11} {about} ({members}{manager_part})"
            )
        )
    if not groups:
        typer.echo("There are no groups.", err=True)


@app.command("show")
def show_group(group: str = _WHICH, server: str | None = _SERVER) -> None:
    """Show a group with its members and its last messages."""
    with any_server(server, lambda _settings: None) as client:
        details = _group(client, group)
        names = _names(client, details)
        recent = client.ask(
            "GET", f"/v1/groups/{details['id']}/messages", query={"limit": 20, "order": "desc"}
        )
    lines = [f"{details['id']}  {details['manager_type']}", details["description"]]
    lines += [f"member   {names[id]}  {id}" for id in details["agent_ids"]]
    if manager := details["manager_agent_id"]:
        lines.append(f"manager  {names[manager]}  {manager}")
    lines += [
        f"{title}: {details[name]}"
        for name, title in _SETTINGS.items()
        if details[name] is not None
    ]
    lines += [line for message in reversed(recent) for line in _spoken(message)]
    for line in lines:
        typer.echo(printable(line))


@app.command("say")
def say(
    group: str = _WHICH,
    message: str = typer.Argument(help="What to say."),
    server: str | None = _SERVER,
) -> None:
    """Send a message to a group, and show the answers."""
    body = {"messages": [{"role": "user", "content": message}]}
    with any_server(server, lambda _settings: None) as client:
        path = f"/v1/groups/{_group(client, group)['id']}/messages/stream"
        is_answered = AnswerPrinter(screen()).show(_with_names(client.events_of(path, body, {})))
    raise typer.Exit(0 if is_answered else 1)


def _with_names(events: Iterator[str]) -> Iterator[Json]:
    """Yield the events of an answer, with the speaker's name before each message."""
    for text in events:
        if text == "[DONE]":
            return
        event: Json = json.loads(text)
        if event.get("message_type") == "assistant_message" and event.get("name"):
            event["content"] = f"{event['name']}: {_text(event['content'])}"
        if "message_type" in event:
            yield event


def _spoken(message: Mapping[str, Any]) -> list[str]:
    """Return a message as a line of text, if people read such messages."""
    speakers = {
        "user_message": message.get("name") or "user",
        "assistant_message": message.get("name") or "agent",
    }
    speaker = speakers.get(str(message["message_type"]))
    return [f"{speaker}: {_text(message['content'])}"] if speaker else []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def _group(client: "Client", name: str) -> Json:
    """Return the group with this id or description. Raises NotFound, Invalid."""
    if name.startswith("group-"):
        group: Json = client.ask("GET", f"/v1/groups/{name}")
        return group
    matches = [group for group in _all_groups(client) if group["description"] == name]
    if not matches:
        raise NotFound(f'There is no group "{name}". List them with: ricordo group list')
    if len(matches) > 1:
        raise Invalid(
            f'{len(matches)} groups have the description "{name}". Name one by its id: ricordo '
            "group list"
        )
    return matches[0]


def _all_groups(client: "Client") -> list[Json]:
    groups: list[Json] = []
    query: Json = {"limit": 100, "order": "asc"}
    while page := client.ask("GET", "/v1/groups/", query=query):
        groups += page
        query["after"] = page[-1]["id"]
    return groups


def _names(client: "Client", group: Json) -> dict[str, str]:
    ids = [id for id in (*group["agent_ids"], group["manager_agent_id"]) if id]
    return {id: client.agent(id)["name"] for id in ids}
