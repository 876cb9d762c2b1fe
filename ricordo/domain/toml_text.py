"""Write fields as TOML, in the form that people edit.

Source: TOML 1.0, https://toml.io.
"""

import re
from collections.abc import Mapping
from datetime import date

from ricordo.domain.block_schema import FieldValue

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_NEEDS_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f]')
# A text of several lines keeps its line breaks and tabs. The third of three quotes in a row is
# escaped. A quote at the end is escaped too, since the closing quotes follow it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NEEDS_LONG_ESCAPE = re.compile(rf'\\|{_CONTROL.pattern}|(?<="")"|"\Z')
_WIDEST = 100


def write_toml(entries: Mapping[str, FieldValue]) -> str:
    """Write each entry as a key of TOML, with its value on one or more lines.

    None becomes "", since TOML has no null.
    """
    return "".join(f"{key} = {_toml_value(entry)}\n" for key, entry in entries.items())


def _toml_value(entry: FieldValue) -> str:
    match entry:
        case None:
            return '""'
        case bool():
            return "true" if entry else "false"
        case int() | float():
            return repr(entry)
        case date():
            return entry.isoformat()
        case str():
            return _long(entry) if "\n" in entry else _short(entry)
        case tuple():
            texts = [_short(text) for text in entry]
            line = f"[{', '.join(texts)}]"
            if len(line) <= _WIDEST:
                return line
            return "[\n" + "".join(f"    {text},\n" for text in texts) + "]"


def _short(text: str) -> str:
    return f'"{_NEEDS_ESCAPE.sub(_escaped, text)}"'


def _long(text: str) -> str:
    # TOML drops a line break right after the opening quotes.
    if "'''" in text or text.endswith("'") or _CONTROL.search(text):
        return f'"""\n{_NEEDS_LONG_ESCAPE.sub(_escaped, text)}"""'
    return f"'''\n{text}'''"


def _escaped(match: re.Match[str]) -> str:
    sign = match.group()
    return _ESCAPES.get(sign, f"\\u{ord(sign):04x}")
