"""Moving in: agents with all of their history from a database of the retired Letta V1 server 0.16.8."""

from ricordo.plugins import Commands


class ImportsPlugin:
    """Adds `ricordo import`."""

    requires = ("agent_files", "custom_tools", "files")

    def commands(self) -> list[Commands]:
        return [Commands("import", "ricordo.features.imports.cli")]


plugin = ImportsPlugin()
