"""`ricordo skill`: read, import, export, delete and restore skills, and decide on proposals.

A running server does the work. If none runs, the command runs a server in its process.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from ricordo.cli.client import any_server, require_database
from ricordo.cli.named_files import read_file, read_text_file, write_file
from ricordo.cli.screen import printable
from ricordo.errors import Invalid
from ricordo.features.skills.skill import SKILL_FILE, make_skill, name_of
from ricordo.features.skills.zips import from_zip, to_zip

app = typer.Typer(help="Skills of people, agents and the organization.", no_args_is_help=True)
_NAME = typer.Argument(help="The name of the skill.")
_USER = typer.Option(
    None, "--user", help="Skills of this user, by id or name.  [the organization's]"
)
_AGENT = typer.Option(None, "--agent", help="Skills of the agent with this id.")
_SERVER = typer.Option(
    None, "--server", help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]"
)
_WIDTH = 12  # the number of digits of a version's id that are shown


@app.command("list")
def list_skills(
    user: str | None = _USER, agent: str | None = _AGENT, server: str | None = _SERVER
) -> None:
    """List skills by name."""
    with _skills(user, agent, server) as ask:
        lines = [
            f"{skill['name']}  {skill['problem'] or skill['description']}"
            + (f"  {skill['pending']} waiting" if skill["pending"] else "")
            for skill in ask("GET", "")
        ]
    _print(lines or ["No skills."])


@app.command("show")
def show_skill(
    name: str = _NAME,
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """Print a skill: SKILL.md, then its other files."""
    with _skills(user, agent, server) as ask:
        skill = ask("GET", f"/{quote(name)}")
    text = skill["content"]
    if not skill["problem"]:
        text = make_skill(text, skill["files"]).text
    _print(text.removesuffix("\n").split("\n"))


@app.command("import")
def import_skill(
    source: Path = typer.Argument(help="The folder of a skill, or a zip file of it."),
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """Store a skill, which replaces one of the same name."""
    if source.is_dir():
        files = _files_in(source)
        if SKILL_FILE not in files:
            raise Invalid(f"{source} has no file {SKILL_FILE}. Name the folder that holds it.")
        skill = make_skill(files.pop(SKILL_FILE), files, name=source.resolve().name)
    else:
        skill = from_zip(read_file(source))
    body = {"content": skill.content, "files": dict(skill.files)}
    with _skills(user, agent, server) as ask:
        outcome = ask("PUT", f"/{skill.name}", body=body)
    _print([f"{skill.name}: {'proposed' if outcome['proposal'] else 'stored'}"])


def _files_in(folder: Path) -> dict[str, str]:
    """Return the texts of the files below a folder by path, without links. Raises Invalid."""

    def refuse(error: OSError) -> None:
        raise Invalid(f"{error.filename} cannot be read: {error.strerror}.") from error

    # `rglob` would leave out folders that it may not read.
    paths = sorted(
        Path(parent) / name
        for parent, _, names in os.walk(folder, onerror=refuse)
        for name in names
    )
    return {
        path.relative_to(folder).as_posix(): read_text_file(path)
        for path in paths
        if path.is_file() and not path.is_symlink()
    }


@app.command("export")
def export_skill(
    name: str = _NAME,
    file: Path = typer.Argument(help="The zip file to write."),
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """Write a skill as a zip file."""
    with _skills(user, agent, server) as ask:
        skill = ask("GET", f"/{quote(name)}")
    write_file(file, to_zip(make_skill(skill["content"], skill["files"], name=name)))
    _print([f"{file}: written"])


@app.command("delete")
def delete_skill(
    name: str = _NAME,
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """Delete a skill. Its versions stay."""
    with _skills(user, agent, server) as ask:
        ask("DELETE", f"/{quote(name)}")
    _print([f"{name}: deleted"])


@app.command("proposals")
def list_proposals(
    name: str | None = typer.Argument(None, help="The name of one skill.  [all]"),
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """List the waiting proposals with their changes, at most 100."""
    lines: list[str] = []
    with _skills(user, agent, server) as ask:
        path = f"s/{quote(name)}/proposals" if name else "-proposals"
        for proposal in ask("GET", path, stem="skill"):
            skill = name_of(proposal["label"])
            lines.append(
                f"{proposal['id']}  {skill}  by {proposal['author']}  {proposal['reasoning']}"
            )
            lines += [f"  {line}" for line in proposal["diff"].splitlines()]
    _print(lines or ["Nothing waits."])


@app.command("approve")
def approve_proposal(
    name: str = _NAME,
    proposal: str = typer.Argument(help="The id of the proposal."),
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """Approve a proposal: it becomes the next version."""
    _decide("approve", name, proposal, user=user, agent=agent, server=server)


@app.command("reject")
def reject_proposal(
    name: str = _NAME,
    proposal: str = typer.Argument(help="The id of the proposal."),
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """Reject a proposal. The skill stays as it is."""
    _decide("reject", name, proposal, user=user, agent=agent, server=server)


@app.command("history")
def show_history(
    name: str = _NAME,
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """List the newest 50 versions of a skill, newest first."""
    with _skills(user, agent, server) as ask:
        lines = [
            f"{version['sha'][:_WIDTH]}  {version['timestamp']}  {version['author']}  "
            f"{version['message']}"
            for version in ask("GET", f"/{quote(name)}/history")
        ]
    _print(lines)


@app.command("restore")
def restore_skill(
    name: str = _NAME,
    version: str = typer.Argument(
        help="The id of the version, or at least its first seven digits."
    ),
    user: str | None = _USER,
    agent: str | None = _AGENT,
    server: str | None = _SERVER,
) -> None:
    """Restore a version of a skill, with all its files."""
    with _skills(user, agent, server) as ask:
        ask("POST", f"/{quote(name)}/restore", body={"sha": version})
    _print([f"{name}: restored"])


def _decide(decision: str, name: str, proposal: str, **owner: str | None) -> None:
    with _skills(**owner) as ask:
        outcome = ask("POST", f"/{quote(name)}/proposals/{quote(proposal)}/{decision}", body={})
    _print([f"{proposal}: {outcome['status']}"])


@contextmanager
def _skills(
    user: str | None, agent: str | None, server: str | None
) -> Iterator[Callable[..., Any]]:
    """Yield a function that sends requests about this owner's skills. Raises BadParameter."""
    if user and agent:
        raise typer.BadParameter("Name a user or an agent, not both.")
    owner = ""
    if user:
        owner = f"/users/{quote(user, safe='')}"
    elif agent:
        owner = f"/agents/{quote(agent, safe='')}"
    with any_server(
        server, lambda settings: require_database(settings, "no skill to show")
    ) as client:
        yield lambda method, path, stem="skills", **options: client.ask(
            method, f"/v1{owner}/{stem}{path}", **options
        )


def _print(lines: list[str]) -> None:
    # Texts of agents and users must not control the terminal.
    typer.echo("\n".join(printable(line) for line in lines))
