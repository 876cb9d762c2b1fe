"""Open WebUI: the sync of workspaces and memory, and its pipe.

Users' workspaces are synced with its knowledge bases, and their memory with its notes.
"""
