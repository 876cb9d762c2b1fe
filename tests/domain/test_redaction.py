"""Secrets are replaced by their kind, ordinary notes stay, and no text makes that slow."""

import json
import string
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain import redaction
from ricordo.domain.redaction import HIDDEN, redact, redact_json, redact_values, without
from tests.campaigns.sizes import short_and_long
from tests.seams.growth import repeated, require_linear

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq\nabcd\n-----END RSA PRIVATE KEY-----"
SECRETS = [
    ("my key is sk-1234567890abcdef1234567890abcdef ok", "my key is [secret removed: api key] ok"),
    ("use sk-proj-Ab12Cd34Ef56Gh78, please", "use [secret removed: api key], please"),
    ("AKIAIOSFODNN7EXAMPLE", "[secret removed: api key]"),
    (
        "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MD",
        "export AWS_SECRET_ACCESS_KEY=[secret removed: api key]",
    ),
    ('{"api_key": "abcd1234efgh5678"}', '{"api_key": "[secret removed: api key]"}'),
    (
        r"{\"client_secret\": \"shh-123-very-quiet\"}",
        r"{\"client_secret\": \"[secret removed: api key]\"}",
    ),
    ("token=ghp_abcdefghijklmnopqrstuvwxyz0123456789", "token=[secret removed: api key]"),
    ("mailgun key-0123456789abcdef0123456789abcdef", "mailgun [secret removed: api key]"),
    (
        "Authorization: Bearer abc123DEF456ghi789jkl",
        "Authorization: Bearer [secret removed: token]",
    ),
    ("authorization: Basic YWRhOmh1bnRlcjI=", "authorization: Basic [secret removed: token]"),
    ("refresh_token: 1a2b3c4d5e6f7g8h", "refresh_token: [secret removed: token]"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def_1 is it", "[secret removed: token] is it"),
    ("bot 123456789:AAF4k2j3h4k5j6h7k8j9h0k1j2h3k4j5h6k", "bot [secret removed: token]"),
    ("postgres://ada:s3cret@db/notes", "postgres://[secret removed: password]@db/notes"),
    ("password: hunter2.", "password: [secret removed: password]."),
    ("Password: swordfish\nCity: Turin", "Password: [secret removed: password]\nCity: Turin"),
    ("password=swordfish x", "password=[secret removed: password] x"),
    (
        "The wifi password for home is Tr0ub4dor&3, he said",
        "The wifi password for home is [secret removed: password], he said",
    ),
    ("Mein Passwort lautet Sommer2024!", "Mein Passwort lautet [secret removed: password]!"),
    (f"Key:\n{PEM}\nend", "Key:\n[secret removed: private key]\nend"),
    (f"{PEM[:51]}\n{PEM[32:51]}\nCity: Turin", "[secret removed: private key]\nCity: Turin"),
]
# Real secrets that look like the code below.
LIKE_CODE = [
    *(
        "password = Tr0ub4dor&3",
        "password = 'getpass()'",
        'db_password = "os.environ"',
        "PASSWORD=s3lf.correct.horse",
    ),
    *(
        "password = hunter2(abc",
        "pwd=passw0rd",
        "password: $ecret99",
        "password = correct.horse",
        "passwd=swordfish)",
    ),
    *(
        "api_key=4eC39HqLyjWD",
        "api_key = 'settings.key'",
        "client_secret = abcd1234efgh",
        "postgres://ada:pa55word@db/x",
    ),
    *(
        "sk-learn2024aB3dE5gH7jK9",
        "sk-2024tutorial-Ab12Cd34Ef56",
        "Key sk-live-1234567890abcdef is wrong",
        "rk_live_4eC39HqLyjWDarjtT1zdp7dc",
    ),
]
CODE = [
    *(
        "password = getpass()",
        "password = getpass.getpass('Password?')",
        "password = input()",
        "pwd = os.environ['PW']",
    ),
    *(
        "password = config.password",
        "self.password = password",
        "connect(user=user, password=password)",
    ),
    *(
        "def login(user, password=None):",
        "password: SecretStr",
        "password = request.form['password']",
    ),
    *(
        "String password = scanner.nextLine();",
        "const password = req.body.password;",
        "password=$DB_PASSWORD",
    ),
    *(
        "password: ${DB_PASSWORD}",
        "password = {{ db_password }}",
        "password: <your password>",
        "password = ********",
    ),
    *(
        "if password == stored:",
        "if password ==stored:",
        "password = hash_password(raw)",
        "password=user_password)",
    ),
    *(
        "newPassword = oldPassword",
        "password=userPassword",
        "password = '%s' % x",
        "passwd=%(password)s",
    ),
    *(
        "api_key = os.environ['OPENAI_API_KEY']",
        "api_key=settings.api_key",
        "client_secret=client_secret)",
    ),
    *("API_KEY=your-api-key", "api_key = load_key(path)", "postgres://user:password@localhost/db"),
    *(
        "postgres://{user}:{password}@{host}/db",
        "postgres://$USER:$PASS@host",
        "url = https://<user>:<token>@git.host",
    ),
    *(
        "uses sk-learn-pipeline-2024tutorial",
        "sk-learn-pipelines2024tutorial.md",
        "see hf_course-part2beginners",
    ),
]
WHO = ("Ada", "Professor Rossi")
NOTES = [
    *(
        f"{who} {what}"
        for who, what in product(
            WHO,
            [
                "forgot the password again and asks for a reset link.",
                "says that the password is on the fridge.",
                "reads about secret-sharing and zero-knowledge proofs.",
                "wants key-performance-indicators-of-2024-q3 explained.",
                "uses sk-learn-pipelines-v2-notes for the homework.",
                "was born on 1998-03-04 and moved to Turin in 2019.",
                "can be reached at +39 011 555 0199 or ada@example.org.",
                "opened https://example.org:8283/v1/steps?limit=5 twice.",
                "thinks that a bearer of bad news deserves tea.",
                "prefers basic understanding-of-algebra-2 to proofs.",
                "asks what an API key is and where to get one.",
                "wrote: password must have 12 characters, one of them a sign.",
                "noted message-1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e5f6.",
                "changed the password on 2024-05-01, as everybody had to.",
                "pays with IBAN-like numbers in the exercise: IT60 X054.",
                "keeps commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904 in mind.",
                "says the access code of the library is posted at its door.",
                "read the token economy chapter: tokens = rewards.",
                "compares hf_dataset_names_list with the course list.",
                "answers in French: le mot de passe est oublié.",
                "Password: required for the portal, says the handout.",
                "put 'token' and 'lexeme' into the same drawer.",
                "has two passwords to remember and one dog named Pwd.",
                "asked: is my password safe? I said: change it.",
                "writes $HOME/.ssh/config by hand, without keys in it.",
                "asks for the password policy: 'none' is not an answer.",
                "likes tea and keeps the key to the shed under the mat.",
                "calls it the secret: garlic, 2 cloves, and patience.",
                "lost a bet, and the passphrase game went on for hours.",
                "said her id token and mine look the same: long.",
                "found the sign 'key = value' confusing in TOML.",
                "keeps a pwd of tea bags: /home/ada/tea prints on pwd.",
            ],
        )
    )
]


# Secrets that are recognized only in strict mode, where a name or a prefix alone is enough.
STRICT = [
    ("Authorization: Bearer abcdefgh12345", "abcdefgh12345"),
    ("401 for sk-proj_abcdefghijk", "sk-proj_abcdefghijk"),
    ("api_key: abc123def", "abc123def"),
    ("GET /x?api_key=abc&page=2", "abc&"),
    ("GET /x?key=abcdef&page=2", "abcdef"),
    ('{"password": "correct horse"}', "correct"),
    (r"{\"client_secret\": \"shh-very-quiet\"}", "shh-very-quiet"),
    ("OPENAI_API_KEY: qwertyuiop", "qwertyuiop"),
    ("AKIAABCDEFGHIJKLMNOP is the id", "AKIAABCDEFGHIJKLMNOP"),
]
PLAIN = [
    "Her name is Ada, and she likes tea.",
    "The bearer of bad news came to ask-me-anything.",
    "See https://example.org:8283/v1/steps?limit=5 and mail ada@example.org.",
    "It is no secret that the keyboard-layout is odd.",
    '{"max_tokens": 500, "tokens": [1, 2]}',
    "message-1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e5f6",
]


def test_a_secret_is_replaced_by_its_kind() -> None:
    for text, kept in SECRETS:
        redacted = redact(text)
        assert redacted.text == kept, text
        assert len(redacted.kinds) == 1, text
        assert redact(kept) == type(redacted)(kept), text
        assert redact(text, is_strict=True).kinds, text
    assert {redact(text).kinds[0] for text, _ in SECRETS} == {
        "api key",
        "token",
        "password",
        "private key",
    }


def test_code_that_only_refers_to_a_secret_stays_and_similar_secrets_are_removed() -> None:
    assert [text for text in CODE if redact(text).text != text] == []
    assert [text for text in LIKE_CODE if not redact(text).kinds] == []
    assert [text for text in LIKE_CODE if not redact(text, is_strict=True).kinds] == []
    assert [text for text in CODE[:9] if redact(text, is_strict=True).kinds] == []


def test_removed_secrets_can_be_removed_from_other_texts() -> None:
    found = redact("password: Tr0ub4\\dor€ and token=ghp_abcdefghijklmnopqrstuvwxyz0123456789")
    assert found.secrets == {
        "Tr0ub4\\dor€": "password",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789": "api key",
    }
    for said in (
        "Tr0ub4\\dor€",
        json.dumps("Tr0ub4\\dor€"),
        json.dumps("Tr0ub4\\dor€", ensure_ascii=False),
    ):
        assert without(said, found.secrets).strip('"') == "[secret removed: password]"


_LETTERS = string.ascii_letters + string.digits + "+/"
KEY = "".join(_LETTERS[number * number * 7 % len(_LETTERS)] for number in range(260)) + "=="


def wrapped(columns: int, between: str = "\n") -> str:
    lines = (KEY[start : start + columns] for start in range(0, len(KEY), columns))
    marks = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    return between.join((marks[0], *lines, marks[1]))


@given(
    st.integers(20, 90),
    st.integers(5, 300),
    st.sampled_from(["\n", "\r\n", "\n  ", "\n> ", " \\\n"]),
    st.booleans(),
)
def test_a_removed_key_is_removed_from_texts_that_break_it_at_other_columns(
    stored_columns: int, columns: int, between: str, is_json: bool
) -> None:
    secrets = redact(f"Keep this:\n{wrapped(stored_columns)}").secrets
    assert [*secrets.values()] == ["private key"]
    said = f"It is {wrapped(columns, between)} now."
    said = json.dumps({"text": said}) if is_json else said
    shown = without(said, secrets)
    assert "It is [secret removed: private key] now." in shown
    assert without(KEY[:200], secrets) == KEY[:200]


def test_no_pattern_is_built_from_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """To compile a pattern with the letters of a private key would block the server for seconds."""
    secrets = redact(f"Keep this:\n{wrapped(64)}").secrets
    monkeypatch.setattr(redaction, "re", None)
    assert without(f"It is {wrapped(40)} now.", secrets) == (
        "It is [secret removed: private key] now."
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("KEY", "KEY"),
        ("one\n\ntwo\n", "one\n\ntwo\n"),
        ("say {0}\n{1}\nmore\n", "say KEY\nmore\n"),
        ("{0}\\n  > {1}{0}{1}", "KEYKEY"),
        ("\n\n{0}{1}\n{0}\r\n{1}", "\n\nKEY\nKEY"),
        ("a\n{0}{0}\n{1}", "a\n{0}KEY"),
    ],
)
def test_only_the_secret_is_removed_beside_other_lines(text: str, shown: str) -> None:
    halves = "abcdefghij", "klmnopqrst"
    removed = without(text.format(*halves), {"".join(halves): "api key"})
    assert removed.replace("[secret removed: api key]", "KEY") == shown.format(*halves)


def test_two_lines_are_no_short_secret() -> None:
    secrets = redact("My PIN is 1234").secrets
    assert without("12\n34", secrets) == "12\n34"
    assert without("1234", secrets) == "[secret removed: pin]"


def test_in_strict_mode_a_name_or_a_prefix_is_enough() -> None:
    for text, secret in STRICT:
        shown = redact(text, is_strict=True)
        assert shown.kinds, text
        assert secret not in shown.text, text
        assert redact(shown.text, is_strict=True).text == shown.text, text
    assert [text for text in PLAIN if redact(text, is_strict=True).kinds] == []


def test_ordinary_notes_are_unchanged() -> None:
    assert len(set(NOTES)) == len(NOTES) > 25
    assert [note for note in NOTES if redact(note).text != note] == []


@given(
    st.lists(
        st.sampled_from(
            [text for text, _ in SECRETS] + NOTES + ["\n", " ", "[secret removed: token]", "="]
        )
    )
)
def test_redacting_twice_changes_nothing_more(pieces: list[str]) -> None:
    for joined in (" ".join(pieces), "\n".join(pieces), "".join(pieces)):
        once = redact(joined)
        assert redact(once.text) == type(once)(once.text)


WIDE = str.maketrans({sign: chr(sign + 0xFEE0) for sign in range(0x21, 0x7F)})
DISGUISES: dict[str, Callable[[str], str]] = {
    "zero-width signs": "\u200b".join,
    "joiners and marks of direction": "\u2060\ufeff\u202e".join,
    "strokes upon letters": "\u0336".join,
    "soft hyphens": "\u00ad".join,
    "variation selectors": "\ufe0f".join,
    "wide signs": lambda text: text.translate(WIDE),
    "bold letters": lambda text: "".join(
        chr(0x1D400 + ord(one) - 65)
        if "A" <= one <= "Z"
        else chr(0x1D41A + ord(one) - 97)
        if "a" <= one <= "z"
        else one
        for one in text
    ),
}


def test_invisible_characters_and_other_letter_forms_hide_no_secret() -> None:
    for text, kept in SECRETS:
        kinds = redact(text).kinds
        for name, disguise in DISGUISES.items():
            hidden = disguise(text)
            shown = redact(hidden)
            assert shown.kinds == kinds, (name, text)
            assert redact(hidden, is_strict=True).kinds, (name, text)
            before, _, after = kept.partition("[")
            assert shown.text.startswith(disguise(before)), (name, text)
            assert shown.text.endswith(disguise(after.partition("]")[2])), (name, text)


def test_text_around_a_disguised_secret_is_unchanged() -> None:
    key = "sk-proj-Ab12Cd34Ef56Gh78"
    around = "\ufb01ve \u00bd caf\u00e9s\u200b \uff21da: {} \ufb01n\u200d \uff01"
    for disguise in DISGUISES.values():
        assert redact(around.format(disguise(key))).text == around.format(
            "[secret removed: api key]"
        )
    harmless = "\uff21da\uff0c \u200bsk-\u200blearn \U0001d400\u2460\ufb01"
    assert redact(harmless).text is harmless


def test_fields_with_credentials_or_headers_lose_their_values() -> None:
    value = {
        "extra_headers": {"X-Anything": "private"},
        "Authorization": "Basic x",
        "nested": [{"api_key": "abc", "max_tokens": 5, "text": "Bearer abcdefgh12345678"}],
        "password": None,
    }
    assert redact_json(value) == {
        "extra_headers": HIDDEN,
        "Authorization": HIDDEN,
        "nested": [{"api_key": HIDDEN, "max_tokens": 5, "text": "Bearer [secret removed: token]"}],
        "password": None,
    }


def test_values_are_redacted_by_their_field_names_and_ordinary_values_stay() -> None:
    kept = {
        "headers": "name, age",
        "token": "noun",
        "secret": "garlic",
        "n": [1, None, True],
        "tags": ("tea", "maps"),
    }
    assert redact_values(kept) == kept
    key = "sk-proj-Ab12Cd34Ef56Gh78"
    given = {
        "password": "swordfish",
        "db": {"api_key": "abcd1234efgh5678"},
        key: [key],
        "tags": (key, "tea"),
    }
    assert redact_values(given) == {
        "password": "[secret removed: password]",
        "db": {"api_key": "[secret removed: api key]"},
        "[secret removed: api key]": ["[secret removed: api key]"],
        "tags": ("[secret removed: api key]", "tea"),
    }


# Beginnings of secrets without an end: each is repeated to a long text.
PIECES = [
    *"eyJ-|eyJaaaaaaaa.|eyJaaaaaaaa-|password |password for |password of a a a a |password: "
    "|a|a-|secret|://a:|://a:b".split("|"),
    *"sk-|bearer |token|token: [|api key |api_key|api_key=|secret key is "
    "|key-|ghp_|1234567890:AA|authorization: basic ".split("|"),
    *"hooks.slack.com/services/T|secret |?key=|-----BEGIN PRIVATE KEY-----|-----END PRIVATE "
    "KEY-----".split("|"),
    "-----BEGIN A PRIVATE KEY----- " + "a" * 30 + " -----END A PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\naaaa",
]


# Lengths near the length of one portion, and of several portions.
PLACES = [32_700, 49_152, 32_740, 32_768, 65_536, 32_767, 32_769, 65_530, 98_304]


@pytest.mark.parametrize("is_strict", [False, True])
def test_the_time_grows_linearly_with_the_length(is_strict: bool) -> None:
    for piece in PIECES:
        for part in (piece, piece + "\u200b", piece.translate(WIDE)):
            require_linear(
                lambda size, part=part: redact(repeated(part, size), is_strict=is_strict), 600, part
            )


@pytest.mark.parametrize("places", short_and_long(PLACES[2:5], PLACES))
def test_a_secret_is_found_anywhere_in_a_long_text(places: list[int]) -> None:
    secrets = (
        "password: hunter2-is-long",
        "sk-1234567890abcdef1234567890abcdef",
        "token=ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    )
    for secret, place in product(secrets, places):
        for filling in ("word ", "é, \n"):
            text = (filling * 40_000)[: place - 1] + "\n" + secret + "\n" + filling * 10_000
            shown = redact(secret).text
            assert redact(text).text == text.replace(secret, shown), (secret, place)


OWN = [
    "My password is {}.",
    "our wifi password is {}",
    "Mein Passwort ist {}!",
    "Unser Kennwort lautet {}, glaube ich",
    "Mon mot de passe est {}.",
    "notre mot de passe pour le wifi est {}",
    "Mi contraseña es {}.",
    "nuestra contraseña es {}\nMás",
    "La mia password è {}.",
    "la nostra parola d'ordine è {}",
    "My passphrase was {};",
]


def test_a_users_own_password_is_found_in_five_languages_even_as_a_plain_word() -> None:
    for sentence in OWN:
        for word in ("swordfish", "Schwertfisch", "espadon", "pescespada", "Ärmelkanal"):
            told = redact(sentence.format(word))
            assert (told.text, told.kinds) == (
                sentence.format("[secret removed: password]"),
                ("password",),
            ), sentence
        for state in (
            "forgotten",
            "geheim",
            "oublié",
            "segura",
            "scaduta",
            "expired",
            "vergessen",
            "sicher",
        ):
            assert redact(sentence.format(state)).kinds == (), sentence
    for kept in (
        "The password is swordfish there.",
        "My password is very long.",
        "A password is something secret",
        "My key is here.",
    ):
        assert redact(kept).kinds == (), kept


PINS = [
    *(
        "PIN: {}",
        "my PIN is {}.",
        "PIN {}",
        "pin code: {}",
        "The pin for the door is {}",
        "PIN={}",
        "die PIN lautet {}",
    ),
    *(
        "Meine Geheimzahl ist {}",
        "mon code PIN est {}",
        "mi pin es {}",
        "il mio PIN è {}",
        "PIN number: {}",
        "PIN -> {}",
    ),
]


def test_a_pin_next_to_the_word_is_removed() -> None:
    for sentence in PINS:
        for pin in ("4821", "00734", "482193", "48219347"):
            assert redact(sentence.format(pin)).text == sentence.format("[secret removed: pin]"), (
                sentence
            )
    for kept in (
        "Pin 13 goes to ground",
        "pin 2024 notes to the board",
        "PIN: 3 digits",
        "spin is 4821",
        "PIN 2024-05-01",
        "pins: 4821",
    ):
        assert redact(kept).kinds == (), kept


BROKEN = ("\n", "\r\n", "\n    ", " \\\n  ", "\n> ", "\n\t")
WHOLE = (
    *(
        "sk-1234567890abcdef1234567890abcdef",
        "ghp_a1bcdefghijklmnopqrstuvwxyz0123456789ab",
        "AKIAIOSF0DN27EXAMP1E9XYZ",
    ),
    *(
        "xoxb-123456789012-1234567890123-Ab12Ef34IjKl",
        "glpat-a1b2c3d4e5f6g7h8i9j0k1l2",
        "hf_a1B2c3D4e5F6g7H8i9J0k1L2",
    ),
)


def test_a_key_broken_over_two_lines_is_one_secret() -> None:
    for key, between in product(WHOLE, BROKEN):
        for at in (len(key) // 2, len(key) - 8):
            text = f"Use {key[:at]}{between}{key[at:]}\nCity: Turin"
            assert redact(text).text == "Use [secret removed: api key]\nCity: Turin", text
    for kept in (
        "sk-learn\nscikit2024learn is a library",
        "hf_hub\ndownload",
        "xoxb-not-a-token",
        "npm_config\nregistry url",
    ):
        assert redact(kept).kinds == (), kept


def test_slack_tokens_are_recognized_by_their_prefix() -> None:
    for start in (
        "xoxb",
        "xoxp",
        "xoxa",
        "xoxs",
        "xoxr",
        "xoxe",
        "xoxo",
        "xoxd",
        "xoxc",
        "xoxe.xoxp",
        "xoxe.xoxb",
    ):
        for rest in (
            "1234-5678-abcdefghijkl",
            "123456789012-1234567890123-AbCdEfGhIjKlMnOp",
            "1-Mi0yLTEyMzQ1Njc4",
        ):
            assert redact(f"token {start}-{rest} ok").text in (
                "token [secret removed: api key] ok",
                "token xoxe.[secret removed: api key] ok",
            ), start
