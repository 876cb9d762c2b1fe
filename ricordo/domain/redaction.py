"""Secrets are replaced by a placeholder that names their kind: in memory, traces, pushes and messages of errors.

Memory is read for years by models, people and remotes, so it keeps no keys or passwords. Ordinary notes have to survive: a secret
is known by its shape, or by the name before it and its shape. In texts of machines (`is_strict`) a name or prefix is enough.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

PLACEHOLDER = "[secret removed: {}]"
HIDDEN = PLACEHOLDER.format("credential")


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text without its secrets, and the kinds of them there were, in their order."""

    text: str
    kinds: tuple[str, ...] = ()


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
_PREFIXES = (
    "sk- sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_ gsk_ xai- hf_ npm_ pypi- glpat- ghp_ gho_ ghs_ ghu_ ghr_ "
    "github_pat_ xoxa- xoxb- xoxp- xapp- AKIA ASIA AIza dop_v1_ shpat_ SG."
).split()
_SIGN = r"[\"'`\\]{0,3}\s{0,3}(?P<sign>[:=]|is\b|ist\b|lautet\b|est\b|es\b)\s{0,3}[\"'`\\]{0,3}"
_VALUE = r"(?P<secret>[^\s\"'`,;&}\\<>\[\]]"
_NO_PASSWORDS = frozenset(
    "none null true false required optional string unknown changed correct forgotten reset expired lost weak strong same shared "
    "needed stored saved written secret hidden private pending default missing vergessen geheim".split()
)
_DATE_OR_LENGTH = re.compile(r"\d{4}-\d\d-\d\d|\d{1,3}[-+]?(?:char|digit|letter|sign|zeichen)\w*", re.IGNORECASE)


def _is_key(found: re.Match[str]) -> bool:
    """A long run of letters and digits together, or a very long one."""
    return any(
        len(piece) >= 20 or (len(piece) >= 10 and not piece.isalpha() and not piece.isdigit())
        for piece in _PIECES.findall(found["secret"])
    )


def _is_named_key(found: re.Match[str]) -> bool:
    """Behind a name an equals sign is enough; elsewhere the value has to look like a key."""
    secret = found["secret"]
    return found["sign"] == "=" or _is_key(found) or (len(secret) >= 16 and any(one.isdigit() for one in secret))


def _is_password(found: re.Match[str]) -> bool:
    """Behind an equals sign any word, at the end of a line after a colon nearly any, elsewhere one that nobody speaks."""
    word = found["secret"].rstrip(_ENDINGS)
    if word.lower() in _NO_PASSWORDS or _DATE_OR_LENGTH.fullmatch(word):
        return False
    ends_line = found.string[found.end() : found.end() + 1] in ("", "\n", "\r")
    if found["sign"] == "=" or (found["sign"] == ":" and ends_line and len(word) >= 6):
        return True
    mixes_case = any(one.islower() and other.isupper() for one, other in pairwise(word))
    return mixes_case or any(one.isdigit() or one in "!@#$%^&*~+" for one in word)


def _rule(
    kind: str, marks: str, pattern: str, is_one: Callable[[re.Match[str]], bool] | None = None, sign: str = ""
) -> _Rule:
    return _Rule(kind, tuple(marks.lower().split("|")), re.compile(pattern), is_one, sign)


def _by_sign(kind: str, starts: Iterable[str], pattern: str, is_one: Any = None) -> list[_Rule]:
    """Rules for the beginnings of keys, by the sign that they hold: `_`, `-` or none."""
    found: dict[str, list[str]] = {}
    for start in starts:
        found.setdefault("_" if "_" in start else "-" if "-" in start else "", []).append(start)
    return [_rule(kind, "|".join(some), pattern, is_one, sign) for sign, some in found.items()]


_PREFIXED = rf"(?<![\w-])(?P<secret>(?:{'|'.join(map(re.escape, _PREFIXES))})[\w.-]{{11,399}}[\w-])"
# What is repeated is bounded everywhere, so that no text makes a pattern slow.
_RULES = (
    _rule("password", "://", r"(?<=://)(?P<secret>[^/\s:@\"'\[\]]{1,100}:[^/\s@\"'\[\]]{1,200})(?=@)"),
    *_by_sign("api key", _PREFIXES, _PREFIXED, _is_key),
    _rule("api key", "key-", r"(?<![\w-])(?P<secret>key-[0-9a-f]{32})(?![\w-])"),
    _rule("token", "eyj", r"(?<![\w-])(?P<secret>eyJ[\w-]{8,2000}\.[\w-]{8,2000}\.[\w-]{0,2000})"),
    _rule("token", "bearer ", r"(?i)(?<!\w)bearer (?P<secret>[\w.~+/=-]{15,2000}[\w~+/=-])", _is_key),
    _rule("token", "authorization", r"(?i)authorization[\"']?\s?[:=]\s?[\"']?basic (?P<secret>[\w+/=-]{8,2000})"),
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
        "passw|pwd|passphrase|passcode|kennwort|contraseña|mot de passe|senha|wachtwoord",
        r"(?i)(?<![a-z0-9])(?:passwords?|passwd|pwd|passphrase|passcode|passwort|kennwort|contraseña|mot de passe|senha"
        r"|wachtwoord)(?:\s{1,3}(?:for|to|of|at|on|für|vom|zum|de|du|del)(?:\s{1,3}[\w.@-]{1,30}){1,4}?)?"
        r"[\"'`\\]{0,3}\s{0,3}(?P<sign>[:=]|is\b|was\b|ist\b|war\b|lautet\b|est\b|es\b|->|→)\s{0,3}[\"'`\\]{0,3}"
        r"(?P<secret>[^\s\"'`,;\[\]]{4,200})",
        _is_password,
    ),
)
_STARTS = "sk|pk|rk|gsk|xai|ghp|gho|ghs|glpat|xoxb|xoxp|hf|key"
_STARTED = rf"\b(?P<secret>(?:{_STARTS})[-_][\w-]{{12,}}|AKIA[0-9A-Z]{{16}}|AIza[\w-]{{30,}})"
_STRICT_RULES = (
    *_RULES,
    _rule("credential", "bearer |basic ", r"(?i)(?:(?<=bearer )|(?<=basic ))(?P<secret>[\w.~+/=-]{8,})"),
    *_by_sign(
        "credential", ["akia", "aiza", *(start + sign for start in _STARTS.split("|") for sign in "-_")], _STARTED
    ),
    _rule(
        "credential",
        "apikey|api-key|api_key|secret|passw|token|key=",
        r"(?i)(?:(?:api[-_]?key|secret|passw(?:or)?d|access[-_]?token|auth[-_]?token)\\?[\"']?\s*[:=]\s*\\?[\"']?"
        r"|\b(?:key|token)=)(?P<secret>[^\s\"'\\,;&}\[\]]{3,})",
    ),
)
_SECRET_FIELD = re.compile(r"(?i)headers$|^authorization$|^cookie$|api[-_]?key$|secret$|passw(or)?d$|token$")
_BEGIN_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END_KEY = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_TEXT = re.compile(r"(?:[ \t\r\n]*[A-Za-z0-9+/=]{16,100})*")


def redact(text: str, *, is_strict: bool = False) -> Redacted:
    """The text, each secret in it replaced by a placeholder that says what kind it was; `is_strict` for texts of machines."""
    kinds: list[str] = []
    if "PRIVATE KEY" in text:
        text = _without_private_keys(text, kinds)
    small = text.lower()
    for rule in _STRICT_RULES if is_strict else _RULES:
        if rule.sign in small and any(map(small.__contains__, rule.marks)):
            text = rule.pattern.sub(lambda found, rule=rule: _replaced(found, rule, kinds), text)  # type: ignore[misc]
    return Redacted(text, tuple(dict.fromkeys(kinds)))


def redact_json(value: Any) -> Any:
    """JSON, its texts redacted strictly; fields whose names say that they hold credentials or headers have no value left."""
    match value:
        case str():
            return redact(value, is_strict=True).text
        case dict():
            return {
                redact_json(name): HIDDEN if _SECRET_FIELD.search(name) and item else redact_json(item)
                for name, item in value.items()
            }
        case list() | tuple():
            return [redact_json(item) for item in value]
        case _:
            return value


def _replaced(found: re.Match[str], rule: _Rule, kinds: list[str]) -> str:
    if rule.is_one and not rule.is_one(found):
        return found[0]
    secret = found["secret"]
    sign = found["sign"] if "sign" in rule.pattern.groupindex else ""
    kinds.append(rule.kind)
    begin, end = found.start("secret") - found.start(), found.end("secret") - found.start()
    # What ends the sentence is no part of it.
    ending = secret[len(secret.rstrip(_ENDINGS)) :] if sign not in ("", "=") else ""
    return found[0][:begin] + PLACEHOLDER.format(rule.kind) + ending + found[0][end:]


def _without_private_keys(text: str, kinds: list[str]) -> str:
    kept: list[str] = []
    place = 0
    ends = [(found.start(), found.end()) for found in _END_KEY.finditer(text)]
    for begin in _BEGIN_KEY.finditer(text):
        if begin.start() < place:
            continue
        kept.append(text[place : begin.start()])
        while ends and ends[0][0] < begin.end():
            ends.pop(0)
        # One that was cut off ends where its letters end.
        body = _KEY_TEXT.match(text, begin.end())
        place = ends[0][1] if ends else body.end() if body else begin.end()
        kept.append(PLACEHOLDER.format("private key"))
        kinds.append("private key")
    kept.append(text[place:])
    return "".join(kept)
