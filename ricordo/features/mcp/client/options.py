"""Settings of MCP servers."""

import os
from pathlib import Path

from ricordo.setting_types import FeatureSettings, about, absolute


class McpSettings(FeatureSettings):
    """MCP servers, whose tools agents call."""

    mcp_commands: str | None = about(
        "Folders of programs that may be started as MCP servers in the sandbox, separated as in "
        "PATH: /usr:/opt/mcp. Of this machine, these programs can read only these folders and the "
        "system's programs and libraries. By default no program may be started."
    )
    mcp_timeout: float = about("Seconds for one call of an MCP server's tool.", 60, gt=0, le=3600)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Return the folders of programs that may be started."""
        return tuple(
            absolute(Path(folder))
            for folder in (self.mcp_commands or "").split(os.pathsep)
            if folder
        )
