"""Settings of workspaces."""

from ricordo.setting_types import FeatureSettings, about


class WorkspaceSettings(FeatureSettings):
    """Limits of one workspace."""

    workspace_mb: int = about("Megabytes of all files of one workspace.", 20, ge=1, le=200)
    workspace_files: int = about("Files of one workspace.", 1000, ge=1, le=10_000)
