"""Memory: the step's working copy, storing its edits, recall and the archive.

For programs that use Ricordo, `UserBlocks` reads and decides on a user's memory through a client of
a server. The other modules are the server's own.
"""

from ricordo.memory.user_blocks import (
    AsyncUserBlocks,
    BlockProposal,
    HistoryVersion,
    UserBlock,
    UserBlocks,
)

__all__ = ["AsyncUserBlocks", "BlockProposal", "HistoryVersion", "UserBlock", "UserBlocks"]
