"""Workspaces: files of a user that agents read, write and run commands on.

Agents get the text of a workspace's CLAUDE.md in their prompts.
"""

# The names of the tools, for features that give them to agents.
TOOLS = (
    "list_workspace",
    "search_workspace",
    "read_workspace_file",
    "write_workspace_file",
    "edit_workspace_file",
    "run_in_workspace",
)
