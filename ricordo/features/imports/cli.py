"""`ricordo import letta`: agents with all of their history from a database of the retired server, and a report."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ricordo.features.imports.letta import ImportReport

app = typer.Typer(help="Take in what you have elsewhere.", no_args_is_help=True)
_MOST_SHOWN = 30


@app.callback()
def _group() -> None:
    """Let the one command have its name."""


@app.command("letta")
def import_letta(
    database: str = typer.Option(..., "--database", help="postgresql://user:password@host/letta. It is only read."),
    organization: str | None = typer.Option(None, "--organization", help="Which one, where the database has several."),
    model: str | None = typer.Option(None, "--model", help="A model's handle for all agents, in place of their own."),
    encryption_key: str | None = typer.Option(
        None, "--encryption-key", envvar="LETTA_ENCRYPTION_KEY", help="That server's key, to bring secrets along."
    ),
    report: Path | None = typer.Option(None, "--report", help="Write the whole report here, as JSON."),
) -> None:
    """Take in all agents of the retired Letta V1 server 0.16.8.

    They come with blocks, messages, archives, tools, files and users.
    All that is taken keeps its id, so programs go on. Run it again after a break: what is here already is passed over. Stop the
    server first.
    """
    import asyncio
    import json

    from fastapi import Request

    from ricordo.api.call import RequestContext
    from ricordo.app import open_runtime
    from ricordo.cli.client import set_up_quiet_logs
    from ricordo.cli.screen import ProgressLine
    from ricordo.domain.scope import Scope
    from ricordo.features.imports.letta import LettaImport, LettaOptions
    from ricordo.features.imports.source import open_source
    from ricordo.settings import load_settings

    settings, providers = load_settings()
    set_up_quiet_logs(settings)
    progress = ProgressLine()

    async def run() -> "ImportReport":
        async with open_runtime(settings, providers) as runtime:
            await runtime.organization_providers.of(Scope().organization_id)
            here = RequestContext(Request({"type": "http"}), runtime, Scope())
            with open_source(database, organization) as source:
                return await LettaImport(here, source, LettaOptions(model, encryption_key)).run(progress.show)

    try:
        done = asyncio.run(run())
    finally:
        progress.end()
    if report:
        report.write_text(json.dumps(done.to_json(), indent=2, ensure_ascii=False) + "\n", "utf-8")
    for line in lines_of(done):
        typer.echo(line)


def lines_of(done: "ImportReport") -> list[str]:
    """Return the report for people."""
    lines = [f"Taken: {', '.join(f'{count:,} {kind}' for kind, count in done.taken.items()) or 'nothing'}."]
    if done.known:
        lines.append(f"Here already: {', '.join(f'{count:,} {kind}' for kind, count in done.known.items())}.")
    if done.left:
        lines += ["Left out:", *(f"  {one['kind']}: {one['name']}: {one['why']}" for one in done.left[:_MOST_SHOWN])]
    if len(done.left) > _MOST_SHOWN:
        lines.append(f"  … and {len(done.left) - _MOST_SHOWN:,} more. See all of them with --report.")
    return lines
