"""Retrieved texts in user messages: passages of documents, search results, pages.

Clients such as Open WebUI look passages up and send them with the question, in a form that their
operator chooses. They are recognized by the elements around them, or by the instruction with them.
Their authors are unknown.
"""

import re

_ELEMENTS = (
    "context|documents?|document_content|sources?|search_results?|retrieved_\\w+|passages?"
    "|knowledge|user_files"
)
_RETRIEVED = re.compile(
    rf"^[ \t]*<(?:{_ELEMENTS})(?:\s[^<>]*)?>"
    r"|<(?:source|document)\s[^<>]*\b(?:id|index|name)\s*="
    r"|^\#{2,3} Task:[ \t]{0,9}\r?\n\s{0,9}Respond to the user query using the provided context",
    re.MULTILINE | re.IGNORECASE,
)


def holds_retrieved(text: str) -> bool:
    """Return True if the message may hold passages by other authors.

    >>> holds_retrieved('<source id="1" name="plan.pdf">The plan.</source>')
    True
    >>> holds_retrieved("What is a source?")
    False
    """
    return _RETRIEVED.search(text) is not None
