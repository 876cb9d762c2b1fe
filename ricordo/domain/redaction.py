"""Redaction: secrets in a text are replaced by a placeholder that names their kind.

It applies to memory, traces, pushes and error messages. Models, people and remotes read memory for
years, so it may not contain keys or passwords. Ordinary notes must not be changed. So a secret is
recognized by its shape alone, or by its shape and a name before it. In machines' texts
(`is_strict`) a name or prefix is enough. Invisible characters and ornamental letters cannot
disguise a secret, since the text is also searched without them.
"""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ricordo.domain.hidden_text import UNSEEN_CLASS

PLACEHOLDER = "[secret removed: {}]"
HIDDEN = PLACEHOLDER.format("credential")


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text without its secrets, their kinds (each once), and the kind of each secret."""

    text: str
    kinds: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One kind of secret: replace the pattern's group `secret` if `is_secret` agrees.

    The pattern is searched only if one of `marks` occurs in the lower-case text. That check is a
    hundred times faster than the pattern. `sign` is part of all marks, so one search for it can
    replace many.
    """

    kind: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    is_secret: Callable[[re.Match[str]], bool] | None
    sign: str


_ENDINGS = ".!?)"
_PIECES = re.compile(r"[A-Za-z0-9]+")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_DIGIT = re.compile(r"\d")
_TURN = re.compile(r"(?<=[a-z])(?=[A-Z\d])|(?<=[A-Z])(?=\d)|(?<=\d)(?=[A-Za-z])")
_PREFIXES = (
    "sk- sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_ gsk_ xai- hf_ npm_ pypi- glpat- "
    "ghp_ gho_ ghs_ ghu_ ghr_ "
    "github_pat_ xoxa- xoxb- xoxp- xapp- AKIA ASIA AIza dop_v1_ shpat_ SG. ricordo_"
).split()
# A key of this server: 32 random bytes in base64url.
_OURS = re.compile(r"ricordo_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
_SIGN = r"[\"'`\\]{0,3}\s{0,3}(?P<sign>[:=]|is\b|ist\b|lautet\b|est\b|es\b)\s{0,3}[\"'`\\]{0,3}"
_VALUE = r"(?P<secret>[^\s\"'`,;&}\\<>\[\]]"
_NO_PASSWORDS = frozenset(
    "none null true false required optional string unknown changed correct forgotten reset expired "
    "lost weak strong same shared "
    "needed stored saved written secret hidden private pending default missing vergessen geheim "
    "password passwd passphrase pass pwd str text bytes varchar secretstr".split()
)
# Possessives before the word "password" in English, German, French, Spanish and Italian.
_OWN = re.compile(
    r"(?i)\b(?:my|our|mein(?:e[mnrs]?)?|unser(?:e[mnrs]?)?|mon|notre|mi|nuestra|mia|nostra|mio|nostro)"
    r"(?:\s{1,3}(?!password|passwort|kennwort|contraseña)[\w@.-]{1,30}){0,2}[\s-]{1,3}\Z"
)
_SENTENCE_END = re.compile(r"[ \t]*(?:[.!?,;)\r\n]|\Z)")
# States of a password that people write after "is", as in "is safe".
_STATES = frozenset(
    "long short safe secure insecure unsafe good terrible easy hard simple complicated here there "
    "back gone working ready valid invalid public leaked stolen compromised outdated broken "
    "rejected accepted important sicher unsicher lang kurz abgelaufen falsch richtig gespeichert "
    "bekannt weg alt neu schwach stark sûr faible fort long court expiré oublié faux correct perdu "
    "nouveau sécurisé segura débil fuerte larga corta incorrecta correcta caducada olvidada nueva "
    "vieja sicura debole forte lunga corta scaduta "
    "sbagliata corretta dimenticata nuova vecchia persa perdida enregistré guardada salvata".split()
)
_NOUN = "password|passwd|passphrase|pwd|secret|token|key|hash"
# Code that names a secret without containing it: a call, a field, a variable, a placeholder or
# another name.
_CODE = re.compile(
    r"[A-Za-z_][A-Za-z_.]*\(.*|(?:os|self|this|cls|config|cfg|settings|args|options|env|process|req|request|form|data|params|user"
    r"|credentials|secrets)\.[A-Za-z_][\w.]*\W*|\$\{?[A-Z_][A-Z0-9_]*\W*|[$#]?\{\{?\W*[\w.]*\W*|%s|%\(.*|<[\w -]+>?|=.*|(.)\1{3,}"
    rf"|(?:[A-Za-z]+[_-])+(?:{_NOUN})\W*|[a-z]+(?:{_NOUN.title()})\W*",
    re.DOTALL,
)
_DATE_OR_LENGTH = re.compile(
    r"\d{4}-\d\d-\d\d|\d{1,3}[-+]?(?:char|digit|letter|sign|zeichen)\w*", re.IGNORECASE
)


def _is_key(match: re.Match[str]) -> bool:
    """Return True for a long run of letters mixed with digits, or a very long run."""
    return any(
        len(piece) >= 20 or (len(piece) >= 10 and not piece.isalpha() and not piece.isdigit())
        for piece in _PIECES.findall(match["secret"])
    )


def _is_prefixed_key(match: re.Match[str]) -> bool:
    """Return True for a long run of letters and digits, or a very long run.

    A long run must have several digits, or several changes between upper case, lower case and
    digits.

    Words with a year or a number do not count. A key with dashes has short pieces. It is recognized
    by many changes between upper case, lower case and digits.
    """
    secret = match["secret"]
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


def _is_broken_key(match: re.Match[str]) -> bool:
    """Return True if each piece after the first, and all pieces together, look like a key."""
    first, *rest = match["secret"].split("\n")
    pieces = [line.strip(" \t>|\r\\") for line in rest]
    are_parts = all(len(_DIGIT.findall(piece)) >= 2 and not piece.isdigit() for piece in pieces)
    whole = first.rstrip(" \t\r\\") + "".join(pieces)
    return are_parts and any(
        len(_DIGIT.findall(piece)) >= 4 for piece in _PIECES.findall(whole) if len(piece) >= 12
    )


def _is_no_code(match: re.Match[str]) -> bool:
    """Return False for code, and for phrases that people write after "password is".

    Text in quotes is never code.
    """
    is_word = match["secret"].rstrip(_ENDINGS + "):;}>").lower() in _NO_PASSWORDS
    is_quoted = match.string[match.start("secret") - 1 : match.start("secret")] in ("'", '"', "`")
    return is_quoted or not (is_word or _CODE.fullmatch(match["secret"]))


def _is_login(match: re.Match[str]) -> bool:
    password = match["secret"].partition(":")[2]
    return password.lower() not in _NO_PASSWORDS and not _CODE.fullmatch(password)


def _is_named_key(match: re.Match[str]) -> bool:
    """Return True for a key that follows its name.

    After an equals sign everything except code is a secret. Elsewhere the text must look like a
    key.
    """
    secret = match["secret"]
    if not _is_no_code(match):
        return False
    return (
        match["sign"] == "="
        or _is_key(match)
        or (len(secret) >= 16 and any(sign.isdigit() for sign in secret))
    )


def _is_own_password(match: re.Match[str], word: str) -> bool:
    """Return True for a plain word as in "My password is sunshine.", with a possessive."""
    if not match["sign"].isalpha() or not _OWN.search(
        match.string, max(0, match.start() - 40), match.start()
    ):
        return False
    is_end = bool(_SENTENCE_END.match(match.string, match.start("secret") + len(word)))
    return is_end and len(word) >= 4 and word.isalpha() and word.lower() not in _STATES


def _is_password(match: re.Match[str]) -> bool:
    """Return True for a password that follows the word for it.

    After an equals sign any word counts. After a colon, nearly any word counts at the end of a
    line. Elsewhere a word counts only if it has mixed case, digits or signs, or if it is the
    writer's own ("My password is sunshine.").
    """
    word = match["secret"].rstrip(_ENDINGS)
    if word.lower() in _NO_PASSWORDS or _DATE_OR_LENGTH.fullmatch(word) or not _is_no_code(match):
        return False
    ends_line = match.string[match.end() : match.end() + 1] in ("", "\n", "\r")
    if match["sign"] == "=" or (match["sign"] == ":" and ends_line and len(word) >= 6):
        return True
    if _is_own_password(match, word):
        return True
    mixes_case = any(sign.islower() and other.isupper() for sign, other in pairwise(word))
    return mixes_case or any(sign.isdigit() or sign in "!@#$%^&*~+" for sign in word)


def _rule(
    kind: str,
    marks: str,
    pattern: str,
    is_secret: Callable[[re.Match[str]], bool] | None = None,
    *,
    sign: str = "",
) -> _Rule:
    return _Rule(kind, tuple(marks.lower().split("|")), re.compile(pattern), is_secret, sign)


def _by_sign(kind: str, starts: Iterable[str], pattern: str, is_secret: Any = None) -> list[_Rule]:
    """Return rules for prefixes of keys, grouped by the sign in the prefix: `_`, `-` or none."""
    groups: dict[str, list[str]] = {}
    for start in starts:
        sign = next((sign for sign in "_-" if sign in start), "")
        groups.setdefault(sign, []).append(start)
    return [
        _rule(kind, "|".join(prefixes), pattern, is_secret, sign=sign)
        for sign, prefixes in groups.items()
    ]


# A line break inside a key in any text, raw or as JSON escapes it, with quote marks of mails.
_ANY_BREAK = re.compile(r"[ \t]{0,4}\\{0,4}(?:\r?\n|(?:\\{1,4}r)?\\{1,4}n)[ \t>|]{0,8}")
_LEAST_WRAPPED = 16  # characters
# A line break inside a key. Nothing but the key may be on the lines after it.
_BREAK = r"[ \t]{0,4}\\?\r?\n[ \t>|]{0,8}"
_BROKEN = (
    rf"(?<![\w-])(?P<secret>(?:{'|'.join(map(re.escape, _PREFIXES))})[\w.-]{{4,399}}(?:{_BREAK}[\w-]{{8,399}}){{1,3}})"
    r"(?=[ \t]{0,4}(?:[\r\n\"'`,;.]|\Z))"
)
_PREFIXED = rf"(?<![\w-])(?P<secret>(?:{'|'.join(map(re.escape, _PREFIXES))})[\w.-]{{11,399}}[\w-])"
_LOGIN = r"(?<=://)(?P<secret>[^/\s:@\"'\[\]]{1,100}:[^/\s@\"'\[\]]{1,200})(?=@)"
# Every repetition is bounded, so that no text makes a pattern slow.
_RULES = (
    _rule("password", "://", _LOGIN, _is_login),
    # Broken keys come first, since the first piece of one may look like a whole key.
    *_by_sign("api key", _PREFIXES, _BROKEN, _is_broken_key),
    *_by_sign("api key", _PREFIXES, _PREFIXED, _is_prefixed_key),
    _rule(
        "api key",
        "xox",
        r"(?<![\w.-])(?P<secret>xox[abcdeoprs](?:\.xox[abcdeoprs])?-[\w-]{9,399}\w)",
        lambda match: len(_DIGIT.findall(match["secret"])) >= 4,
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


# Characters that are invisible (default ignorable in Unicode) or combine with letters, and variants
# of ASCII characters.
_UNSEEN = f"{UNSEEN_CLASS}\u0300-\u036f"
_OTHER_FORMS = (
    "\u00aa\u00b2\u00b3\u00b9\u00ba\u017f\u02b0-\u02b8\u02e1-\u02e3\u1d2c-\u1d6a\u2024\u2070-\u209c\u2100-\u2149\u2160-\u217f"
    "\u2460-\u24ff\u2c7c\u2c7d\ufb00-\ufb06\ufe33\ufe34\ufe4d-\ufe6f\uff01-\uff5e\U0001d400-\U0001d7ff\U0001f100-\U0001f169"
    "\U0001fbf0-\U0001fbf9"
)
_DISGUISED = re.compile(f"([{_UNSEEN}]+)|[{_OTHER_FORMS}]")
_Span = tuple[int, int, str]
# The characters of a piece that is searched at once, and of the text behind it that is searched
# too. Real secrets are shorter than the latter.
_PIECE = 32_768
_LONGEST = 16_384


def redact(text: str, *, is_strict: bool = False) -> Redacted:
    """Return the text with each secret replaced by a placeholder that names its kind.

    Args:
        text: Any text. It is searched in pieces, so its length does not block other threads.
        is_strict: The text comes from a machine, such as a log or an error. There, a name or a
            prefix is enough to recognize a secret.
    """
    rules = _STRICT_RULES if is_strict else _RULES
    secrets: dict[str, str] = {}
    text = _without_secrets(text, rules, secrets, _Plain)
    if not text.isascii() and _DISGUISED.search(text):
        text = _without_secrets(text, rules, secrets, _Undisguised)
    return Redacted(text, tuple(dict.fromkeys(secrets.values())), secrets)


def without(text: str, secrets: Mapping[str, str]) -> str:
    """Replace known secrets in a text, raw or JSON-escaped, by placeholders.

    A long secret, such as a key, is also found if its lines are broken at other columns.

    Args:
        text: A text that may repeat the secrets, such as a part of a model's reply.
        secrets: The kind of each secret, by the secret (`Redacted.secrets`).
    """
    for secret in sorted(secrets, key=len, reverse=True):
        placeholder = PLACEHOLDER.format(secrets[secret])
        for form in _escaped_forms(secret):
            text = text.replace(form, placeholder)
        joined_secret = _ANY_BREAK.sub("", secret)
        # A short secret, such as a PIN, may be two lines of something else.
        if len(joined_secret) >= _LEAST_WRAPPED:
            text = _without_wrapped(text, _escaped_forms(joined_secret), placeholder)
    return text


def _escaped_forms(secret: str) -> list[str]:
    """Return the secret as it is, and as JSON may escape it."""
    escaped = (json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False))
    return [*dict.fromkeys((secret, *escaped))]


def _without_wrapped(text: str, forms: Sequence[str], placeholder: str) -> str:
    """Replace a secret that the text breaks into lines.

    The time grows with the sum of the lengths, also for texts that nearly repeat a long secret.

    Args:
        text: The text.
        forms: The secret without line breaks, in each form.
        placeholder: The text instead of the secret.
    """
    joined = _ANY_BREAK.sub("", text)
    for form in forms:
        if form not in joined:
            continue
        # The positions in the text of the pieces between breaks, and of these in the joined text.
        starts = [0]
        offsets = [0]
        for match in _ANY_BREAK.finditer(text):
            offsets.append(offsets[-1] + match.start() - starts[-1])
            starts.append(match.end())
        pieces: list[str] = []
        done = 0
        at = joined.find(form)
        while at >= 0:
            first = bisect_right(offsets, at) - 1
            start = starts[first] + at - offsets[first]
            last_sign = at + len(form) - 1
            last = bisect_right(offsets, last_sign) - 1
            pieces += (text[done:start], placeholder)
            done = starts[last] + last_sign - offsets[last] + 1
            at = joined.find(form, last_sign + 1)
        text = "".join((*pieces, text[done:]))
        joined = _ANY_BREAK.sub("", text)
    return text


def redact_values(content: Any) -> Any:
    """Return JSON that people and agents keep, with redacted texts.

    For the search, a text that is a field's value follows the field's name, as in `password: …`.

    Args:
        content: Any JSON. Names of fields are redacted too.
    """
    match content:
        case str():
            return redact(content).text
        case dict():
            return {
                redact_values(name): _redact_field(f"{name}: ", field)
                for name, field in content.items()
            }
        case list() | tuple():
            return type(content)(map(redact_values, content))
        case _:
            return content


def _redact_field(name: str, content: Any) -> Any:
    if isinstance(content, str):
        redacted = redact(name + content).text
    else:
        redacted = ""
    if redacted.startswith(name):
        return redacted.removeprefix(name)
    return redact_values(content)


@dataclass(slots=True)
class _Plain:
    """A view of a text for the search: the unchanged text."""

    searched: str

    def place(self, at: int) -> int:
        """Return the index in the text for this index in `searched`."""
        return at


class _Undisguised(_Plain):
    """A view of a text for the search: the text without disguises.

    Invisible characters are removed, and other forms of letters become plain letters.
    """

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        # From each start in the searched text on, the original index is larger by this shift.
        self._starts = [0]
        self._shifts = [0]
        end = 0
        length = 0
        for match in _DISGUISED.finditer(text):
            if match[1]:
                plain = ""
            else:
                plain = unicodedata.normalize("NFKC", match[0])
            pieces += (text[end : match.start()], plain)
            length += match.start() - end + len(plain)
            end = match.end()
            for offset in range(1, len(plain)):
                self._shift(length - len(plain) + offset, match.start())
            self._shift(length, end)
        super().__init__("".join((*pieces, text[end:])))

    def _shift(self, start: int, index: int) -> None:
        if index - start != self._shifts[-1]:
            self._starts.append(start)
            self._shifts.append(index - start)

    def place(self, at: int) -> int:
        return at + self._shifts[bisect_right(self._starts, at) - 1]


def _without_secrets(
    text: str, rules: Sequence[_Rule], secrets: dict[str, str], view: type[_Plain]
) -> str:
    searched = view(text)
    if "PRIVATE KEY" in searched.searched:
        text = _replaced(text, searched, _private_keys(searched.searched), secrets)
        searched = view(text)
    lower = searched.searched.lower()
    for rule in rules:
        if (
            rule.sign in lower
            and any(map(lower.__contains__, rule.marks))
            and (spans := _secrets(searched.searched, rule))
        ):
            text = _replaced(text, searched, spans, secrets)
            searched = view(text)
    return text


def _replaced(text: str, view: _Plain, spans: Iterable[_Span], secrets: dict[str, str]) -> str:
    pieces: list[str] = []
    position = 0
    for begin, end, kind in spans:
        # The range ends after the secret's last character, so that nothing of it remains.
        start, stop = view.place(begin), view.place(end - 1) + 1
        pieces += (text[position:start], PLACEHOLDER.format(kind))
        position = stop
        secrets[text[start:stop]] = kind
    return "".join((*pieces, text[position:]))


def redact_json(value: Any) -> Any:
    """Return JSON with its texts redacted strictly.

    Fields whose names are those of credentials or headers lose their content.

    Args:
        value: Any JSON. Names of fields are redacted too.
    """
    match value:
        case str():
            return redact(value, is_strict=True).text
        case dict():
            return {
                redact_json(name): _redact_credential(name, field) for name, field in value.items()
            }
        case list() | tuple():
            return [redact_json(element) for element in value]
        case _:
            return value


def _redact_credential(name: str, field: Any) -> Any:
    if _SECRET_FIELD.search(name) and field:
        return HIDDEN
    return redact_json(field)


def _secrets(text: str, rule: _Rule) -> list[_Span]:
    spans: list[_Span] = []
    for match in _matches(rule.pattern, text):
        if rule.is_secret is None or rule.is_secret(match):
            secret = match["secret"]
            if "sign" in rule.pattern.groupindex:
                sign = match["sign"]
            else:
                sign = ""
            # A sign that ends the sentence does not belong to the secret.
            if sign not in ("", "="):
                secret = secret.rstrip(_ENDINGS)
            start = match.start("secret")
            spans.append((start, start + len(secret), rule.kind))
    return spans


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield all matches, searching the text in pieces.

    One search in a long text would stop all other threads until it ends. Each search reads beyond
    its piece by more than the longest match. Matches that begin there are left to the next piece.
    """
    position = 0
    while position <= len(text):
        end = position + _PIECE
        is_last = end + _LONGEST >= len(text)
        for match in pattern.finditer(text, position, len(text) if is_last else end + _LONGEST):
            if match.start() >= end and not is_last:
                break
            yield match
            position = max(match.end(), position)
        if is_last:
            return
        position = max(end, position)


def _private_keys(text: str) -> list[_Span]:
    spans: list[_Span] = []
    position = 0
    ends = [(match.start(), match.end()) for match in _END_KEY.finditer(text)]
    for begin in _BEGIN_KEY.finditer(text):
        if begin.start() < position:
            continue
        while ends and ends[0][0] < begin.end():
            ends.pop(0)
        # If the last line of a key is missing, the key ends with its last letter.
        body = _KEY_TEXT.match(text, begin.end())
        position = body.end() if body else begin.end()
        if ends:
            position = ends[0][1]
        spans.append((begin.start(), position, "private key"))
    return spans
