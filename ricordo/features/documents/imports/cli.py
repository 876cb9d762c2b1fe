"""`ricordo import`: bring agents, chats and memories into this installation's database.

The command works on the database itself, with the code of the server. A killed command continues
when it is started again.
"""

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import typer

from ricordo.app import open_in_thread
from ricordo.cli.named_files import require_place, write_file
from ricordo.cli.screen import ProgressLine
from ricordo.domain.job import Report
from ricordo.domain.scope import Scope
from ricordo.features.documents.imports import letta, service
from ricordo.features.documents.imports.letta_tables import LettaTables
from ricordo.features.documents.imports.queries import report_text
from ricordo.features.documents.memory_archives.service import report_of, restore_archive
from ricordo.runtime import Runtime
from ricordo.settings import load_settings

app = typer.Typer(help="Import agents, chats and memories.", no_args_is_help=True)
_REPORT = typer.Option(None, "--report", help="File to write the report to, as JSON.")


@app.command("letta")
def import_letta(
    database: str = typer.Option(
        envvar="LETTA_PG_URI",
        help="Address of the database: postgresql://user:password@host:5432/letta. It is only "
        "read.",
    ),
    organization: str | None = typer.Option(
        None, help="Id of the organization in that database.  [the organization that has agents]"
    ),
    model: str | None = typer.Option(
        None, help="Handle of a model to give to every agent.  [the models that they had]"
    ),
    encryption_key: str | None = typer.Option(
        None,
        envvar="LETTA_ENCRYPTION_KEY",
        help="LETTA_ENCRYPTION_KEY of that server, for the secrets of its agents.",
    ),
    report: Path | None = _REPORT,
) -> None:
    """Import all agents of the retired Letta V1 server 0.16.8.

    Their memory, messages, archives, tools, folders and users are imported too. It can be run
    again.
    """
    tables = LettaTables(database)
    tables.organization = organization

    async def work(runtime: "Runtime", say: "Report") -> dict[str, Any]:
        return await letta.import_letta(
            runtime, Scope(), tables, say, model=model, key=encryption_key
        )

    try:
        _run("Letta", work, report)
    finally:
        tables.close()


def _add_command(kind: str, title: str, noun: str) -> None:
    @app.command(kind, help=f"Import {noun} that {title} exported. Repeatable.")
    def _import_file(
        file: Path = typer.Argument(help="The unchanged export: JSON, or a zip file."),
        user: str | None = typer.Option(
            None,
            help=f"The user who gets the {noun}, by id or name; a new name creates a user.  "
            "[everybody's]",
        ),
        agent: str | None = typer.Option(
            None, help=f"Id of the agent that gets the {noun}.  [one named {title}]"
        ),
        report: Path | None = _REPORT,
    ) -> None:
        async def work(runtime: "Runtime", say: "Report") -> dict[str, Any]:
            target = await service.target_of(
                runtime, await service.scope_for(runtime, user), kind, agent
            )
            with service.opened(file) as stream:
                return await service.import_chats(runtime, target, stream, say)

        _run(title, work, report)


@app.command("memory")
def import_memory(
    file: Path = typer.Argument(help="The memory.zip that a Ricordo server exported."),
    user: str | None = typer.Option(
        None, help="The user who gets the memory, by id or name.  [the archive's user]"
    ),
    report: Path | None = _REPORT,
) -> None:
    """Bring one person's whole memory from another Ricordo server.

    Its history, proposals and facts come with it. The import works only if the user has no memory
    here yet.
    """

    async def work(runtime: "Runtime", say: "Report") -> dict[str, Any]:
        with service.opened(file) as stream:
            restored = await restore_archive(runtime, Scope(), stream, user)
        say(restored.versions, restored.versions)
        return report_of(restored)

    _run("memory", work, report)


for _kind, _title in (("chatgpt", "ChatGPT"), ("claude", "Claude"), ("openwebui", "Open WebUI")):
    _add_command(_kind, _title, "chats")
_add_command("mem0", "mem0", "memories")


@app.command("pasted")
def import_pasted(
    file: Path = typer.Argument(help="The copied text. Each line is one memory."),
    user: str = typer.Option(help="The user, by id or name. A new name creates a user."),
    report: Path | None = _REPORT,
) -> None:
    """Propose the lines of a copied list for one user's memory."""

    async def work(runtime: "Runtime", say: "Report") -> dict[str, Any]:
        target = await service.target_of(
            runtime, await service.scope_for(runtime, user), "pasted", None
        )
        with service.opened(file) as stream:
            return await service.import_chats(runtime, target, stream, say)

    _run("a list", work, report)


def _run(
    name: str,
    work: "Callable[[Runtime, Report], Coroutine[Any, Any, dict[str, Any]]]",
    report_path: Path | None,
) -> None:
    """Do the work on this installation's database, and print the report."""
    if report_path:
        require_place(report_path)
    settings, providers = load_settings()
    progress = ProgressLine()
    with open_in_thread(settings, providers) as (runtime, wait):
        try:
            outcome = wait(work(runtime, lambda count, total: progress.show(name, count, total)))
        finally:
            progress.end()
    typer.echo(report_text(outcome))
    if report_path:
        text = json.dumps(outcome, indent=2, ensure_ascii=False)
        write_file(report_path, f"{text}\n".encode())
