"""The librarian: a model that needs no key and no model server.

It is for a first run. It is no language model, and says so.
"""

from ricordo.plugins import Feature

feature = Feature(
    providers=("ricordo.features.librarian.model:LIBRARIAN_MODEL",),
)
