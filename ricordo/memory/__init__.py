"""Memory: a step's working copy, the storage of its edits, recall and the archive.

Programs use `UserBlocks`, which reads a user's memory and decides on proposals through a client of
a server. The other modules are internal to the server.
"""

from ricordo.memory.user_blocks import (
    AsyncUserBlocks,
    BlockProposal,
    HistoryVersion,
    UserBlock,
    UserBlocks,
)

__all__ = ["AsyncUserBlocks", "BlockProposal", "HistoryVersion", "UserBlock", "UserBlocks"]
