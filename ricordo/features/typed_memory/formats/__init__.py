"""Block formats (Markdown, TOML), block schemas, and exports of a memory."""
