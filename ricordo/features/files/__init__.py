"""Files: folders that agents search, workspaces of users, and notes typeset by LaTeX."""

PARTS = ("folders", "latex", "workspaces")
