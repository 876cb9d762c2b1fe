"""`ricordo schema`: the block schemas of the data folder, and whether files and users' blocks follow them.

The database is read as it is, also beside a running server.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ricordo.domain.block_schema import BlockSchema
    from ricordo.settings import Settings

app = typer.Typer(
    help="Block schemas: the fields that memory blocks are made of.", no_args_is_help=True
)


@app.command("list")
def list_schemas() -> None:
    """Show the block schemas in the data folder."""
    from ricordo.memory.schemas import FOLDER
    from ricordo.settings import load_settings

    settings, _ = load_settings()
    lines = [
        f"{name}  {found}"
        if isinstance(found, str)
        else f"{name}  {found.title} ({_count(len(found.fields), 'field')})"
        for name, found in _schemas(settings).items()
    ]
    typer.echo("\n".join(lines) or f"There are no block schemas in {settings.data_dir / FOLDER}.")


@app.command("check")
def check(
    files: list[Path] = typer.Argument(
        None, help="Schema files.  [all in the data folder, and the blocks that name them]"
    ),
) -> None:
    """Check schema files and the blocks that name a schema. Ends with 1 where something is wrong.

    A block whose required fields are still empty is told of, and is not wrong.
    """
    from ricordo.settings import load_settings

    settings, _ = load_settings()
    if files:
        problems = [problem for file in files for problem in _of_file(file)]
        checked = _count(len(files), "file")
    else:
        schemas = _schemas(settings)
        problems = [found for found in schemas.values() if isinstance(found, str)]
        usable = {name: found for name, found in schemas.items() if not isinstance(found, str)}
        number = 0
        told = list[str]()
        for is_wrong, line in _of_blocks(settings, usable, set(schemas)):
            number += 1
            if line:
                (problems if is_wrong else told).append(line)
        checked = f"{_count(len(schemas), 'schema')}, {_count(number, 'block')} with a schema"
        for line in told:
            typer.echo(line)
    for problem in problems:
        typer.echo(problem)
    typer.echo(f"{checked}: {_count(len(problems), 'problem') if problems else 'all well'}.")
    raise typer.Exit(1 if problems else 0)


def _schemas(settings: "Settings") -> "dict[str, BlockSchema | str]":
    """The schemas of the data folder by name; what is wrong instead of one that cannot be read."""
    from ricordo.errors import Invalid
    from ricordo.memory.schemas import FOLDER, read_schema, schema_names

    folder = settings.data_dir / FOLDER
    found: dict[str, BlockSchema | str] = {}
    for name in schema_names(folder):
        try:
            found[name] = read_schema(name, folder)
        except Invalid as error:
            found[name] = str(error)
    return found


def _of_file(file: Path) -> "Iterator[str]":
    from ricordo.errors import Invalid
    from ricordo.memory.schemas import parse_schema

    try:
        parse_schema(file.read_text("utf-8").removeprefix("\ufeff"), file.stem, str(file))
    except UnicodeDecodeError:
        yield f"{file} is not UTF-8 text. Save it as UTF-8."
    except OSError as error:
        yield f"{file} cannot be read: {error.strerror}."
    except Invalid as error:
        yield str(error)


def _of_blocks(
    settings: "Settings", schemas: "dict[str, BlockSchema]", names: set[str]
) -> "Iterator[tuple[bool, str | None]]":
    """For each block that names a schema: whether that is wrong, and a sentence, None where it follows it."""
    from ricordo.domain.scope import Scope
    from ricordo.errors import NotFound
    from ricordo.memory.sections import read_sections
    from ricordo.storage import blocks, users
    from ricordo.storage.deletion import DELETED
    from ricordo.storage.engine.database import read_beside

    try:
        with read_beside(settings) as tx:
            found = [block for block in blocks.with_schema(tx) if block.organization_id != DELETED]
            organizations, chain_ids = (
                {getattr(block, name) for block in found}
                for name in ("organization_id", "chain_id")
            )
            owners = {
                chain_id: (kind, (user and user.name) or id)
                for organization_id in organizations
                for chain_id, (kind, id) in blocks.owners(tx, Scope(organization_id)).items()
                if chain_id in chain_ids
                for user in (users.named(tx, organization_id, id) if kind == "user" else None,)
            }
    except NotFound:
        return  # there is no database yet
    for block in found:
        where = f'Block "{block.label}" of {" ".join(owners[block.chain_id])}'
        schema = schemas.get(block.schema_ref or "")
        if schema is None:
            is_broken = block.schema_ref in names
            reason = "which cannot be used" if is_broken else "which is not in the data folder"
            yield True, f'{where} names the schema "{block.schema_ref}", {reason}.'
            continue
        reading = read_sections(block.value, schema)
        if reading.problems:
            lines = "\n".join(f"  {problem}" for problem in reading.problems)
            yield True, f'{where} does not follow the schema "{schema.name}":\n{lines}'
        elif reading.missing:
            yield False, f"{where} is incomplete: {' '.join(map(str, reading.missing))}"
        else:
            yield False, None


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
