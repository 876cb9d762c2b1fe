"""The words that some families of models want before a text, so that a question's vector lies near its answers'.

They are part of how the models were trained and stand on their model cards; left out, such a model finds visibly less.
Providers that take the purpose as a field (Google) are told there instead.
"""

import re

from ricordo.domain.model import EmbeddingPurpose

_SEARCH = "Represent this sentence for searching relevant passages: "
_INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

# By the model's name without what stands before its last slash; the first match counts. Each has (document, query).
_FAMILIES: tuple[tuple[str, tuple[str, str]], ...] = (
    (r"^nomic-embed-text", ("search_document: ", "search_query: ")),
    (r"^(multilingual-e5-large-instruct|e5-mistral)", ("", f"{_INSTRUCT} ")),
    (r"^qwen3-embedding", ("", _INSTRUCT)),
    (r"^(multilingual-)?e5-", ("passage: ", "query: ")),
    (r"^embeddinggemma", ("title: none | text: ", "task: search result | query: ")),
    (r"^snowflake-arctic-embed-?[a-z]*-?v?2", ("", "query: ")),
    (r"^(mxbai-embed|snowflake-arctic-embed|bge-(small|base|large)-en)", ("", _SEARCH)),
)


def opening(name: str, purpose: EmbeddingPurpose) -> str:
    """What to put before a text for this model; nothing for most."""
    bare = name.rpartition("/")[2].lower()
    document, query = next((words for family, words in _FAMILIES if re.match(family, bare)), ("", ""))
    return query if purpose == "query" else document
