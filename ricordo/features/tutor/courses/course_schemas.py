"""Fields of courses' blocks as schemas of the data folder."""

from pathlib import Path
from secrets import token_hex

from ricordo.domain.block_schema import BlockSchema, FieldValue, SchemaField
from ricordo.domain.toml_text import write_toml
from ricordo.errors import Unavailable
from ricordo.features.tutor.courses.course_file import Course, CourseBlock
from ricordo.memory.schemas import FOLDER, find_schema
from ricordo.memory.sections import Problem

_HEADER = "# Made of courses/{}: change it there.\n"
_FIELD_KEYS = ("kind", "description", "required", "max_length", "max_items", "default")


def schema_problems(course: Course, data_dir: Path) -> list[Problem]:
    """Return a problem for each block whose schema would replace a schema that a person wrote.

    Such a schema has the same name and other fields, and no course wrote it.

    Args:
        course: The course.
        data_dir: The data folder of the server.

    Raises:
        Invalid: A schema in the folder is faulty.
        Unavailable: A schema cannot be read.
    """
    problems = []
    for block in course.blocks:
        if block.schema is None or not _is_foreign(block, data_dir):
            continue
        sentence = (
            f"the schema {FOLDER}/{block.schema_name}.toml of the data folder has other fields. "
            f'Give "{block.label}" the same.'
        )
        problems.append(Problem(block.line, sentence))
    return problems


def write_schemas(course: Course, data_dir: Path) -> None:
    """Write the fields of the course's blocks as schemas of the data folder.

    Call it only if `schema_problems` returns none.

    Args:
        course: The course.
        data_dir: The data folder of the server.

    Raises:
        Invalid: A schema in the folder is faulty.
        Unavailable: A file cannot be read or written.
    """
    for block in course.blocks:
        if block.schema is None:
            continue
        path = _path_of(block, data_dir)
        text = _HEADER.format(course.file_name) + schema_text(block, block.schema)
        schema = find_schema(block.schema_name, data_dir)
        if schema and schema.fields == block.fields and not _is_made(path, course.file_name):
            continue  # another course or a person wrote the same fields
        if schema is None or path.read_text("utf-8") != text:
            write_file(path, text.encode())


def _path_of(block: CourseBlock, data_dir: Path) -> Path:
    return data_dir / FOLDER / f"{block.schema_name}.toml"


def _is_made(path: Path, file_name: str = "") -> bool:
    """Return True if a course wrote the schema; with `file_name`, the course of this file."""
    return path.read_text("utf-8").startswith(_HEADER.partition("{")[0] + file_name)


def _is_foreign(block: CourseBlock, data_dir: Path) -> bool:
    schema = find_schema(block.schema_name, data_dir)
    if schema is None or schema.fields == block.fields:
        return False
    return not _is_made(_path_of(block, data_dir))


def write_file(path: Path, content: bytes) -> None:
    """Replace the file's content in one step: all of it or nothing.

    Args:
        path: The file. Missing folders are created.
        content: The whole content.

    Raises:
        Unavailable: The file cannot be written.
    """
    # Only this writer uses the random name.
    temporary = path.with_name(f"{path.name}.{token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Unavailable(
            f"{path} cannot be written: {error.strerror}. Check its permissions."
        ) from error


def schema_text(block: CourseBlock, schema: BlockSchema) -> str:
    """Return the block's fields as the TOML of a schema.

    Args:
        block: The block of the course, for the description, policy and limit.
        schema: The block's schema, for the title and the fields.
    """
    settings: dict[str, FieldValue] = {
        "title": schema.title,
        "description": block.description or "",
        "policy": block.policy,
        "limit": block.limit,
    }
    text = write_toml({key: setting for key, setting in settings.items() if setting})
    default_field = SchemaField("default")
    for schema_field in schema.fields:
        table: dict[str, FieldValue] = {"title": schema_field.title}
        for key in _FIELD_KEYS:
            setting = getattr(schema_field, key)
            if setting != getattr(default_field, key):
                table[key] = setting
        text += f"\n[fields.{schema_field.name}]\n{write_toml(table)}"
    return text
