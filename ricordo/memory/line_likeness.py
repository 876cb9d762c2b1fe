"""Likeness of two lines of memory, by the words that they share.

It answers three questions, each with a separate measure:

- `says_same`: do two lines say the same thing? They share most of all words, and differ in no
  number and no negation.
- `says_sentence`: does a line contain a sentence as a whole? The same words must stand there as a
  whole sentence or clause.
- `share_subject`: is a line about the subject of another line? Most terms of the shorter line are
  terms of the longer one.
"""

import re

from ricordo.search.words import STOP_WORDS, terms

# The share of all words of two lines that say the same.
_SAME_SHARE = 0.7
# The share of the shorter line's terms that the other line has, if both have one subject.
_SUBJECT_SHARE = 0.75
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_NEGATIONS = frozenset(
    "no not never none without cannot nicht kein keine keinen nie ohne non pas jamais sans mai"
    " senza sin nunca sem".split()
)
# Words that do not count in a comparison.
_EMPTY_WORDS = frozenset(
    "a an the is are was of to in on at and that user users student students their her his she he"
    " they it der die das ist ein eine und le la il un una est".split()
)
# A sentence begins with the line, or after another sentence. A list mark and a subject may precede:
# notes say both "Lives in Rome" and "The user lives in Rome".
_SENTENCE_BEGINS = (
    r"(?:^(?:[-*•–]{1,3}\s|\d{1,2}[.)]\s)?|[.!?;]\s)\s*"
    r"(?:(?:(?:the )?(?:user|student|person)|i|he|she|they|ich|er|sie|je|il|elle|yo|él|ella|io|lui|lei)"
    r"\s)?"
)
# The comma in "3,5" and the point in "3.5" end nothing.
_SENTENCE_ENDS = r"(?:(?=[.,;!](?!\w)|$)|(?<=\?)(?=\s))"
_STOP_WORDS = frozenset().union(*STOP_WORDS.values())


def has_words(line: str) -> bool:
    """Return True if the line has more than spaces and punctuation.

    Args:
        line: A line of a block.
    """
    return _WORD.search(line) is not None


def says_same(line: str, other: str) -> bool:
    """Return True if two lines say the same in equal or nearly equal words.

    >>> says_same("- Likes green tea in the morning", "The user likes green tea in the morning.")
    True
    >>> says_same("Has no exam on 3 May", "Has an exam on 3 May")
    False

    Args:
        line: One line, with or without a list mark.
        other: The other line; the order makes no difference.
    """
    words, other_words = _words(line), _words(other)
    if words == other_words:
        return True
    differing = words ^ other_words
    if any(word in _NEGATIONS or not word.isalpha() for word in differing):
        return False
    return bool(words & other_words) and len(words & other_words) >= _SAME_SHARE * len(
        words | other_words
    )


def says_sentence(line: str, sentence: str) -> bool:
    """Return True if the line contains the sentence as a whole sentence or clause.

    Capitals, and points or exclamation marks at the sentence's end, make no difference.

    >>> says_sentence("Has a cat, likes tea", "has a cat.")
    True
    >>> says_sentence("Has a cat allergy", "Has a cat")
    False

    Args:
        line: One line, with or without a list mark.
        sentence: A sentence without spaces around it. Without a word, the result is False.
    """
    words = sentence.rstrip(".! ")
    if not has_words(words):
        return False
    return (
        re.search(_SENTENCE_BEGINS + re.escape(words) + _SENTENCE_ENDS, line, re.IGNORECASE)
        is not None
    )


def _words(line: str) -> frozenset[str]:
    words = frozenset(_WORD.findall(line.casefold()))
    return words - _EMPTY_WORDS or words


def subject_terms(line: str) -> frozenset[str]:
    """Return the terms of a line without stop words.

    Args:
        line: A line of a block.
    """
    return frozenset(terms(line)) - _STOP_WORDS


def share_subject(first: frozenset[str], second: frozenset[str]) -> bool:
    """Return True if two lines with these terms have one subject.

    Args:
        first: The terms of one line, from `subject_terms`; without any, the result is False.
        second: The terms of the other line.
    """
    smaller = min(len(first), len(second))
    return bool(smaller) and len(first & second) >= _SUBJECT_SHARE * smaller
