"""What some models want before a text."""

import pytest

from ricordo.llm.embedding.providers import opening


@pytest.mark.parametrize(
    ("name", "document", "query"),
    [
        ("nomic-embed-text:latest", "search_document: ", "search_query: "),
        ("intfloat/multilingual-e5-small", "passage: ", "query: "),
        ("e5-large-v2", "passage: ", "query: "),
        ("intfloat/multilingual-e5-large-instruct", "", "Instruct: "),
        ("e5-mistral-7b-instruct", "", "Instruct: "),
        ("Qwen/Qwen3-Embedding-0.6B", "", "Instruct: "),
        ("mxbai-embed-large", "", "Represent this sentence"),
        ("BAAI/bge-large-en-v1.5", "", "Represent this sentence"),
        ("snowflake-arctic-embed:110m", "", "Represent this sentence"),
        ("snowflake-arctic-embed2", "", "query: "),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", "", "query: "),
        ("embeddinggemma:300m", "title: none | text: ", "task: search result | query: "),
        ("bge-m3", "", ""),
        ("text-embedding-3-small", "", ""),
        ("all-minilm", "", ""),
        ("mistral-embed", "", ""),
    ],
)
def test_each_family_gets_the_words_it_was_trained_with(name: str, document: str, query: str) -> None:
    assert opening(name, "document") == document
    found = opening(name, "query")
    assert found.startswith(query)
    assert bool(found) == bool(query)
