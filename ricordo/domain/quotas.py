"""How much memory may hold: one block, the blocks of one user or agent, and the history of these.

Bounds refuse growth alone: a block that is larger, from before there was a bound, can still be read, shortened and deleted.
"""

from dataclasses import dataclass

from ricordo.errors import TooLong

KILOBYTE, MEGABYTE = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class MemoryQuotas:
    """The bounds of RICORDO_MAX_BLOCK_KB, _MEMORY_MB, _MEMORY_BLOCKS, _LISTED_CHARACTERS and _HISTORY_MB."""

    block_kb: int = 512
    memory_mb: int = 8
    blocks: int = 1000
    # Characters of one text in a list, and of all of them together.
    listed_characters: int = 100_000
    list_characters: int = 4_000_000
    history_mb: int = 100

    @property
    def block_bytes(self) -> int:
        return self.block_kb * KILOBYTE

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * MEGABYTE

    @property
    def history_bytes(self) -> int:
        return self.history_mb * MEGABYTE

    def require_block(self, label: str, size: int, before: int = 0) -> None:
        """Raise TooLong where a block of so many bytes is too large, and larger than it was."""
        if size > self.block_bytes and size > before:
            raise TooLong(
                f'Block "{label[:80]}" would have {size:,} bytes with its description and metadata, and {self.block_kb:,} kB are '
                "the most (RICORDO_MAX_BLOCK_KB). Shorten it, or split it into several blocks."
            )

    def require_text(self, label: str, text: str, before: str = "") -> None:
        """Raise TooLong where the text alone is too large for a block, before anything is done with it."""
        # No sign has more than four bytes.
        if len(text) * 4 > self.block_bytes:
            self.require_block(label, size_of(text), size_of(before))

    def require_memory(self, size: int, before: int) -> None:
        """Raise TooLong where the blocks of one user or agent would have too many bytes together, and more than before."""
        if size > self.memory_bytes and size > before:
            raise TooLong(
                f"The blocks of this memory would have {size:,} bytes together, and {self.memory_mb:,} MB are the most "
                "(RICORDO_MAX_MEMORY_MB). Shorten or delete some first."
            )

    def require_count(self, count: int, before: int) -> None:
        """Raise TooLong where one user or agent would have too many blocks."""
        if count > self.blocks and count > before:
            raise TooLong(
                f"This memory would have {count:,} blocks, and {self.blocks:,} are the most (RICORDO_MAX_MEMORY_BLOCKS). Delete "
                "some first, or put several texts into one block."
            )

    def require_history(self, size: int) -> None:
        """Raise TooLong where a history of so many bytes has no room for a new text."""
        if size >= self.history_bytes:
            raise TooLong(
                f"The history of this memory has {size:,} bytes, and {self.history_mb:,} MB are the most "
                "(RICORDO_MAX_HISTORY_MB), so it takes no new text. All of it can still be read, earlier texts restored, and "
                "blocks deleted. Whoever runs the server can raise the setting."
            )


def size_of(text: str | None) -> int:
    """Return the bytes of a text; half a character, which nothing stores, counts as one of three."""
    return len(text.encode("utf-8", "surrogatepass")) if text else 0
