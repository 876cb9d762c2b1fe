"""Texts that clients put into a user's message: passages of documents, results of searches, pages.

Open WebUI and others look such passages up and send them with the question, in a form that the person who runs them chooses.
They are known by the elements that hold them, or by the instruction that comes with them. Who wrote them is not known.
"""

import re

_ELEMENTS = "context|documents?|document_content|sources?|search_results?|retrieved_\\w+|passages?|knowledge|user_files"
_RETRIEVED = re.compile(
    rf"^[ \t]*<(?:{_ELEMENTS})(?:\s[^<>]*)?>"
    r"|<(?:source|document)\s[^<>]*\b(?:id|index|name)\s*="
    r"|^\#{2,3} Task:[ \t]{0,9}\r?\n\s{0,9}Respond to the user query using the provided context",
    re.MULTILINE | re.IGNORECASE,
)


def holds_retrieved(text: str) -> bool:
    """Return whether passages that somebody else may have written stand in a message.

    >>> holds_retrieved('<source id="1" name="plan.pdf">The plan.</source>'), holds_retrieved("What is a source?")
    (True, False)
    """
    return _RETRIEVED.search(text) is not None
