"""Secrets are replaced by a placeholder that names their kind: in memory, traces, pushes and messages of errors.

Memory is read for years by models, people and remotes, so it keeps no keys or passwords. Ordinary notes have to survive: a secret
is known by its shape, or by the name before it and its shape. In texts of machines (`is_strict`) a name or prefix is enough.
Signs that nobody sees, and wide or ornamental forms of letters, hide no secret: the text is also read without them.
"""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

PLACEHOLDER = "[secret removed: {}]"
HIDDEN = PLACEHOLDER.format("credential")


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text without its secrets, the kinds of them there were, in their order, and the kind of each secret."""

    text: str
    kinds: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One kind of secret: the group `secret` of the pattern is replaced where `is_one` agrees.

    It is looked for only where one of `marks` is in the text in small letters: that is a hundred times quicker than the pattern.
    `sign` is in all of the marks: one look for it spares many.
    """

    kind: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    is_one: Callable[[re.Match[str]], bool] | None
    sign: str


_ENDINGS = ".!?)"
_PIECES = re.compile(r"[A-Za-z0-9]+")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_DIGIT = re.compile(r"\d")
_TURN = re.compile(r"(?<=[a-z])(?=[A-Z\d])|(?<=[A-Z])(?=\d)|(?<=\d)(?=[A-Za-z])")
_PREFIXES = (
    "sk- sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_ gsk_ xai- hf_ npm_ pypi- glpat- ghp_ gho_ ghs_ ghu_ ghr_ "
    "github_pat_ xoxa- xoxb- xoxp- xapp- AKIA ASIA AIza dop_v1_ shpat_ SG. ricordo_"
).split()
# A key of this server: 32 random bytes in base64url.
_OURS = re.compile(r"ricordo_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
_SIGN = r"[\"'`\\]{0,3}\s{0,3}(?P<sign>[:=]|is\b|ist\b|lautet\b|est\b|es\b)\s{0,3}[\"'`\\]{0,3}"
_VALUE = r"(?P<secret>[^\s\"'`,;&}\\<>\[\]]"
_NO_PASSWORDS = frozenset(
    "none null true false required optional string unknown changed correct forgotten reset expired lost weak strong same shared "
    "needed stored saved written secret hidden private pending default missing vergessen geheim "
    "password passwd passphrase pass pwd str text bytes varchar secretstr".split()
)
# Whose password it is, in English, German, French, Spanish and Italian, right before the word.
_OWN = re.compile(
    r"(?i)\b(?:my|our|mein(?:e[mnrs]?)?|unser(?:e[mnrs]?)?|mon|notre|mi|nuestra|mia|nostra|mio|nostro)"
    r"(?:\s{1,3}(?!password|passwort|kennwort|contraseña)[\w@.-]{1,30}){0,2}[\s-]{1,3}\Z"
)
_SENTENCE_END = re.compile(r"[ \t]*(?:[.!?,;)\r\n]|\Z)")
# What is said of a password, and is none.
_STATES = frozenset(
    "long short safe secure insecure unsafe good terrible easy hard simple complicated here there back gone working ready valid "
    "invalid public leaked stolen compromised outdated broken rejected accepted important sicher unsicher lang kurz abgelaufen "
    "falsch richtig gespeichert bekannt weg alt neu schwach stark sûr faible fort long court expiré oublié faux correct perdu "
    "nouveau sécurisé "
    "segura débil fuerte larga corta incorrecta correcta caducada olvidada nueva vieja sicura debole forte lunga corta scaduta "
    "sbagliata corretta dimenticata nuova vecchia persa perdida enregistré guardada salvata".split()
)
_NOUN = "password|passwd|passphrase|pwd|secret|token|key|hash"
# Code that says where a secret comes from, and keeps none: a call, a field, a variable, a placeholder, another name.
_CODE = re.compile(
    r"[A-Za-z_][A-Za-z_.]*\(.*|(?:os|self|this|cls|config|cfg|settings|args|options|env|process|req|request|form|data|params|user"
    r"|credentials|secrets)\.[A-Za-z_][\w.]*\W*|\$\{?[A-Z_][A-Z0-9_]*\W*|[$#]?\{\{?\W*[\w.]*\W*|%s|%\(.*|<[\w -]+>?|=.*|(.)\1{3,}"
    rf"|(?:[A-Za-z]+[_-])+(?:{_NOUN})\W*|[a-z]+(?:{_NOUN.title()})\W*",
    re.DOTALL,
)
_DATE_OR_LENGTH = re.compile(
    r"\d{4}-\d\d-\d\d|\d{1,3}[-+]?(?:char|digit|letter|sign|zeichen)\w*", re.IGNORECASE
)


def _is_key(found: re.Match[str]) -> bool:
    """A long run of letters and digits together, or a very long one."""
    return any(
        len(piece) >= 20 or (len(piece) >= 10 and not piece.isalpha() and not piece.isdigit())
        for piece in _PIECES.findall(found["secret"])
    )


def _is_prefixed_key(found: re.Match[str]) -> bool:
    """A long run of letters and several digits, or a very long one; words with a year or a number make none.

    A key that its own dashes cut into short pieces is known by how often letters of both cases and digits take turns.
    """
    secret = found["secret"]
    turns = len(_TURN.findall(secret))
    if (len(secret) >= 32 and turns >= 10) or (_OURS.match(secret) and turns >= 4):
        return True
    return any(
        len(piece) >= 20
        or (
            len(piece) >= 10
            and not piece.isdigit()
            and (len(_TURN.findall(piece)) >= 3 or len(_DIGIT.findall(piece)) >= 4)
        )
        for piece in _PIECES.findall(_YEAR.sub("-", secret))
    )


def _is_broken_key(found: re.Match[str]) -> bool:
    """Pieces that each look like a part of a key, and together like one."""
    first, *rest = found["secret"].split("\n")
    pieces = [line.strip(" \t>|\r\\") for line in rest]
    are_parts = all(len(_DIGIT.findall(piece)) >= 2 and not piece.isdigit() for piece in pieces)
    whole = first.rstrip(" \t\r\\") + "".join(pieces)
    return are_parts and any(
        len(_DIGIT.findall(piece)) >= 4 for piece in _PIECES.findall(whole) if len(piece) >= 12
    )


def _is_no_code(found: re.Match[str]) -> bool:
    """Neither a word that is said of secrets, nor code; what is in quotes is no code."""
    is_word = found["secret"].rstrip(_ENDINGS + "):;}>").lower() in _NO_PASSWORDS
    is_quoted = found.string[found.start("secret") - 1 : found.start("secret")] in ("'", '"', "`")
    return is_quoted or not (is_word or _CODE.fullmatch(found["secret"]))


def _is_login(found: re.Match[str]) -> bool:
    password = found["secret"].partition(":")[2]
    return password.lower() not in _NO_PASSWORDS and not _CODE.fullmatch(password)


def _is_named_key(found: re.Match[str]) -> bool:
    """Behind a name an equals sign is enough; elsewhere the value has to look like a key."""
    secret = found["secret"]
    if not _is_no_code(found):
        return False
    return (
        found["sign"] == "="
        or _is_key(found)
        or (len(secret) >= 16 and any(one.isdigit() for one in secret))
    )


def _is_password(found: re.Match[str]) -> bool:
    """Behind an equals sign any word, at the end of a line after a colon nearly any, elsewhere one that nobody speaks."""
    word = found["secret"].rstrip(_ENDINGS)
    if word.lower() in _NO_PASSWORDS or _DATE_OR_LENGTH.fullmatch(word) or not _is_no_code(found):
        return False
    ends_line = found.string[found.end() : found.end() + 1] in ("", "\n", "\r")
    if found["sign"] == "=" or (found["sign"] == ":" and ends_line and len(word) >= 6):
        return True
    if found["sign"].isalpha() and _OWN.search(
        found.string, max(0, found.start() - 40), found.start()
    ):
        # Somebody's own password, said in a word that ends the sentence.
        is_end = bool(_SENTENCE_END.match(found.string, found.start("secret") + len(word)))
        if is_end and len(word) >= 4 and word.isalpha() and word.lower() not in _STATES:
            return True
    mixes_case = any(one.islower() and other.isupper() for one, other in pairwise(word))
    return mixes_case or any(one.isdigit() or one in "!@#$%^&*~+" for one in word)


def _rule(
    kind: str,
    marks: str,
    pattern: str,
    is_one: Callable[[re.Match[str]], bool] | None = None,
    sign: str = "",
) -> _Rule:
    return _Rule(kind, tuple(marks.lower().split("|")), re.compile(pattern), is_one, sign)


def _by_sign(kind: str, starts: Iterable[str], pattern: str, is_one: Any = None) -> list[_Rule]:
    """Rules for the beginnings of keys, by the sign that they hold: `_`, `-` or none."""
    found: dict[str, list[str]] = {}
    for start in starts:
        found.setdefault("_" if "_" in start else "-" if "-" in start else "", []).append(start)
    return [_rule(kind, "|".join(some), pattern, is_one, sign) for sign, some in found.items()]


# What comes between the pieces of a key that was broken over a line, and each piece, which is all of its line.
_BREAK = r"[ \t]{0,4}\\?\r?\n[ \t>|]{0,8}"
_BROKEN = (
    rf"(?<![\w-])(?P<secret>(?:{'|'.join(map(re.escape, _PREFIXES))})[\w.-]{{4,399}}(?:{_BREAK}[\w-]{{8,399}}){{1,3}})"
    r"(?=[ \t]{0,4}(?:[\r\n\"'`,;.]|\Z))"
)
_PREFIXED = rf"(?<![\w-])(?P<secret>(?:{'|'.join(map(re.escape, _PREFIXES))})[\w.-]{{11,399}}[\w-])"
_LOGIN = r"(?<=://)(?P<secret>[^/\s:@\"'\[\]]{1,100}:[^/\s@\"'\[\]]{1,200})(?=@)"
# What is repeated is bounded everywhere, so that no text makes a pattern slow.
_RULES = (
    _rule("password", "://", _LOGIN, _is_login),
    # First, since of a broken key the first piece may look like a whole one.
    *_by_sign("api key", _PREFIXES, _BROKEN, _is_broken_key),
    *_by_sign("api key", _PREFIXES, _PREFIXED, _is_prefixed_key),
    _rule(
        "api key",
        "xox",
        r"(?<![\w.-])(?P<secret>xox[abcdeoprs](?:\.xox[abcdeoprs])?-[\w-]{9,399}\w)",
        lambda found: len(_DIGIT.findall(found["secret"])) >= 4,
    ),
    _rule(
        "pin",
        "pin|geheimzahl",
        r"(?i)(?<![a-z0-9])(?:(?:code )?pin(?:[ -]?(?:codes?|numbers?|nummer))?|geheimzahl)"
        r"(?:\s{1,3}(?:for|to|of|at|on|für|vom|zum|von|pour|de|du|del|della|di|per)(?:\s{1,3}[\w.'’-]{1,30}){1,4}?)?"
        r"[\"'`]{0,3}\s{0,3}(?P<sign>[:=#]|is\b|was\b|ist\b|war\b|lautet\b|est\b|es\b|è|era\b|->|→|(?-i:(?<=PIN)))\s{0,3}"
        r"[\"'`]{0,3}(?P<secret>\d{4,12})(?![\d.,:/-]?\d)",
    ),
    _rule("api key", "key-", r"(?<![\w-])(?P<secret>key-[0-9a-f]{32})(?![\w-])"),
    _rule("token", "eyj", r"(?<![\w-])(?P<secret>eyJ[\w-]{8,2000}\.[\w-]{8,2000}\.[\w-]{0,2000})"),
    _rule(
        "token", "bearer ", r"(?i)(?<!\w)bearer (?P<secret>[\w.~+/=-]{15,2000}[\w~+/=-])", _is_key
    ),
    _rule(
        "token",
        "authorization",
        r"(?i)authorization[\"']?\s?[:=]\s?[\"']?basic (?P<secret>[\w+/=-]{8,2000})",
    ),
    _rule("token", ":aa", r"(?<![\w:-])(?P<secret>\d{8,10}:AA[\w-]{32,40})(?![\w-])"),
    _rule(
        "token",
        "hooks.slack.com/services/",
        r"(?<=hooks\.slack\.com/services/)(?P<secret>T\w{5,20}/B\w{5,20}/\w{10,40})",
    ),
    _rule(
        "api key",
        "key|secret",
        r"(?i)(?<![a-z])(?:api[ _-]?key|(?:access|secret)[ _-]?(?:access[ _-]?)?key|(?:client|app|api|shared)[ _-]?secret)"
        rf"{_SIGN}{_VALUE}{{8,400}})",
        _is_named_key,
    ),
    _rule(
        "token",
        "token",
        r"(?i)(?<![a-z])(?:access|auth|refresh|bot|session|security|private|id|api)?[ _-]?token"
        rf"{_SIGN}{_VALUE}{{10,400}})",
        _is_key,
    ),
    _rule(
        "password",
        "passw|pwd|passphrase|passcode|kennwort|contraseña|mot de passe|senha|wachtwoord|parola d",
        r"(?i)(?<![a-z0-9])(?:passwords?|passwd|pwd|passphrase|passcode|passwort|kennwort|contraseña|mot de passe|senha"
        r"|wachtwoord|parola d['’]ordine)"
        r"(?:\s{1,3}(?:for|to|of|at|on|für|vom|zum|de|du|del|della|di|per|pour|para)(?:\s{1,3}[\w.@-]{1,30}){1,4}?)?"
        r"[\"'`\\]{0,3}\s{0,3}(?P<sign>[:=]|is\b|was\b|ist\b|war\b|lautet\b|est\b|es\b|è|era\b|->|→)\s{0,3}[\"'`\\]{0,3}"
        r"(?P<secret>[^\s\"'`,;\[\]]{4,200})",
        _is_password,
    ),
)
_STARTS = "sk|pk|rk|gsk|xai|ghp|gho|ghs|glpat|xoxb|xoxp|hf|key"
_STARTED = rf"\b(?P<secret>(?:{_STARTS})[-_][\w-]{{12,}}|AKIA[0-9A-Z]{{16}}|AIza[\w-]{{30,}})"
_STRICT_RULES = (
    _rule("password", "://", _LOGIN),
    *_RULES,
    _rule(
        "credential",
        "bearer |basic ",
        r"(?i)(?:(?<=bearer )|(?<=basic ))(?P<secret>[\w.~+/=-]{8,})",
    ),
    *_by_sign(
        "credential",
        ["akia", "aiza", *(start + sign for start in _STARTS.split("|") for sign in "-_")],
        _STARTED,
    ),
    _rule(
        "credential",
        "apikey|api-key|api_key|secret|passw|token|key=",
        r"(?i)(?:(?:api[-_]?key|secret|passw(?:or)?d|access[-_]?token|auth[-_]?token)\\?[\"']?\s*[:=]\s*\\?[\"']?"
        r"|\b(?:key|token)=)(?P<secret>[^\s\"'\\,;&}\[\]]{3,})",
        _is_no_code,
    ),
)
_SECRET_FIELD = re.compile(
    r"(?i)headers$|^authorization$|^cookie$|api[-_]?key$|secret$|passw(or)?d$|token$"
)
_BEGIN_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END_KEY = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_TEXT = re.compile(r"(?:[ \t\r\n]*[A-Za-z0-9+/=]{16,100})*")


# Signs that nobody sees (default ignorable ones of Unicode) or that stand upon letters, and other forms of signs of ASCII.
_UNSEEN = (
    "\u00ad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_OTHER_FORMS = (
    "\u00aa\u00b2\u00b3\u00b9\u00ba\u017f\u02b0-\u02b8\u02e1-\u02e3\u1d2c-\u1d6a\u2024\u2070-\u209c\u2100-\u2149\u2160-\u217f"
    "\u2460-\u24ff\u2c7c\u2c7d\ufb00-\ufb06\ufe33\ufe34\ufe4d-\ufe6f\uff01-\uff5e\U0001d400-\U0001d7ff\U0001f100-\U0001f169"
    "\U0001fbf0-\U0001fbf9"
)
_DISGUISED = re.compile(f"([{_UNSEEN}]+)|[{_OTHER_FORMS}]")
_Span = tuple[int, int, str]
# Characters that are looked at in one go, and more than any secret has.
_PIECE, _LONGEST = 32_768, 16_384


def redact(text: str, *, is_strict: bool = False) -> Redacted:
    """The text, each secret in it replaced by a placeholder that says what kind it was; `is_strict` for texts of machines."""
    rules, secrets = _STRICT_RULES if is_strict else _RULES, dict[str, str]()
    text = _without_secrets(text, rules, secrets, _Plain)
    if not text.isascii() and _DISGUISED.search(text):
        text = _without_secrets(text, rules, secrets, _Undisguised)
    return Redacted(text, tuple(dict.fromkeys(secrets.values())), secrets)


def without(text: str, secrets: Mapping[str, str]) -> str:
    """The text with a placeholder for each of these secrets, with their kinds, as they are or as JSON writes them."""
    for secret in sorted(secrets, key=len, reverse=True):
        forms = dict.fromkeys(
            (secret, *(json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)))
        )
        for form in forms:
            text = text.replace(form, PLACEHOLDER.format(secrets[secret]))
    return text


def redact_values(value: Any) -> Any:
    """JSON that people and agents keep: its texts redacted, each read behind the name of its field, as `password: …` is."""
    match value:
        case str():
            return redact(value).text
        case dict():
            return {
                redact_values(name): _redact_field(f"{name}: ", item)
                for name, item in value.items()
            }
        case list() | tuple():
            return type(value)(map(redact_values, value))
        case _:
            return value


def _redact_field(name: str, value: Any) -> Any:
    shown = redact(name + value).text if isinstance(value, str) else ""
    return shown.removeprefix(name) if shown.startswith(name) else redact_values(value)


class _Plain:
    """A text as it is read for secrets: as it stands."""

    def __init__(self, text: str) -> None:
        self.read = text

    def place(self, at: int) -> int:
        """Where in the text the sign at this place of what is read stands."""
        return at


class _Undisguised(_Plain):
    """A text as it is read for secrets: without signs that nobody sees, and with plain letters for those of other forms."""

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        # From each of these places of what is read on, the text's places are so much further.
        self._starts, self._shifts, done, length = [0], [0], 0, 0
        for found in _DISGUISED.finditer(text):
            plain = "" if found[1] else unicodedata.normalize("NFKC", found[0])
            pieces += (text[done : found.start()], plain)
            length += found.start() - done + len(plain)
            done = found.end()
            for offset in range(1, len(plain)):
                self._shift(length - len(plain) + offset, found.start())
            self._shift(length, done)
        super().__init__("".join((*pieces, text[done:])))

    def _shift(self, start: int, place: int) -> None:
        if place - start != self._shifts[-1]:
            self._starts.append(start)
            self._shifts.append(place - start)

    def place(self, at: int) -> int:
        return at + self._shifts[bisect_right(self._starts, at) - 1]


def _without_secrets(
    text: str, rules: Sequence[_Rule], secrets: dict[str, str], view: type[_Plain]
) -> str:
    seen = view(text)
    if "PRIVATE KEY" in seen.read:
        text = _replaced(text, seen, _private_keys(seen.read), secrets)
        seen = view(text)
    small = seen.read.lower()
    for rule in rules:
        if (
            rule.sign in small
            and any(map(small.__contains__, rule.marks))
            and (spans := _secrets(seen.read, rule))
        ):
            text = _replaced(text, seen, spans, secrets)
            seen = view(text)
    return text


def _replaced(text: str, seen: _Plain, spans: Iterable[_Span], secrets: dict[str, str]) -> str:
    kept: list[str] = []
    done = 0
    for begin, end, kind in spans:
        # Up to behind the last sign of the secret, so that nothing of it stays.
        start, stop = seen.place(begin), seen.place(end - 1) + 1
        kept += (text[done:start], PLACEHOLDER.format(kind))
        done = stop
        secrets[text[start:stop]] = kind
    return "".join((*kept, text[done:]))


def redact_json(value: Any) -> Any:
    """JSON, its texts redacted strictly; fields whose names say that they hold credentials or headers have no value left."""
    match value:
        case str():
            return redact(value, is_strict=True).text
        case dict():
            return {
                redact_json(name): HIDDEN
                if _SECRET_FIELD.search(name) and item
                else redact_json(item)
                for name, item in value.items()
            }
        case list() | tuple():
            return [redact_json(item) for item in value]
        case _:
            return value


def _secrets(text: str, rule: _Rule) -> list[_Span]:
    spans: list[_Span] = []
    for found in _found(rule.pattern, text):
        if rule.is_one is None or rule.is_one(found):
            secret = found["secret"]
            sign = found["sign"] if "sign" in rule.pattern.groupindex else ""
            # What ends the sentence is no part of it.
            length = len(secret.rstrip(_ENDINGS) if sign not in ("", "=") else secret)
            spans.append((found.start("secret"), found.start("secret") + length, rule.kind))
    return spans


def _found(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Find all matches, in pieces of the text: a long one would hold up all other threads for as long as it is looked at.

    A piece goes on for longer than any match, and what begins behind it is found with the next one.
    """
    place = 0
    while place <= len(text):
        end = place + _PIECE
        is_last = end + _LONGEST >= len(text)
        for found in pattern.finditer(text, place, len(text) if is_last else end + _LONGEST):
            if found.start() >= end and not is_last:
                break
            yield found
            place = max(found.end(), place)
        if is_last:
            return
        place = max(end, place)


def _private_keys(text: str) -> list[_Span]:
    spans: list[_Span] = []
    place = 0
    ends = [(found.start(), found.end()) for found in _END_KEY.finditer(text)]
    for begin in _BEGIN_KEY.finditer(text):
        if begin.start() < place:
            continue
        while ends and ends[0][0] < begin.end():
            ends.pop(0)
        # One that was cut off ends where its letters end.
        body = _KEY_TEXT.match(text, begin.end())
        place = ends[0][1] if ends else body.end() if body else begin.end()
        spans.append((begin.start(), place, "private key"))
    return spans
