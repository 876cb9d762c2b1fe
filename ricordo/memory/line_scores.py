"""Score lines of memory by the words that they share with a query. Pure."""

from collections.abc import Sequence
from math import log

from ricordo.search.words import query_terms, terms


def line_scores(lines: Sequence[str], query: str) -> list[float]:
    """Return the share of the query's words that each line has, from 0 to 1.

    Words that are rare among the lines count more.
    """
    terms_of_lines = [set(terms(line)) for line in lines]
    weights = {}
    for term in query_terms(query):
        count = sum(term in line_terms for line_terms in terms_of_lines)
        weights[term] = log(1 + len(lines) / (1 + count))
    total = sum(weights.values())
    if not total:
        return [0.0] * len(lines)
    return [
        sum(weight for term, weight in weights.items() if term in line_terms) / total
        for line_terms in terms_of_lines
    ]
