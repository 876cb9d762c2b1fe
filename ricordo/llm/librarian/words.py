"""How the librarian compares words: what carries meaning, which forms belong together, and kinds of facts about a person."""

import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property, lru_cache

# The characters of one text that are read: more would hold up all other turns, and what a text is about stands at its start.
READ_LENGTH = 4_000
# Scripts written without spaces (and Korean, whose particles stick to words) are compared by pairs of characters.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_MARKS = re.compile(r"[\u0300-\u036f]")
_UNSPACED_STOP = re.compile(
    r"什么|甚麼|什麼|怎么|怎麼|哪里|哪儿|哪裡|告诉|告訴|记得|記得|知道|关于|關於|多少|[谁誰哪吗嗎呢吧啊的了是我你您在有请請几幾]"
    r"|ですか|ますか|何|どこ|いつ|だれ|私|僕|の|は|を|が|に|です|ます"
)
_STOP = frozenset(
    """a an and are as at be been but by for from had has have he her hers him his i if in into is it its me mine my myself
    no not of off on or our ours out over she so than that the their them then there these they this those to too up us
    was we were what whats when where which who whom whose why will with would you your yours yourself am do does did done
    can could should shall may might must how much many any anything something everything nothing all some thing things
    know knew remember recall tell told say said saying find search look show list give get got please about again ever
    just still also want wish wonder ask asked talk talked talking mention mentioned forget notes note memory memories
    i'm i've i'd i'll you're you've it's that's what's who's where's don't doesn't didn't isn't can't let let's
    der die das den dem des ein eine einen einem einer und oder ist sind bist ich du er sie es wir ihr mein meine
    meinen meiner meinem mich mir dich dir was wer wo wann wie warum wieso welche welcher welches wessen wohin woher weißt
    weiss kennst noch über von vom zu zum zur mit für auf im am an nicht habe hast dass daß bitte
    il lo la gli le un uno una di da del della dei che chi cosa dove quando come perché quale qual sono sei è ho hai mi ti
    io tu mio mia miei mie sai ricordi per con su al alla non
    les des du et ou est suis je tu mon ma mes quel quelle quels où qui que quoi quand comment pourquoi sur dans avec pour
    sais ce ne pas el los las y o es soy yo mis qué quién dónde cuándo cómo cuál sabes en con para por sobre no de
    и в на я ты мой моя мои меня мне что кто где когда как это""".split()
)


class Pattern:
    """A regular expression without regard to case, compiled when first used: where a real model answers, it never is."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.source, re.IGNORECASE | re.DOTALL)

    def match(self, text: str) -> re.Match[str] | None:
        """The match at the start of the text."""
        return self._compiled.match(text, 0, READ_LENGTH)

    def search(self, text: str) -> re.Match[str] | None:
        """The first match anywhere in the text."""
        return self._compiled.search(text, 0, READ_LENGTH)

    def cut(self, text: str) -> str:
        """The text without what matches."""
        return self._compiled.sub("", text[:READ_LENGTH])


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fact: how it is told, how it is asked for. Of a single kind a person has one at a time."""

    name: str
    told: Pattern
    asked: Pattern
    search: tuple[str, ...] = ()
    is_single: bool = True


def _kind(name: str, told: str, asked: str, search: str = "", *, is_single: bool = True) -> Kind:
    return Kind(name, Pattern(told), Pattern(asked), tuple(search.split()), is_single)


_IS = r"(?: is|'s|’s|:| =)"
KINDS = (
    _kind(
        "name",
        rf"\bmy (?:full |first |real )?name{_IS}|\bcall me (?!an? |the |later|back|when|if|on |at |to|in )\w"
        rf"|\bi(?:'m|’m| am) called \w"
        rf"|^(?:hi|hello|hey|hallo|ciao)\b[ ,!]*i(?:'m|’m| am) (?-i:[A-Z])\w+[.!]?$"
        rf"|^\W*(?:the (?:user|human)'s |(?:user|human|full|first) )?name{_IS}"
        r"|\bmein name ist|\bich hei(?:ß|ss)e|\bmi chiamo|\bil mio nome è|\bje m['’]appelle|\bmon nom est"
        r"|\bme llamo|\bmi nombre es|\bменя зовут|我叫|我的名字[是叫]|私の名前は",
        r"\bmy (?:full |first |real )?name\b|\bwho (?:am i|i am)\b|\bi(?:'m| am) called|\bhei(?:ß|ss)e ich"
        r"|\bich hei(?:ß|ss)e"
        r"|\bmein name|\bmi chiamo|\bmio nome|\bm['’]appelle|\bmon nom|\bme llamo|\bmi nombre|\bменя зовут"
        r"|我叫|我的名字|私の名前",
        "name",
    ),
    _kind(
        "home",
        r"\bi(?:'m|’m| am)? (?:now |currently )?(?:live|living|reside|residing) (?:in|at|near|on)\b"
        r"|\bi(?:'ve|’ve| have)?(?: just| recently)? moved (?:to|in)\b"
        rf"|\bmy (?:home|home town|hometown|address|city){_IS}|^\W*(?:lives in|home:|address:|city:|location:)"
        r"|\bich (?:wohne|lebe) |\babito (?:a|in)\b|\bvivo (?:a|in|en)\b|\bj['’]habite|\bmoro em\b|我住|我家在|私は.+に住",
        r"\b(?:do|did|does) (?:i|we) live\b|\bi live\b|\bmy (?:home|hometown|address|city)\b|\b(?:wohne|lebe) ich"
        r"|\babito\b|\bvivo\b|j['’]habite|我住|我家|どこに住",
        "live moved home",
    ),
    _kind(
        "allergy",
        r"allerg|intoleran|алерг|аллерг|过敏|過敏|アレルギー",
        r"allerg|intoleran|аллерг|过敏|過敏|アレルギー",
        "allergic allergy",
        is_single=False,
    ),
    _kind(
        "origin",
        r"\bi(?:'m|’m| am| come) from\b|^\W*from:|\bich (?:komme|bin) aus\b|\bvengo da|\bsoy de\b"
        r"|\bje viens de\b|我来自|我是.+人",
        r"\b(?:am i|i am|do i come|i come) from\b|komme ich her|da dove vengo|我来自",
        "from",
        is_single=False,
    ),
    _kind(
        "birthday",
        r"\bmy birthday\b|\bi was born\b|^\W*(?:birthday|born|date of birth)\b|\bmein geburtstag"
        r"|\bich bin am .+ geboren"
        r"|\bil mio compleanno|\bsono nat[oa]|\bmon anniversaire|\bje suis née?\b|\bmi cumpleaños|\bnací|我的生日|我生于",
        r"\bmy birthday\b|\b(?:was i|i was) born\b|\bmein geburtstag|\bmio compleanno|\bmon anniversaire"
        r"|\bmi cumpleaños"
        r"|我的生日",
        "birthday born",
    ),
    _kind(
        "age",
        r"\bi(?:'m|’m| am) (?:now |already )?\d{1,3}(?: years old\b|[.!]?$)|^\W*age:|\bich bin \d{1,3} jahre",
        r"\bhow old (?:am i|i am)\b|\bmy age\b|\bwie alt bin ich",
        "old years age",
    ),
    _kind(
        "work",
        rf"\bi(?:'m|’m| am)? (?:now )?work(?:ing)? (?:at|as|for|in)\b|\bmy (?:job|profession|employer){_IS}"
        r"|^\W*(?:job|works|profession|occupation)\b|\bich arbeite|\blavoro (?:a|al|alla|in|come|per)\b"
        r"|\bje travaille"
        r"|\btrabajo (?:en|como|para)\b|我的工作",
        r"\b(?:do|did) i work\b|\bmy (?:job|work|profession|employer)\b|\bdo i do for a living|\barbeite ich|我的工作",
        "work job",
        is_single=False,
    ),
    _kind("email", rf"\bmy e-?mail(?: address)?{_IS}|^\W*e-?mail:", r"\bmy e-?mail\b", "email"),
    _kind(
        "phone",
        rf"\bmy (?:phone|mobile|telephone)(?: number)?{_IS}|^\W*(?:phone|mobile):",
        r"\bmy (?:phone|mobile|telephone)\b",
        "phone number",
    ),
)
_SINGLE = frozenset(kind.name for kind in KINDS if kind.is_single)
_OF_ONES_OWN = Pattern(r"\bmy ([^\W\d_][\w'’ -]{1,40}?) (?:is|are)\b")
_FAVOURITE = Pattern(r"\bmy (favou?rite [^\W\d_][\w'’ -]{1,30}?)(?= (?:is|are)\b|\s*[?.!]|$)")
# "I'm Ada." may be a name or "I'm Italian.": good enough to be shown when the name is asked for, never to replace one.
_PERHAPS_NAME = Pattern(
    r"^(?:i'm|i’m|i am) (?!\w*(?:ish|ese|ican|alian|rman|rench|utch|reek|wiss|egan)\b)(?-i:[A-Z])\w+[.!]?$"
)


def fold(text: str) -> str:
    """The text without case and accents."""
    text = text[:READ_LENGTH]
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFKD", text.casefold())))


_STOP_FOLDED = frozenset(fold(word) for word in _STOP)


def plain(text: str) -> str:
    """The words alone, folded, one space between them: for telling whether two sentences are the same."""
    return " ".join(word.replace("’", "'") for word in _WORD.findall(fold(text)))


def query_words(text: str) -> list[str]:
    """The words that carry meaning, as they were written, each once: what to search for."""
    text = text[:READ_LENGTH]
    words = [word for word in _WORD.findall(_UNSPACED.sub(" ", text)) if _carries_meaning(fold(word))]
    for run in _UNSPACED.findall(text):
        pieces = [piece for piece in _UNSPACED_STOP.sub(" ", run).split() if piece]
        words += [piece for piece in pieces if len(piece) > 1] or pieces
    return list(dict.fromkeys(words))


def stems(text: str) -> set[str]:
    """The stems of the words that carry meaning."""
    folded = fold(text)
    if folded.isascii():
        return set(map(_stem, _WORD.findall(folded))) - {""}
    found = set(map(_stem, _WORD.findall(_UNSPACED.sub(" ", folded)))) - {""}
    for run in _UNSPACED.findall(folded):
        for piece in _UNSPACED_STOP.sub(" ", run).split():
            found.update(piece[at : at + 2] for at in range(max(1, len(piece) - 1)))
    return found


# The same few hundred words come again and again, line by line.
@lru_cache(maxsize=8192)
def _stem(word: str) -> str:
    """A folded word without its commonest English endings, empty if it carries no meaning; `are_related` meets other languages."""
    if not _carries_meaning(word):
        return ""
    word = re.sub(r"['’]s?$", "", word)
    for ending, shortest in (("ies", 5), ("ing", 6), ("ed", 5), ("es", 5), ("s", 4)):
        if word.endswith(ending) and len(word) >= shortest and not word.endswith("ss"):
            word = word[: -len(ending)] + ("i" if ending == "ies" else "")
            if ending in {"ing", "ed"} and word[-1:] == word[-2:-1] and len(word) > 3:
                word = word[:-1]
            break
    if len(word) > 3 and word.endswith("e"):
        return word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


def are_related(one: str, other: str) -> bool:
    """Whether two stems are forms of one word: equal, or alike but for a short ending."""
    if one == other:
        return True
    if one[:4] != other[:4] or min(len(one), len(other)) < 4 or not (one + other).isalpha():
        return False
    common = 4
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return max(len(one), len(other)) - common <= (2 if common == 4 else 3)


def score(text: str, wanted: set[str], kinds: set[str]) -> int:
    """How well the text fits: each wanted stem counts one, a wanted kind of fact two."""
    folded = fold(text)
    # Most texts share nothing: a look for the words' beginnings is much cheaper than their stems.
    near = any(word[:3] in folded for word in wanted)
    return (shared(wanted, stems(text)) if near else 0) + 2 * tells(text, kinds)


def shared(wanted: set[str], offered: set[str]) -> int:
    """How many of the wanted stems have a form among those offered."""
    missing = wanted - offered
    heads = {word[:4] for word in missing}
    near = [word for word in offered if word[:4] in heads]
    return len(wanted) - sum(1 for word in missing if not any(are_related(word, other) for other in near))


def kinds_told(text: str) -> set[str]:
    """Which kinds of facts the text states; `my sister's name is …` is the kind `my sister's name`."""
    found = {kind.name for kind in KINDS if kind.told.search(text)}
    if not found and (match := _OF_ONES_OWN.search(text)):
        found.add(_own_kind(match[1]))
    return found


def kinds_asked(text: str) -> set[str]:
    """Which kinds of facts the text asks for."""
    found = {kind.name for kind in KINDS if kind.asked.search(text)}
    return found or {_own_kind(match[1]) for match in [_FAVOURITE.search(text)] if match}


def tells(text: str, kinds: set[str]) -> bool:
    """Whether the text states a fact of one of these kinds, certainly or likely."""
    if not kinds:
        return False
    certainly = any(kind.told.search(text) for kind in KINDS if kind.name in kinds)
    own = any(kind.startswith("my ") for kind in kinds) and bool(kinds & kinds_told(text))
    return certainly or own or ("name" in kinds and _PERHAPS_NAME.match(text) is not None)


def is_single(kind: str) -> bool:
    """Whether a person has only one fact of this kind at a time, so that a new one takes the old one's place."""
    return kind in _SINGLE or kind.startswith("my favourite ")


def search_words(kinds: set[str]) -> list[str]:
    """The words by which facts of these kinds are likely to be told."""
    return [word for kind in KINDS if kind.name in kinds for word in kind.search]


def _own_kind(words: str) -> str:
    return "my " + plain(words).replace("favorite", "favourite").replace("color", "colour")


def _carries_meaning(word: str) -> bool:
    bare = re.sub(r"['’]s$", "", word)
    return bare not in _STOP_FOLDED and word.replace("’", "'") not in _STOP_FOLDED and (len(bare) > 1 or bare.isdigit())
