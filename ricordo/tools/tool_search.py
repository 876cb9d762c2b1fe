"""Search among tools: for people over HTTP, and for agents with many tools (`find_tools`).

A request to a model contains the schema of each tool. An agent with many tools gets `find_tools`
instead of most schemas. It sees a tool's schema after it has found or called the tool, while the
window contains that message.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ricordo.domain.egress import Clearance
from ricordo.domain.message import Message, ToolCallPart, ToolReturnPart
from ricordo.domain.tool import Tool
from ricordo.llm.egress import Payer, embed
from ricordo.offload import offload
from ricordo.search.words import query_terms, terms

FIND_TOOLS = "find_tools"
_FOUND = re.compile(r"^- ([^\s:]{1,100}):", re.MULTILINE)
_NEAR = 0.2  # the least cosine of a match
_RANK_WEIGHT = 60  # the constant of reciprocal rank fusion


@dataclass(frozen=True, slots=True)
class FoundTool:
    """A tool that matches a search.

    Attributes:
        embedded_text: The text by which it was searched.
        fts_rank: Its rank by words, from 1 on; None: no word matches.
        vector_rank: Its rank by meaning, from 1 on; None: it is not near.
        combined_score: The score by both ranks; the best tool has the highest.
    """

    tool: Tool
    embedded_text: str
    fts_rank: int | None
    vector_rank: int | None
    combined_score: float


def text_of(tool: Tool) -> str:
    """Return the tool's searchable text."""
    parameters = " ".join(tool.json_schema.get("parameters", {}).get("properties", {}))
    return f"{tool.name.replace('_', ' ')}: {tool.description} {parameters} {' '.join(tool.tags)}"


def rank_by_words(query: str, texts: Sequence[str]) -> list[int]:
    """Rank the texts that share words with the query, by their indexes.

    The best comes first; rare words count more.

    Args:
        query: The query.
        texts: The texts of all tools, as `text_of` returns them.
    """
    query_words = set(query_terms(query))
    word_counts = [Counter(terms(text)) for text in texts]
    spread = Counter(word for counts in word_counts for word in counts)
    weights = {
        word: math.log(1 + len(texts) / spread[word]) for word in query_words if spread[word]
    }
    scores = [
        sum(weights.get(word, 0) * count / (count + 1) for word, count in counts.items())
        for counts in word_counts
    ]
    return sorted(
        (index for index, score in enumerate(scores) if score > 0),
        key=lambda index: (-scores[index], index),
    )


def rank_by_vectors(query: Sequence[float], vectors: Sequence[Sequence[float]]) -> list[int]:
    """Rank the vectors near the query, by their indexes; the nearest comes first.

    Args:
        query: The query's vector (d,), of length 1.
        vectors: Vectors (n, d) of length 1. Those with a cosine of at most 0.2 are left out.
    """
    nearness = [
        sum(component * other for component, other in zip(query, vector, strict=True))
        for vector in vectors
    ]
    return sorted(
        (index for index, near in enumerate(nearness) if near > _NEAR),
        key=lambda index: -nearness[index],
    )


def fuse_rankings(
    candidates: Sequence[Tool],
    word_ranking: Iterable[int] | None,
    vector_ranking: Iterable[int] | None,
) -> list[FoundTool]:
    """Combine both rankings by reciprocal rank fusion; the best tool comes first.

    Args:
        candidates: All searched tools; the rankings hold their indexes.
        word_ranking: Indexes as `rank_by_words` returns them; None without a search by words.
        vector_ranking: Indexes as `rank_by_meaning` returns them; None without a search by meaning.
    """
    word_ranks = {index: rank for rank, index in enumerate(word_ranking or (), 1)}
    vector_ranks = {index: rank for rank, index in enumerate(vector_ranking or (), 1)}
    matches = []
    for index in dict.fromkeys((*word_ranks, *vector_ranks)):
        tool = candidates[index]
        ranks = word_ranks.get(index), vector_ranks.get(index)
        score = sum(1 / (_RANK_WEIGHT + rank) for rank in ranks if rank)
        matches.append(FoundTool(tool, text_of(tool), *ranks, combined_score=score))
    return sorted(matches, key=lambda match: -match.combined_score)


async def rank_by_meaning(
    embedders: Any,
    query: str,
    texts: Sequence[str],
    clearance: Clearance,
    payer: Payer | None,
) -> list[int] | None:
    """Rank texts by the server's default embedding model.

    Args:
        embedders: The server's embedding models.
        query: The query.
        texts: The texts of tools.
        clearance: Decides whether the model may see the query and the texts.
        payer: The account that pays for the embeddings of a provider's model.

    Returns:
        The indexes of the matching texts, the nearest first; None without a model or without texts.

    Raises:
        Forbidden: The model may not see the query or one of the texts.
        ModelError: The model's call failed, or a budget is used up.
        Unavailable: The model's package or files are missing.
    """
    handle = embedders.default_handle()
    if handle is None or not texts:
        return None
    model = embedders.get(handle)
    (query_vector,) = await embed(model, [query], clearance, payer, purpose="query")
    vectors = await embed(model, list(texts), clearance, payer)
    size = len(texts) * len(query_vector) * 8  # bytes
    return await offload(lambda: rank_by_vectors(query_vector, vectors), size)


def found_tools(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the names of the tools that these messages call or list as found."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                yield part.name
            elif isinstance(part, ToolReturnPart) and part.name == FIND_TOOLS:
                yield from _FOUND.findall(part.content)
