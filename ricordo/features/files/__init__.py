"""Files: folders that agents search, workspaces of users, and notes typeset by LaTeX."""

from ricordo.plugins import Feature, PluginPage

feature = Feature(
    settings=("ricordo.features.files.workspaces.options:WorkspaceSettings",),
    tables=(
        "ricordo.features.files.folders.tables:TABLES",
        "ricordo.features.files.workspaces.queries:workspace_files",
    ),
    routes=(
        "ricordo.features.files.folders.routes",
        "ricordo.features.files.folders.folder_pages",
        "ricordo.features.files.folders.agent_routes",
        "ricordo.features.files.latex.routes",
        "ricordo.features.files.latex.pages",
        "ricordo.features.files.workspaces.routes",
        "ricordo.features.files.workspaces.pages",
    ),
    jobs=(
        "ricordo.features.files.folders.ingestion:HANDLERS",
        "ricordo.features.files.folders.service:HANDLERS",
    ),
    tools=(
        "ricordo.features.files.folders.tools:TOOLS",
        "ricordo.features.files.latex.tools:TOOLS",
        "ricordo.features.files.workspaces.tools:TOOLS",
    ),
    complete_agents=(
        "ricordo.features.files.folders.windows:OPEN_FILES",
        "ricordo.features.files.workspaces.service:FILE_OF_INSTRUCTIONS",
    ),
    set_folders=("ricordo.features.files.folders.service:set_folders",),
    make_folder=("ricordo.features.files.folders.service:make_folder_for",),
    user_files=("ricordo.features.files.archives:FILES",),
    pages=(
        PluginPage("Files", "/ui/files"),
        PluginPage("Workspace", "/ui/workspace"),
    ),
    findings=("ricordo.features.files.latex.engine:findings",),
)
