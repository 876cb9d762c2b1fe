"""What a person means, as far as the librarian can tell from English: to tell, ask, forget, or a task beyond it.

What it cannot tell is a statement, in any language. Words are compared as the search index does, so in every language.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal

from ricordo.domain.redaction import redact

# The characters of one text that are read: more would hold up all other turns, and what a text is about is at its start.
READ_LENGTH = 4_000
NOTE_LENGTH = 300
_QUESTION_MARKS = ("?", "？")
_AFTER = "\"'”’) "

IntentKind = Literal["tell", "ask", "list", "forget", "yes", "talk", "help", "task", "secret", "code", "fragment"]


@dataclass(frozen=True, slots=True)
class Intent:
    """What one sentence asks for. A note is kept whole in the archive; what corrects may name the words that it replaces."""

    kind: IntentKind
    text: str = ""
    is_note: bool = False
    corrects: bool = False
    replaces: str = ""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def found_in(pattern: str, text: str) -> re.Match[str] | None:
    return _compiled(pattern).search(text, 0, READ_LENGTH)


_SENTENCE_END = r"(?<![.!?…])[.!?…]+[\"'”’)]*\s+|[。！？]+[”」』]?\s*|\n+"
_CLAUSE_END = r"(?:,|(?<!\s))\s+and (?=(?:i|we|my|our)\b)|,\s+(?=(?:i|we|my|our)\b)"
# What can stand alone, and what shows that a sentence cannot be divided.
_CLAUSE = r"^(?:i|we)\b\S* \S|^(?:my|our) [\w'’ -]{1,40}? (?:is|are|was|were|has|lives?|likes?|works?|studies) "
_BOUND = (
    r"\b(?:when|if|while|because|since|after|before|although|though|unless|until|that|than|where|who|which|so|said|told|thinks?"
    r"|thought|hope|wish)\b"
)
_REFERS = r"\b(?:he|she|it|they|him|her|them|this|that|these|those|there|then|too|also|n?either|both)\b"
_NO_END = r"(?:^|[\s(])(?:\d+|[^\W\d_]|dr|mr|mrs|ms|prof|st|no|nr|vs|etc|e\.g|i\.e|ca|sig|dott)$"
_LIST_LINE = r"(?:^|\n)[^\S\n]*(?:[-*•]|\d+[.)])\s+\S"
_FILLER = (
    r"^(?:(?:(?:hi|hello)(?=(?: there)?[,.!]? (?:i|my|what|who|can)\b)|please|hey|okay|ok|so|well|and|also|btw|by the way|oh"
    r"|listen)\b[\s,:;!]*)+(?=\S)"
)
_POLITE = r"^(?:(?:can|could|would|will) you|you (?:should|must|can)|i(?:['’]d like| would like| want| need) you to) (?:please )?"
_KEEP = (
    r"^(?:remember|merke? dir|recuerda|ricorda(?:ti)?|note|memori[sz]e|keep in mind|do(?:n['’]?t| not) forget|write down"
    r"|make a note|save|store)\b(?:[\s,]*(?:of )?(?:that|this|dass|que|che)\b)?[\s,:：]*(?P<rest>.+)$"
)
_FORGET = (
    r"^(?:forget|delete|remove|erase|strike|vergiss|lösche|olvida|borra|dimentica|cancella)\b[\s,]*(?:(?:(?:everything |all "
    r"|anything )?(?:(?:you know|(?:that )?i (?:said|told you)|what i (?:said|told you)) )?(?:about|that)|dass|que"
    r"|che)\b\s*)*(?P<rest>.*)$"
)
_LIST = (
    r"^(?:what (?:all )?(?:do|did|can|have) (?:you|i) (?:know|remember|stored?|filed?|saved?|kept|learn(?:ed|t)?|told? you"
    r"|tell you)(?: (?:about|of) (?:me|myself))?|what(?:['’]s| is| do you have) in (?:your|my|the) (?:memory|notes|archive)"
    r"|(?:list|show|tell|give)(?: me)?(?: (?:all|everything|what|(?:all )?(?:of )?(?:my|your|the) (?:notes|memory|memories"
    r"|facts)))?(?: (?:that )?(?:you|i)(?: have|['’]ve)? (?:know|remember|stored|filed|saved|told you|wrote down))?(?: about me)?"
    r"|(?:do|can) you (?:know|remember) me|everything(?: you know)?(?: about me)?|was wei(?:ß|ss)t du(?: alles)?(?: über mich)?"
    r"|(?:¿\s*)?qué sabes(?: de mí| sobre mí)?|(?:che )?cosa sai(?: di me)?)(?: so far| now| yet| please)?\W*$"
)
_HELP = (
    r"^(?:/?help(?: me)?|i need help|hilfe|ayuda|aiuto)\W*$|^(?:who|what|where) are you\b|^what(?:['’]s| is) your name"
    r"|^what can you do|^how do you work|^what is (?:this|ricordo)\W*$|^are you (?:an? )?(?:ai|bot|robot|human|person|real|machine"
    r"|language model|librarian)|^(?:(?:how|where|can|could|i want)\b.{0,30}\b)?(?:connect|use|set ?up|configure|add"
    r"|choose) (?:an? |the |another )?(?:real |other |better )?(?:language )?(?:model|llm|ollama|openai|anthropic|api key)\b"
)
_TASK = (
    r"^(?:schreibe?|übersetze?|escribe|traduce|scrivi|traduci|write|translate|summari[sz]e|explain|calculate|compute|solve"
    r"|generate|compose|rewrite|draw|imagine|pretend|tell me an? (?:joke|story|poem|riddle|fact))\b"
)
_YES = r"^(?:yes|yeah|yep|sure|do it|go ahead|all of them|both)(?:[, ]+(?:please|all|both|them|of))*\W*$"
_TALK = (
    r"^(?:hallo|guten (?:morgen|tag|abend)|wie geht es dir|danke|tschüss|hola|buenos días|(?:muchas )?gracias|cómo estás|come stai"
    r"|adiós|ciao|buongiorno|grazie|lol|haha|test(?:ing)?|hm+|what['’]?s up|hi|hello|hey|good (?:morning|afternoon|evening|day"
    r"|night)|how are you|(?:many )?thanks|thank you|(?:good ?)?bye|see you|no|nope|none|never ?mind|ok(?:ay)?|fine|great|nice"
    r"|cool|good|perfect|right|alright|got it|that(?:['’]s| is) (?:great|good|nice|right|correct|fine|all|wrong|not (?:right|true"
    r"|what i (?:said|meant)))|(?:good|great|nice|well) (?:job|work|done)|you(?:['’]re| are)(?: so| very)? \w+)(?: (?:there|again"
    r"|so much|very much|a lot|mille|schön|sehr|today|later|(?-i:[A-Z])\w+))*\W*$"
)
_LOOK = (
    r"^(?:tell me|find|search|look (?:up|for)|show (?:me )?|list|remind me (?:of|about|what|where|when|who|which|how|why)"
    r"|what about|i(?:['’]d like| would like| want| need) to know|i wonder|i forgot (?:what|where|when|who|which|how))\b"
)
_VERB = (
    r"(?:is|are|was|were|am|do|does|did|can|could|should|would|will|shall|have|has|had|may|might|(?:is|are|was|do|does"
    r"|did)n['’]?t)"
)
_QUESTION = (
    rf"^(?:what|who|whom|where|when|which|whose|why|how)(?:['’]?s\b|['’]?re\b|(?: \w+){{0,3}}? {_VERB}\b(?! (?:so"
    rf"|such)\b))(?=.)"
    r"|^¿?(?:wer|wann|wo|wie|warum|quién|cuándo|dónde|cómo|qué|cuál|chi|dove|perché) (?!gesagt)"
    rf"|^{_VERB} (?:i|you|we|he|she|it|they|my|your|our|his|her|their|the|there|this|that|these|those|any|anyone)\b"
)
_WHEN_I = r"^(?:when|where|while|what|how|which) (?:i|we|my|our|he|she|they)\b"
CONTINUES = r"^(?:she|he|it|sie|er|ella|él|lei|lui|they|this|that|these|those|her|his|its|their|because|and|but)\b"
_FIRST_PERSON = r"\b(?:i|i['’](?:m|ve|d|ll)|me|my|mine|myself|we|we['’](?:re|ve|ll)|our|us)\b"
IS_CLAUSE = r"^(?:i|we)\b\S* \S|^(?:my|our) .{1,60} (?:is|are|was|were) "
NEGATED = r"\b(?:not|no|never|without)\b|n['’]?t\b"
_OPENS_CORRECTION = (
    r"^(?:(?:(?:no|nope|sorry|wait|oops|wrong|well|that(?:['’]s| is| was) (?:wrong|not (?:right|true))|you(?:['’]ve)? got (?:it"
    r"|that) wrong|not \w+)(?:\s*[,.:;!–-]+\s*|\s+(?=actually|sorry|i mean))|(?:actually|correction|update|in fact"
    r"|i mean(?:t)?(?! it| that| to| what| well))\b[\s,:]*(?:but )?)(?:it(?:['’]s| is) )?)+(?=\S)"
)
_ONLY_OPENS = (
    r"^(?:no|nope|sorry|wait|oops|wrong|actually|correction|that(?:['’]s| is| was) (?:wrong|not (?:right|true)))\W*$"
)
_HAS_VERB = r"\b(?:is|are|was|were|am|have|has|had|do|does|did|likes?|lives?|can|will|not)\b|['’](?:s|m|re)\b"
_ADDS = r"\b(?:too|also|as well|another|both)\b"
# How a statement begins: what comes after it is what may be corrected.
_FRAME = (
    r"^(.{1,120}\b(?:is|are|was|i['’]m|am|in|on|at|to|from|by|called|named|like|love|hate|prefer|study|play|speak|an?"
    r"|the))\s+[^\s,;]+(?: [^\s,;]+){0,2}?[.!]?$"
)
CORRECTION = (
    r"\b(?:actually|correction|no longer|any ?more|now|changed|instead|i mean(?:t)?|wrong|in fact)\b|^(?:no|sorry)[, ]"
)

# What is neither repeated nor filed: what redaction removes, and what is a secret by its name alone.
_PRIVATE = (
    r"(?:pass(?:word|phrase|code)|passwort|kennwort|contraseña|pin(?: (?:code|number))?|cvv|cvc|(?:card|social security) number"
    r"|ssn|(?:alarm|access|safe|entry) code|(?:api|private|secret|access) key|access token)"
)
_SECRET = (
    rf"\[secret removed: |\b{_PRIVATE}(?: (?!is\b)\w+){{0,3}}\s?(?:\bis\b|\bist\b|\bes\b|è|:|=)\s*\S"
    r"|(?<!\d)(?:\d{4}[ -]){3}\d{4}(?!\d)"
)
_SECRET_ASKED = rf"\b(?:my|our|the|mein|mia|mi) (?:\w+ ){{0,2}}?{_PRIVATE}\b"
_FENCE = r"```[\s\S]*?(?:```|$)"
_CODE_LINE = (
    r"^(?:import \w[\w.]*(?:$|[;,]| as )|from [\w.]+ import |(?:async )?def \w+\(|(?:async )?function\b[^(]{0,60}\("
    r"|class \w+(?:\([^()]{0,80}\))?(?::| ?\{)$|(?:const|let|var|val) \w+ ?(?::[^=]{1,40})?=|#include|#!/|>>> |\$ \w|@\w+(?:\(|$)"
    r"|for \w.{0,80} in .{1,80}:|(?:public|private|static|int|void|char) [^;{]{0,120}[;{]|(?-i:SELECT .{1,200} FROM|INSERT INTO"
    r"|UPDATE \w+ SET|CREATE TABLE|DELETE FROM) |Traceback \(most|File \"[^\"]+\", line \d|(?-i:[A-Z]\w*(?:Error|Exception)): "
    r"|</?[a-z][\w-]*(?: [^<>]*)?/?>|[\w.]+\([^()]*\);?$|[\w.\[\]]+ ?(?:[-+*/]?=|:=) ?[^\n]*[;)\]}\"'\d]$"
    r"|[\[{]\s*[\"'][^\n]*[\]}],?$|(?-i:[a-z])[^\n]*\);$|[^\n]*\{$|[{}\[\]()]+[;,]?$)"
)
# Lines that are code where the line before is.
_CODE_GOES_ON = r"^(?:\s{2,}\S|\t|(?:return|else|elif|except|try|if|while)\b|[)}\]]|\s*$)|[{};:,\\]\s*$"

# Facts as they are told: "My name is Ada.", "Name: Ada", and in words of their own.
_OWN = (
    r"\bmy ([^\W\d_][\w'’ -]{1,40}?)(?: is| are|:) |\bmy (name)['’]s |^\W*(?:(?:the )?(?:user|human)'s |(?:user"
    r"|human) )?([a-z][a-z -]{1,20}):"
)
_NAME = (
    r"\b(?:change my name to|call me) (?!an? |the |later|back|when|if|on |at |to|in )\w|\bi(?:'m|’m| am) called \w|^(?:i'm|i’m"
    r"|i am) (?-i:[A-Z])\w+(?<!ish|ian|ese|can|man)[.!]?$"
)
_HOME = (
    r"\bi(?:'m|’m| am)? (?:now |currently )?(?:live|living|reside) (?:in|at|near|on)\b|\bi(?:'ve|’ve| have)?(?: just"
    r"| recently)? moved to\b|^\W*lives in\b"
)
_AGE = r"^i(?:'m|’m| am| turned| just turned) (?:now )?\d{1,3}(?: years old| now)?\W*$"
_TOLD = (("name", _NAME), ("home", _HOME), ("age", _AGE), (None, _OWN))
_ASKED = (
    ("name", r"\bwho (?:am i|i am)\b|\bi(?:'m| am) called|\bdo you call me\b"),
    ("home", r"\b(?:do|did) i live\b|\bi live\b"),
    ("age", r"\bhow old (?:am i|i am)\b"),
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
    opening = ""
    for each in sentences(text):
        sentence, opening = opening + each, ""
        if found_in(_ONLY_OPENS, each) and not text.endswith(each):
            opening = each + " "
            continue
        intent = _read_sentence(sentence)
        if intents and intents[-1].kind == intent.kind == "tell" and found_in(CONTINUES, sentence):
            # "My sister is Emma. She is a doctor.": apart, the second would say nothing.
            intents[-1] = replace(intents[-1], text=f"{intents[-1].text} {sentence}")
        else:
            intents.append(intent)
    return tuple(dict.fromkeys(part for intent in intents for part in _parts(intent)))


def _parts(intent: Intent) -> list[Intent]:
    """Return one intent for each statement that can stand on a line of its own."""
    told = statements(intent.text) if intent.kind == "tell" else []
    if len(told) < 2 or any(found_in(CONTINUES, part) for part in told):
        return [intent]
    return [replace(intent, text=part.removesuffix(" and").rstrip(" ,;")) for part in told]


def corrected(intents: Sequence[Intent], filed: str) -> tuple[Intent, ...]:
    """Return the intents, with "No, green." made a sentence out of what was filed last: "My favourite colour is blue."."""
    start = frame(filed)
    end = start.lower().rpartition(" ")[2] + " "
    return tuple(_corrected(each, start, end, filed) if each.kind == "fragment" else each for each in intents)


def _corrected(fragment: Intent, start: str, end: str, filed: str) -> Intent:
    words = fragment.text
    if start:
        words = words[len(end) * words.lower().startswith(end) :]
        return Intent("tell", f"{start} {words}", corrects=True, replaces=filed)
    return Intent("tell", words, corrects=True) if len(words.split()) > 2 else fragment


def frame(text: str) -> str:
    """Return how the statement begins, up to what it says of it; nothing where it cannot be told."""
    found = found_in(_FRAME, text) if len(text) <= NOTE_LENGTH else None
    return found[1] if found else ""


def is_denied(one: str, other: str) -> bool:
    """Whether the other says that this does not hold: "I like tea.", "I don't like tea any more."."""
    is_same = bool(topic(one)) and words_in(one) <= words_in(other)
    return is_same and bool(found_in(NEGATED, one)) != bool(found_in(NEGATED, other))


def is_same_frame(one: str, other: str) -> bool:
    """Whether both say something of the same, and each only one thing: "I work at Fiat.", "I work at Ferrari."."""
    start = frame(one).casefold()
    return len(start.split()) > 2 and start == frame(other).casefold() and not found_in(_ADDS, other)


def _read_note(text: str) -> tuple[Intent, ...]:
    if found_in(_SECRET, text):
        return (Intent("secret"),)
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
    opened, bare = bare, _compiled(_OPENS_CORRECTION).sub("", bare)
    corrects = bare != opened
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
    if corrects and len(bare.split()) <= 4 and not found_in(_FIRST_PERSON, bare) and not found_in(_HAS_VERB, bare):
        return Intent("fragment", bare)
    # A word alone is something to look for rather than something told.
    is_word = len(bare.split()) == 1 and len(bare) < 15 and bare.isascii()
    return Intent("ask", bare) if is_word else Intent("tell", bare, corrects=corrects)


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
    """Divide the text into what can be said, corrected and forgotten by itself."""
    return [part for sentence in sentences(text, _SENTENCE_END + r"|(?<!\s)\s*;\s*") for part in _clauses(sentence)]


def _clauses(sentence: str) -> list[str]:
    found = sentences(sentence, _CLAUSE_END)
    stand = all(found_in(_CLAUSE, part) for part in found) and not found_in(_BOUND, sentence)
    return found if stand and not any(found_in(_REFERS, part) for part in found[1:]) else [sentence]


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
    # "Marco" is not a form of "March".
    is_stem = common > 4 or common == min(len(one), len(other)) == 4
    return is_stem and max(len(one), len(other)) - common <= (2 if common == 4 else 3)
