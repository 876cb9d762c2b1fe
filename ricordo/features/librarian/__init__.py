"""The librarian: a model that needs no key and no model server.

It is for a first run. It is no language model, and says so.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ricordo.llm.chat import ChatModel


class _Plugin:
    def providers(self) -> "list[ChatModel]":
        from ricordo.features.librarian.model import Librarian

        return [Librarian()]


plugin = _Plugin()
