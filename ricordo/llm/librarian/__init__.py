"""The librarian: the model for a first run without key or model server. It is no language model, and says so."""

from ricordo.llm.librarian.model import HANDLE, Librarian

__all__ = ["HANDLE", "Librarian"]
