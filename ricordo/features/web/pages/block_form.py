"""The form of a block's fields, as its schema names them."""

from datetime import date

from fastapi import Request

from ricordo.domain.block_schema import BlockSchema, FieldValue, SchemaField
from ricordo.errors import Invalid
from ricordo.features.web.pages.block_address import BlockAddress
from ricordo.memory.schemas import schemas_in
from ricordo.memory.sections import layout_of, read_sections, write_sections

FIELD = "field."
"""The prefix of the names of a schema's fields in a form."""


async def text_of_form(
    request: Request, address: BlockAddress, form: dict[str, str], text: str | None = None
) -> str:
    """Return the block's text with the values from the form.

    Args:
        request: The request of the page.
        address: The block.
        form: The fields of the form.
        text: The text that the form was made from, by default the present one.

    Raises:
        Invalid: The block has no fields any more, or a value does not fit its field.
    """
    schema = None
    if address.block and address.block.schema_ref:
        schema = schemas_in(request.app.state.runtime.settings.data_dir)(address.block.schema_ref)
    if schema is None or address.block is None:
        raise Invalid("This block no longer has fields. Load the page again.")
    return with_fields(address.block.value if text is None else text, schema, form)


def with_fields(text: str, schema: BlockSchema, form: dict[str, str]) -> str:
    """Return the text with other values of the fields that the form names.

    Raises Invalid for a value that does not fit its field.
    """
    reading = read_sections(text, schema)
    layout = layout_of(text, schema, reading) or "compact"
    fields = dict(reading.fields)
    for field in schema.fields:
        typed = form.get(f"{FIELD}{field.name}")
        if typed is None:
            continue
        field_value = read_field(field, typed)
        if field_value != field.empty or field.name in fields:
            fields[field.name] = field_value
    return write_sections(fields, schema, layout)


def read_field(field: SchemaField, typed: str) -> FieldValue:
    """Return the value that was typed for a field. Raises Invalid."""
    typed = typed.strip("\n") if field.kind == "text" else typed.strip()
    try:
        field_value = _value(field, typed)
    except ValueError as error:
        raise Invalid(f"{field.title}: {typed[:80]} is no {field.kind}. Change it.") from error
    if fault := field.fault(field_value):
        raise Invalid(f"{field.title} {fault}")
    return field_value


def _value(field: SchemaField, typed: str) -> FieldValue:
    if not typed:
        return field.empty
    match field.kind:
        case "list":
            lines = (line.strip().removeprefix("- ").strip() for line in typed.split("\n"))
            return tuple(line for line in lines if line)
        case "boolean":
            return typed == "yes"
        case "integer":
            return int(typed)
        case "number":
            return float(typed)
        case "date":
            return date.fromisoformat(typed)
        case _:
            return typed
