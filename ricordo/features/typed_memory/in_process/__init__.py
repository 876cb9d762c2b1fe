"""Users' memory from a program of one's own, without a server: the database of a data folder, and a user's blocks in it."""

from ricordo.features.typed_memory.in_process.blocks import UserBlockManager
from ricordo.features.typed_memory.in_process.diffs import PendingDiff, PendingDiffStore
from ricordo.features.typed_memory.in_process.storage import GitUserStorage

__all__ = ["GitUserStorage", "PendingDiff", "PendingDiffStore", "UserBlockManager"]
