"""The librarian: the model for a first run without key or model server. It is no language model, and says so."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ricordo.llm.chat import ChatModel


class _Plugin:
    def providers(self) -> "list[ChatModel]":
        from ricordo.features.librarian.model import Librarian

        return [Librarian()]


plugin = _Plugin()
