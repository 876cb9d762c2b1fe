"""`ricordo search reindex`."""

import typer

from ricordo.cli.search import reindex

app = typer.Typer(help="The search index.", no_args_is_help=True)


@app.command("reindex")
def rebuild_index(
    vectors_only: bool = typer.Option(
        False, "--vectors-only", help="Rebuild only the vectors, not the words."
    ),
    partition: list[str] = typer.Option(
        [], help="Id of an agent or archive; can be repeated.  [all]"
    ),
) -> None:
    """Rebuild the search index from messages and passages.

    Searches use the old index until the new index is ready.
    """
    is_whole = reindex(partition, vectors_only=vectors_only)
    raise typer.Exit(0 if is_whole else 1)
