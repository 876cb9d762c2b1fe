"""Taking secrets out of memory: what looks like a key, a token or a password is replaced by words that say what stood there.

Memory is read for years by models, people and remotes, so nothing in it may open a door. Ordinary notes have to survive: a thing
is a secret by its shape or by the name before it, never by the name alone. What was concealed once stays as it is.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

PLACEHOLDER = "[secret removed: {}]"


@dataclass(frozen=True, slots=True)
class Concealed:
    """A text without its secrets, and what kinds of them there were, in their order."""

    text: str
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rule:
    """One kind of secret: looked for only where one of `marks` stands in the small letters of the text.

    The group `secret` is what goes, where `is_one` agrees. `sign` stands in all of the marks: one look for it spares many.
    """

    kind: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    is_one: Callable[[re.Match[str]], bool]
    sign: str = ""


_ENDINGS = ".!?)"
_PIECES = re.compile(r"[A-Za-z0-9]+")
_PREFIXES = (
    *(
        "sk-",
        "sk_live_",
        "sk_test_",
        "rk_live_",
        "rk_test_",
        "pk_live_",
        "gsk_",
        "xai-",
        "hf_",
        "npm_",
        "pypi-",
        "glpat-",
    ),
    *(
        "ghp_",
        "gho_",
        "ghs_",
        "ghu_",
        "ghr_",
        "github_pat_",
        "xoxb-",
        "xoxp-",
        "xoxa-",
        "xapp-",
        "akia",
        "asia",
        "aiza",
    ),
    *("dop_v1_", "shpat_", "sg."),
)
_BY_SIGN = {
    "_": tuple(prefix for prefix in _PREFIXES if "_" in prefix),
    "-": tuple(prefix for prefix in _PREFIXES if "-" in prefix),
    "": tuple(prefix for prefix in _PREFIXES if "_" not in prefix and "-" not in prefix),
}
_PREFIXED = re.compile(
    r"(?<![\w-])(?P<secret>(?:sk-|[srp]k_(?:live|test)_|gsk_|xai-|hf_|npm_|pypi-|glpat-|gh[posur]_|github_pat_|xox[abp]-|xapp-"
    r"|AKIA|ASIA|AIza|dop_v1_|shpat_|SG\.)[\w.-]{11,399}[\w-])"
)
_NAMED_KEY = re.compile(
    r"(?i)(?<![a-z])(?:api[ _-]?key|(?:access|secret)[ _-]?(?:access[ _-]?)?key|(?:client|app|api|shared)[ _-]?secret)"
    r"[\"'`\\]{0,3}\s{0,3}(?P<sign>[:=]|is\b|ist\b|lautet\b|est\b|es\b)\s{0,3}[\"'`\\]{0,3}(?P<secret>[^\s\"'`,;&}\\<>\[\]]{8,400})"
)
_NAMED_TOKEN = re.compile(
    r"(?i)(?<![a-z])(?:access|auth|refresh|bot|session|security|private|id|api)?[ _-]?token"
    r"[\"'`\\]{0,3}\s{0,3}(?P<sign>[:=]|is\b|ist\b|lautet\b|est\b|es\b)\s{0,3}[\"'`\\]{0,3}(?P<secret>[^\s\"'`,;&}\\<>\[\]]{10,400})"
)
_PASSWORD = re.compile(
    r"(?i)(?<![a-z0-9])(?:passwords?|passwd|pwd|passphrase|passcode|passwort|kennwort|contraseña|mot de passe|senha|wachtwoord)"
    r"(?:\s{1,3}(?:for|to|of|at|on|für|vom|zum|de|du|del)(?:\s{1,3}[\w.@-]{1,30}){1,4}?)?"
    r"[\"'`\\]{0,3}\s{0,3}(?P<sign>[:=]|is\b|was\b|ist\b|war\b|lautet\b|est\b|es\b|->|→)\s{0,3}[\"'`\\]{0,3}"
    r"(?P<secret>[^\s\"'`,;\[\]]{4,200})"
)
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


def _is_named(found: re.Match[str]) -> bool:
    """Behind a name an equals sign is enough; elsewhere it has to look like one."""
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


def _is_always(_found: re.Match[str]) -> bool:
    return True


_RULES = (
    _Rule(
        "password",
        ("://",),
        re.compile(r"(?<=://)(?P<secret>[^/\s:@\"'\[\]]{1,100}:[^/\s@\"'\[\]]{1,200})(?=@)"),
        _is_always,
    ),
    *(_Rule("api key", marks, _PREFIXED, _is_key, sign) for sign, marks in _BY_SIGN.items()),
    _Rule("api key", ("key-",), re.compile(r"(?<![\w-])(?P<secret>key-[0-9a-f]{32})(?![\w-])"), _is_always),
    _Rule(
        "token",
        ("eyj",),
        re.compile(r"(?<![\w-])(?P<secret>eyJ[\w-]{8,2000}\.[\w-]{8,2000}\.[\w-]{0,2000})"),
        _is_always,
    ),
    _Rule("token", ("bearer ",), re.compile(r"(?i)(?<!\w)bearer (?P<secret>[\w.~+/=-]{15,2000}[\w~+/=-])"), _is_key),
    _Rule(
        "token",
        ("authorization",),
        re.compile(r"(?i)authorization[\"']?\s?[:=]\s?[\"']?basic (?P<secret>[\w+/=-]{8,2000})"),
        _is_always,
    ),
    _Rule("token", (":aa",), re.compile(r"(?<![\w:-])(?P<secret>\d{8,10}:AA[\w-]{32,40})(?![\w-])"), _is_always),
    _Rule(
        "token",
        ("hooks.slack.com/services/",),
        re.compile(r"(?<=hooks\.slack\.com/services/)(?P<secret>T\w{5,20}/B\w{5,20}/\w{10,40})"),
        _is_always,
    ),
    _Rule("api key", ("key", "secret"), _NAMED_KEY, _is_named),
    _Rule("token", ("token",), _NAMED_TOKEN, _is_key),
    _Rule(
        "password",
        ("passw", "pwd", "passphrase", "passcode", "kennwort", "contraseña", "mot de passe", "senha", "wachtwoord"),
        _PASSWORD,
        _is_password,
    ),
)
_BEGIN_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END_KEY = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_TEXT = re.compile(r"(?:[ \t\r\n]*[A-Za-z0-9+/=]{16,100})*")


def conceal(text: str) -> Concealed:
    """The text, each secret in it replaced by a placeholder that says what kind it was."""
    kinds: list[str] = []
    if "PRIVATE KEY" in text:
        text = _without_private_keys(text, kinds)
    small = text.lower()
    for rule in _RULES:
        if rule.sign in small and any(map(small.__contains__, rule.marks)):
            text = rule.pattern.sub(lambda found, rule=rule: _replaced(found, rule, kinds), text)  # type: ignore[misc]
    return Concealed(text, tuple(dict.fromkeys(kinds)))


def _replaced(found: re.Match[str], rule: _Rule, kinds: list[str]) -> str:
    secret = found["secret"]
    sign = found["sign"] if "sign" in rule.pattern.groupindex else ""
    if not rule.is_one(found):
        return found[0]
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
