"""Memory with a schema, and the formats in which blocks are read and written."""

from ricordo.plugins import Commands, Feature

feature = Feature(
    routes=("ricordo.features.typed_memory.formats.schema_routes",),
    block_formats=("ricordo.features.typed_memory.formats.service:FORMATS",),
    commands=(
        Commands(
            "schema",
            "ricordo.features.typed_memory.formats.cli",
            help="Block schemas, which define the fields of memory blocks.",
        ),
    ),
)
