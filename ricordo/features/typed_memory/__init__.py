"""Memory with a schema, and the formats in which blocks are read and written."""

PARTS = ("formats", "schemas")
