"""Taking credentials out of texts that are kept for people to look at: what looks like one is replaced, the rest stays."""

import re
from typing import Any

HIDDEN = "[redacted]"
_TOKEN = re.compile(
    r"(?<=://)[^/\s:@\"']+:[^/\s@\"']+(?=@)"  # a name and password in an address
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]{8,}"
    r"|\b(?:sk|pk|rk|gsk|xai|ghp|gho|ghs|glpat|xoxb|xoxp|hf|key)[-_][\w-]{12,}"
    r"|\bgithub_pat_\w{20,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,2000}\.[\w-]{8,2000}\.[\w-]+"  # a signed token; bounded, so that no text makes this slow
)
# A value behind a name that tells what it is: api_key=…, "password": "…", also where the quotes of JSON in JSON are escaped.
_NAMED = re.compile(
    r"(?i)((?:api[-_]?key|secret|passw(?:or)?d|access[-_]?token|auth[-_]?token)\\?[\"']?\s*[:=]\s*\\?[\"']?)"
    r"([^\s\"'\\,;&}]{4,})"
)
_SECRET_FIELD = re.compile(r"(?i)headers$|^authorization$|^cookie$|api[-_]?key$|secret$|passw(or)?d$|token$")


# To look for a word is a hundred times quicker than for a pattern, and most texts hold none of these.
_MAY_BE_A_TOKEN = (
    *("://", "bearer ", "basic ", "github_pat_", "akia", "aiza", "eyj"),
    *(f"{start}{end}" for start in "sk pk rk gsk xai ghp gho ghs glpat xoxb xoxp hf key".split() for end in "-_"),
)
_MAY_BE_NAMED = ("apikey", "api-key", "api_key", "secret", "passw", "token")


def redact(text: str) -> str:
    """The text, each thing in it that looks like a credential replaced by a mark."""
    small = text.lower()
    if any(mark in small for mark in _MAY_BE_A_TOKEN):
        text = _TOKEN.sub(HIDDEN, text)
    if any(mark in small for mark in _MAY_BE_NAMED):
        text = _NAMED.sub(lambda found: found[1] + HIDDEN, text)
    return text


def redact_all(value: Any) -> Any:
    """JSON, its texts redacted; fields whose names say that they hold credentials or headers have no value left."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {
                redact(name): HIDDEN if _SECRET_FIELD.search(name) and item else redact_all(item)
                for name, item in value.items()
            }
        case list() | tuple():
            return [redact_all(item) for item in value]
        case _:
            return value
