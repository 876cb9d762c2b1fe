"""`ricordo schema`: list block schemas, and check files and users' blocks against them.

The database is only read, so a server may be running.
"""

from collections.abc import Iterator
from pathlib import Path

import typer

from ricordo.cli.named_files import read_text_file
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.memory.schemas import FOLDER, parse_schema, read_schema, schema_names
from ricordo.memory.sections import read_sections
from ricordo.settings import Settings, load_settings
from ricordo.storage import blocks, users
from ricordo.storage.deletion import DELETED
from ricordo.storage.engine.database import read_beside

app = typer.Typer(
    help="Block schemas, which define the fields of memory blocks.", no_args_is_help=True
)


@app.command("list")
def list_schemas() -> None:
    """Show the block schemas in the data folder."""
    settings, _ = load_settings()
    lines = []
    for name, schema in _schemas(settings).items():
        if isinstance(schema, str):
            lines.append(f"{name}  {schema}")
        else:
            lines.append(f"{name}  {schema.title} ({_count(len(schema.fields), 'field')})")
    typer.echo("\n".join(lines) or f"There are no block schemas in {settings.data_dir / FOLDER}.")


@app.command("check")
def check(
    files: list[Path] = typer.Argument(
        None, help="Schema files to check.  [all in the data folder, and all blocks that use them]"
    ),
) -> None:
    """Check schema files and the blocks that name a schema.

    Ends with 1 if there are problems.

    A block with empty required fields is listed as incomplete, which is not a problem.
    """
    settings, _ = load_settings()
    if files:
        problems = [problem for file in files for problem in _of_file(file)]
        checked = _count(len(files), "file")
    else:
        schemas = _schemas(settings)
        problems = [schema for schema in schemas.values() if isinstance(schema, str)]
        usable = {name: schema for name, schema in schemas.items() if not isinstance(schema, str)}
        number = 0
        incomplete = list[str]()
        for is_wrong, line in _of_blocks(settings, usable, set(schemas)):
            number += 1
            if line and is_wrong:
                problems.append(line)
            elif line:
                incomplete.append(line)
        checked = f"{_count(len(schemas), 'schema')}, {_count(number, 'block')} with a schema"
        for line in incomplete:
            typer.echo(line)
    for problem in problems:
        typer.echo(problem)
    verdict = _count(len(problems), "problem") if problems else "all well"
    typer.echo(f"{checked}: {verdict}.")
    raise typer.Exit(1 if problems else 0)


def _schemas(settings: "Settings") -> "dict[str, BlockSchema | str]":
    """Return the schemas of the data folder by name.

    If a schema cannot be read, a sentence about its problem replaces it.
    """
    folder = settings.data_dir / FOLDER
    schemas: dict[str, BlockSchema | str] = {}
    for name in schema_names(folder):
        try:
            schemas[name] = read_schema(name, folder)
        except Invalid as error:
            schemas[name] = str(error)
    return schemas


def _of_file(file: Path) -> "Iterator[str]":
    try:
        parse_schema(read_text_file(file), file.stem, str(file))
    except Invalid as error:
        yield str(error)


def _of_blocks(
    settings: "Settings", schemas: "dict[str, BlockSchema]", names: set[str]
) -> "Iterator[tuple[bool, str | None]]":
    """Yield a finding for each block with a schema.

    A finding is a pair: True if the block is wrong, and a sentence about it. The sentence is None
    if the block follows its schema.
    """
    try:
        with read_beside(settings) as tx:
            with_schema = [
                block for block in blocks.with_schema(tx) if block.organization_id != DELETED
            ]
            chain_ids = {block.chain_id for block in with_schema}
            owners: dict[str, str] = {}
            for organization_id in {block.organization_id for block in with_schema}:
                owner_by_chain = blocks.owners(tx, Scope(organization_id))
                for chain_id in chain_ids & owner_by_chain.keys():
                    kind, id = owner_by_chain[chain_id]
                    user = users.named(tx, organization_id, id) if kind == "user" else None
                    owners[chain_id] = f"{kind} {(user and user.name) or id}"
    except NotFound:
        return  # there is no database yet
    for block in with_schema:
        subject = f'Block "{block.label}" of {owners[block.chain_id]}'
        schema = schemas.get(block.schema_ref or "")
        if schema is None:
            is_broken = block.schema_ref in names
            reason = "which cannot be used" if is_broken else "which is not in the data folder"
            yield True, f'{subject} names the schema "{block.schema_ref}", {reason}.'
            continue
        reading = read_sections(block.value, schema)
        if reading.problems:
            lines = "\n".join(f"  {problem}" for problem in reading.problems)
            yield True, f'{subject} does not follow the schema "{schema.name}":\n{lines}'
        elif reading.missing:
            yield False, f"{subject} is incomplete: {' '.join(map(str, reading.missing))}"
        else:
            yield False, None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
