"""What a person means, as far as the librarian can tell from English: to tell, ask, forget, or a task beyond it.

What it cannot tell is a statement, in any language. Words are compared as the search index does, so in every language.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from ricordo.domain.redaction import redact

# The characters of one text that are read: more would hold up all other turns, and what a text is about is at its start.
READ_LENGTH = 4_000
NOTE_LENGTH = 300
_QUESTION_MARKS = ("?", "？")
_AFTER = "\"'”’) "

IntentKind = Literal["tell", "ask", "list", "forget", "yes", "talk", "help", "task", "secret", "code"]


@dataclass(frozen=True, slots=True)
class Intent:
    """What one sentence asks for. A note is kept whole in the archive, whatever it is about."""

    kind: IntentKind
    text: str = ""
    is_note: bool = False


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def found_in(pattern: str, text: str) -> re.Match[str] | None:
    return _compiled(pattern).search(text, 0, READ_LENGTH)


_SENTENCE_END = r"(?<![.!?…])[.!?…]+[\"'”’)]*\s+|[。！？]+[”」』]?\s*|\n+"
_STATEMENT_END = _SENTENCE_END + r"|(?<!\s)\s*;\s*|(?:,|(?<!\s))\s+and (?=i\b)"
_NO_END = r"(?:^|[\s(])(?:\d+|[^\W\d_]|dr|mr|mrs|ms|prof|st|no|nr|vs|etc|e\.g|i\.e|ca|sig|dott)$"
_LIST_LINE = r"(?:^|\n)[^\S\n]*(?:[-*•]|\d+[.)])\s+\S"
_FILLER = r"^(?:(?:please|hey|okay|ok|so|well|and|also|btw|by the way|oh|listen)\b[\s,:;!]*)+(?=\S)"
_POLITE = r"^(?:(?:can|could|would|will) you|you (?:should|must|can)|i(?:['’]d like| would like| want| need) you to) (?:please )?"
_KEEP = (
    r"^(?:remember|note|memori[sz]e|keep in mind|do(?:n['’]?t| not) forget|write down|make a note|save|store)\b"
    r"(?:[\s,]*(?:of )?(?:that|this)\b)?[\s,:：]*(?P<rest>.+)$"
)
_FORGET = r"^(?:forget|delete|remove|erase|strike)\b[\s,]*(?:(?:about|that|what i said about)\b\s*)*(?P<rest>.*)$"
_LIST = (
    r"^(?:what (?:do|did|can) you (?:know|remember)(?: about me)?|(?:list|show)(?: me)?(?: (?:all|everything"
    r"|(?:all )?(?:my|your) (?:notes|memory)))?|tell me (?:everything|all|what you know)(?: (?:you know )?about me)?)\W*$"
)
_HELP = (
    r"^/?help(?: me)?\W*$|^(?:who|what) are you\b|^what(?:['’]s| is) your name|^what can you do|^how do you work"
    r"|^what is (?:this|ricordo)\W*$|^are you (?:an? )?(?:ai|bot|robot|human|person|real|machine|language model|librarian)"
    r"|^(?:(?:how|where|can|could|i want)\b.{0,30}\b)?(?:connect|use|set ?up|configure|add|choose) (?:an? |the |another )?"
    r"(?:real |other |better )?(?:language )?(?:model|llm|ollama|openai|anthropic|api key)\b"
)
_TASK = (
    r"^(?:write|translate|summari[sz]e|explain|calculate|compute|solve|generate|compose|rewrite|draw|imagine|pretend"
    r"|tell me an? (?:joke|story|poem|riddle|fact))\b"
)
_YES = r"^(?:yes|yeah|yep|sure|do it|go ahead|all of them|both)(?:[, ]+(?:please|all|both|them|of))*\W*$"
_TALK = (
    r"^(?:hi|hello|hey|good (?:morning|afternoon|evening|day|night)|how are you|(?:many )?thanks|thank you|(?:good ?)?bye"
    r"|see you|no|nope|none|never ?mind|ok(?:ay)?|fine|great|nice|cool|good|perfect|right|alright|got it"
    r"|that(?:['’]s| is) (?:great|good|nice|right|correct|fine|all))"
    r"(?: (?:there|again|so much|very much|a lot|today|later|(?-i:[A-Z])\w+))*\W*$"
)
_LOOK = (
    r"^(?:tell me|find|search|look (?:up|for)|show (?:me )?|list|remind me (?:of|about|what|where|when|who|which|how|why)"
    r"|what about|i(?:['’]d like| would like| want| need) to know|i wonder|i forgot (?:what|where|when|who|which|how))\b"
)
_VERB = (
    r"(?:is|are|was|were|am|do|does|did|can|could|should|would|will|shall|have|has|had|may|might|(?:is|are|was|do"
    r"|does|did)n['’]?t)"
)
_QUESTION = (
    rf"^(?:what|who|whom|where|when|which|whose|why|how)(?:['’]?s\b|['’]?re\b|(?: \w+){{0,3}}? {_VERB}\b(?! (?:so"
    rf"|such)\b))(?=.)"
    rf"|^{_VERB} (?:i|you|we|he|she|it|they|my|your|our|his|her|their|the|there|this|that|these|those|any|anyone)\b"
)
_WHEN_I = r"^(?:when|where|while|what|how|which) (?:i|we|my|our|he|she|they)\b"
_CONTINUES = r"^(?:she|he|it|they|this|that|these|those|her|his|its|their|because|and|but)\b"
_FIRST_PERSON = r"\b(?:i|i['’](?:m|ve|d|ll)|me|my|mine|myself|we|we['’](?:re|ve|ll)|our|us)\b"
CORRECTION = (
    r"\b(?:actually|correction|no longer|any ?more|now|changed|instead|i mean(?:t)?|wrong|in fact)\b|^(?:no|sorry)[, ]"
)

# What is neither repeated nor filed: what redaction removes, and what is a secret by its name alone.
_PRIVATE = (
    r"(?:pass(?:word|phrase|code)|passwort|kennwort|contraseña|pin(?: (?:code|number))?|cvv|cvc|(?:card|social security) number|ssn"
    r"|(?:alarm|access|safe|entry) code|(?:api|private|secret|access) key|access token)"
)
_SECRET = (
    rf"\[secret removed: |\b{_PRIVATE}(?: (?!is\b)\w+){{0,3}}\s?(?:\bis\b|\bist\b|\bes\b|è|:|=)\s*\S"
    r"|(?<!\d)(?:\d{4}[ -]){3}\d{4}(?!\d)"
)
_SECRET_ASKED = rf"\b(?:my|our|the|mein|mia|mi) (?:\w+ ){{0,2}}?{_PRIVATE}\b"
_FENCE = r"```[\s\S]*?(?:```|$)"
_CODE_LINE = (
    r"^(?:import \w[\w.]*(?:$|[;,]| as )|from [\w.]+ import |(?:async )?def \w+\(|(?:async )?function\b[^(]{0,60}\("
    r"|class \w+(?:\([^()]{0,80}\))?(?::| ?\{)$|(?:const|let|var|val) \w+ ?(?::[^=]{1,40})?=|#include|#!/|>>> |\$ \w"
    r"|@\w+(?:\(|$)|for \w.{0,80} in .{1,80}:|(?:public|private|static|int|void|char) [^;{]{0,120}[;{]"
    r"|(?-i:SELECT .{1,200} FROM|INSERT INTO|UPDATE \w+ SET|CREATE TABLE|DELETE FROM) |Traceback \(most"
    r"|File \"[^\"]+\", line \d|(?-i:[A-Z]\w*(?:Error|Exception)): |</?[a-z][\w-]*(?: [^<>]*)?/?>"
    r"|[\w.]+\([^()]*\);?$|[\w.\[\]]+ ?(?:[-+*/]?=|:=) ?[^\n]*[;)\]}\"'\d]$|[\[{]\s*[\"'][^\n]*[\]}],?$"
    r"|(?-i:[a-z])[^\n]*\);$|[^\n]*\{$|[{}\[\]()]+[;,]?$)"
)
# Lines that are code where the line before is.
_CODE_GOES_ON = r"^(?:\s{2,}\S|\t|(?:return|else|elif|except|try|if|while)\b|[)}\]]|\s*$)|[{};:,\\]\s*$"

# Facts as they are told: "My name is Ada.", "Name: Ada", and in words of their own.
_OWN = (
    r"\bmy ([^\W\d_][\w'’ -]{1,40}?)(?: is| are|:) |\bmy (name)['’]s "
    r"|^\W*(?:(?:the )?(?:user|human)'s |(?:user|human) )?([a-z][a-z -]{1,20}):"
)
_NAME = (
    r"\bcall me (?!an? |the |later|back|when|if|on |at |to|in )\w|\bi(?:'m|’m| am) called \w"
    r"|^(?:i'm|i’m|i am) (?-i:[A-Z])\w+(?<!ish|ian|ese|can|man)[.!]?$"
)
_HOME = (
    r"\bi(?:'m|’m| am)? (?:now |currently )?(?:live|living|reside) (?:in|at|near|on)\b"
    r"|\bi(?:'ve|’ve| have)?(?: just| recently)? moved to\b|^\W*lives in\b"
)
_TOLD = (("name", _NAME), ("home", _HOME), (None, _OWN))
_ASKED = (
    ("name", r"\bwho (?:am i|i am)\b|\bi(?:'m| am) called|\bdo you call me\b"),
    ("home", r"\b(?:do|did) i live\b|\bi live\b"),
    (None, r"\bmy ([^\W\d_][\w'’ -]{1,30}?)(?= (?:is|are)\b|\s*[?.!]|$)"),
)
# A person has one of these at a time, and one of each favourite.
_SINGLE = {"name", "full name", "home", "address", "city", "birthday", "age", "email", "phone", "phone number"}
# What a question asks with, and is not about.
_ASKING = (
    "know knew remember recall tell told say said find search look show list give get ask talk mention forget notes memory me my i "
    "anything something everything nothing all you your am what who it is"
)


def read(text: str) -> tuple[Intent, ...]:
    """Return what the text asks for, in order. A long text or a list is one note; a question after it is answered too."""
    text = text.strip()
    # Memory itself redacts a longer one; what is repeated of it is redacted then.
    text = redact(text).text if len(text) <= READ_LENGTH else text
    prose = _without_code(text)
    return _read_prose(prose) if prose == text else (*_read_prose(prose), Intent("code"))


def _without_code(text: str) -> str:
    """Return the text without pasted code; of a very long one that begins with code, the question at its end alone."""
    kept, is_code, lines = [], False, _compiled(_FENCE).sub("\n", text[:READ_LENGTH]).split("\n")
    for line in lines:
        is_code = bool(found_in(_CODE_LINE, line.strip()) or (is_code and found_in(_CODE_GOES_ON, line)))
        kept += [] if is_code else [line]
    if len(text) > READ_LENGTH:
        last = text[-READ_LENGTH:].rpartition("\n")[2]
        return text if len(kept) * 2 > len(lines) else last if last.endswith(_QUESTION_MARKS) else ""
    return "\n".join(kept).strip() if len(kept) < len(lines) or "```" in text else text


def _read_prose(text: str) -> tuple[Intent, ...]:
    if len(text) > NOTE_LENGTH or found_in(_LIST_LINE, text):
        return _read_note(text)
    intents: list[Intent] = []
    for sentence in sentences(text):
        intent = _read_sentence(sentence)
        if intents and intents[-1].kind == intent.kind == "tell" and found_in(_CONTINUES, sentence):
            # "My sister is Emma. She is a doctor.": apart, the second would say nothing.
            intents[-1] = Intent("tell", f"{intents[-1].text} {sentence}")
        elif intent not in intents:
            intents.append(intent)
    return tuple(intents)


def _read_note(text: str) -> tuple[Intent, ...]:
    # Of a very long text the end is looked at, for the question that may be there.
    parts = sentences(text[-READ_LENGTH:])
    kept = found_in(_KEEP, text)
    note = Intent("tell", text[kept.start("rest") :].strip() if kept else text, is_note=True)
    last = _read_sentence(parts[-1]) if parts else note
    if last.kind != "ask" or not parts[-1].rstrip(_AFTER).endswith(_QUESTION_MARKS):
        return (note,)
    return (last,) if len(parts) == 1 else (note, last)


def _read_sentence(sentence: str) -> Intent:
    bare = _compiled(_FILLER).sub("", sentence)
    wish = _compiled(_POLITE).sub("", bare)
    is_marked = sentence.rstrip(_AFTER).endswith(_QUESTION_MARKS)
    # "Remember my name?" asks, "Can you remember my name?" wishes.
    is_wish = wish != bare or not is_marked
    is_secret = found_in(_SECRET, sentence) or (
        found_in(_SECRET_ASKED, sentence) and (is_marked or found_in(_QUESTION, bare))
    )
    if is_secret and not (is_wish and found_in(_FORGET, wish)):
        return Intent("secret")
    plain: tuple[tuple[IntentKind, str], ...] = (("yes", _YES), ("talk", _TALK), ("help", _HELP), ("list", _LIST))
    for kind, pattern in plain:
        if found_in(pattern, bare):
            return Intent(kind)
    if is_wish and (kept := found_in(_KEEP, wish)):
        return Intent("tell", kept["rest"].rstrip("?？ ") if is_marked else kept["rest"])
    if is_wish and (forgotten := found_in(_FORGET, wish)):
        return Intent("forget", forgotten["rest"].strip(" .!?。！？"))
    if found_in(_TASK, wish) and not facts_told(wish):
        return Intent("task")
    if (
        is_marked
        or found_in(_LOOK, wish)
        or (found_in(_QUESTION, bare) and not found_in(_WHEN_I, bare) and bare[-1:] != "!")
    ):
        return Intent("ask", sentence)
    # A word alone is something to look for rather than something told.
    return Intent("ask" if len(bare.split()) == 1 and len(bare) < 15 and bare.isascii() else "tell", bare)


def sentences(text: str, end_pattern: str = _SENTENCE_END) -> list[str]:
    text = text[:READ_LENGTH]
    found, start = [], 0
    for match in _compiled(end_pattern).finditer(text):
        before = text[max(start, match.start() - 9) : match.start()]
        if not (text[match.start()] == "." and found_in(_NO_END, before)):
            found.append(text[start : match.end()].strip())
            start = match.end()
    return [part for part in (*found, text[start:].strip()) if re.search(r"\w", part)]


def statements(text: str) -> list[str]:
    return sentences(text, _STATEMENT_END)


def is_personal(text: str) -> bool:
    return bool(found_in(_FIRST_PERSON, text) or facts_told(text))


def facts_told(text: str) -> set[str]:
    return _facts(text, _TOLD)


def facts_asked(text: str) -> set[str]:
    return _facts(text, _ASKED)


def _facts(text: str, patterns: tuple[tuple[str | None, str], ...]) -> set[str]:
    found: set[str] = set()
    for kind, pattern in patterns:
        if match := None if found and kind is None else found_in(pattern, text):
            words = kind or " ".join(next(filter(None, match.groups())).lower().split())
            found.add(words.replace("favorite", "favourite").replace("color", "colour"))
    return found


def is_single(kind: str) -> bool:
    return kind in _SINGLE or kind.startswith("favourite ")


@lru_cache(4096)
def words_in(text: str) -> frozenset[str]:
    from ricordo.search.words import terms

    return frozenset(terms(text[:READ_LENGTH]))


@lru_cache(512)
def topic(text: str) -> frozenset[str]:
    """Return the terms that a question or a wish is about; none where it only asks."""
    from ricordo.search.words import query_terms

    return frozenset(query_terms(text[:READ_LENGTH])) - words_in(_ASKING)


def shared(wanted: frozenset[str], text: str) -> int:
    offered = words_in(text)
    return sum(1 for word in wanted if word in offered or any(_are_related(word, other) for other in offered))


def _are_related(one: str, other: str) -> bool:
    """Whether two terms are forms of one word: alike but for a short ending."""
    if one[:4] != other[:4] or not (one + other).isalpha():
        return False
    common = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return common >= 4 and max(len(one), len(other)) - common <= (2 if common == 4 else 3)
