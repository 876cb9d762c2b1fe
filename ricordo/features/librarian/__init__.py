"""The librarian: a model that needs no key and no model server.

It serves a first run of the server. It is no language model, and tells people so.
"""

from ricordo.plugins import Feature

feature = Feature(
    providers=("ricordo.features.librarian.model:LIBRARIAN_MODEL",),
)
