"""Quotas of memory: one block, the blocks of one user or agent, and their history.

Quotas only refuse growth. A block that is larger than a new quota can still be read, shortened and
deleted.
"""

from dataclasses import dataclass, field

from ricordo.errors import TooLong

KILOBYTE = 1024
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MemoryQuotas:
    """The quotas on memory that the operator sets.

    They come from RICORDO_MAX_BLOCK_KB, RICORDO_MAX_MEMORY_MB, RICORDO_MAX_MEMORY_BLOCKS,
    RICORDO_MAX_LISTED_CHARACTERS and RICORDO_MAX_HISTORY_MB; `list_characters` is derived from
    RICORDO_MAX_ANSWER_MB.
    """

    block_kb: int = 512
    memory_mb: int = 8
    blocks: int = 1000
    # Characters of one text in a list, and of all of them together.
    listed_characters: int = 100_000
    list_characters: int = 4_000_000
    history_mb: int = 100

    block_bytes: int = field(init=False)
    memory_bytes: int = field(init=False)
    history_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_bytes", self.block_kb * KILOBYTE)
        object.__setattr__(self, "memory_bytes", self.memory_mb * MEGABYTE)
        object.__setattr__(self, "history_bytes", self.history_mb * MEGABYTE)

    def require_block(self, label: str, size: int, before: int = 0) -> None:
        """Raise TooLong if a block of this size is too large and larger than before.

        Args:
            label: The label of the block, for the error.
            size: The bytes of its value, description and metadata.
            before: The bytes before the change; 0 for a new block.

        Raises:
            TooLong: The block exceeds the quota and grew.
        """
        if size > self.block_bytes and size > before:
            raise TooLong(
                f'Block "{label[:80]}" would have {size:,} bytes with its description and '
                f"metadata, and {self.block_kb:,} kB are allowed (RICORDO_MAX_BLOCK_KB). Shorten "
                "it, or split it into several blocks."
            )

    def require_text(self, label: str, text: str, before: str = "") -> None:
        """Raise TooLong if the text alone is too large for a block.

        Args:
            label: The label of the block, for the error.
            text: The new text.
            before: The text before the change; "" for a new block.

        Raises:
            TooLong: The text exceeds the quota and grew.
        """
        # Check this before any work on the text. A character has at most four bytes.
        if len(text) * 4 > self.block_bytes:
            self.require_block(label, size_of(text), size_of(before))

    def require_memory(self, size: int, before: int) -> None:
        """Raise TooLong if an owner's blocks together are too large and grew.

        Args:
            size: The bytes of all blocks after the change.
            before: Their bytes before it.

        Raises:
            TooLong: The memory exceeds the quota and grew.
        """
        if size > self.memory_bytes and size > before:
            raise TooLong(
                f"The blocks of this memory would have {size:,} bytes together, and "
                f"{self.memory_mb:,} MB are allowed (RICORDO_MAX_MEMORY_MB). Shorten or delete "
                "some first."
            )

    def require_count(self, count: int, before: int) -> None:
        """Raise TooLong if one user or agent would have too many blocks.

        Args:
            count: The number of blocks after the change.
            before: Their number before it.

        Raises:
            TooLong: There are more blocks than the quota, and more than before.
        """
        if count > self.blocks and count > before:
            raise TooLong(
                f"This memory would have {count:,} blocks, and {self.blocks:,} are allowed "
                "(RICORDO_MAX_MEMORY_BLOCKS). Delete some first, or put several texts into one "
                "block."
            )

    def require_history(self, size: int) -> None:
        """Raise TooLong if a history of this size has no room for a new text.

        Args:
            size: The bytes of the history so far. An import adds the bytes of its texts.

        Raises:
            TooLong: The history is full.
        """
        if size >= self.history_bytes:
            raise TooLong(
                f"The history of this memory has {size:,} bytes, and {self.history_mb:,} MB are "
                "allowed (RICORDO_MAX_HISTORY_MB), so it takes no new text. You can still read "
                "it, restore earlier texts, and delete blocks. The operator of the server can "
                "raise the setting."
            )


def size_of(text: str | None) -> int:
    """Return the bytes of a text in UTF-8.

    A lone surrogate cannot be stored; it counts as three bytes.

    Args:
        text: The text; None counts as 0 bytes.
    """
    if text:
        return len(text.encode("utf-8", "surrogatepass"))
    return 0
