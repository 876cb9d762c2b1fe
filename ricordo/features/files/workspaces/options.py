"""Settings of workspaces."""

from ricordo.setting_types import FeatureSettings, about


class WorkspaceSettings(FeatureSettings):
    """Limits of one workspace."""

    workspace_mb: int = about("Most megabytes of all files of a workspace.", 20, ge=1, le=200)
    workspace_files: int = about("Most files of a workspace.", 1000, ge=1, le=10_000)
