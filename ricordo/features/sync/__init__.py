"""Memory kept equal elsewhere: remotes, git and Dolt."""

PARTS = ("dolt", "git", "remotes")
REQUIRES = ("memory_care", "tutor", "typed_memory")
