"""Colours of code in Markdown, by five classes: keyword, string, number, comment and name."""

from functools import cache
from itertools import groupby
from typing import Any

from markupsafe import escape

# The most characters of coloured code. Some grammars take quadratic time for hostile texts.
_LONGEST = 6_000
_LANGUAGES = frozenset(
    "python py bash sh shell console javascript js typescript ts json html css xml sql yaml yml "
    "toml java c cpp c++ csharp go rust ruby php kotlin swift r latex tex diff ini dockerfile lua "
    "haskell julia matlab scala".split()
)


def highlight(code: str, language: str, _attributes: str) -> str:
    """Return a block of code as HTML. Long code, and code in an unknown language, stays plain.

    Args:
        code: The text between the fences, unescaped.
        language: The first word after the opening fence, in upper or lower case; "" without one.
        _attributes: The rest of the fence's line, which markdown-it passes. It is not used.
    """
    name = language.casefold()
    inside = str(escape(code))
    if name in _LANGUAGES and len(code) <= _LONGEST:
        inside = "".join(_coloured(code, name))
    return f'<pre tabindex="0"><code>{inside}</code></pre>\n'


def _coloured(code: str, name: str) -> list[str]:
    lexer, types = _lexer(name)
    tokens = ((_class_of(kind, types), text) for kind, text in lexer.get_tokens(code))
    pieces = []
    for colour, group in groupby(tokens, key=lambda token: token[0]):
        text = escape("".join(text for _, text in group))
        pieces.append(f'<span class="{colour}">{text}</span>' if colour else str(text))
    return pieces


@cache
def _lexer(name: str) -> tuple[Any, dict[str, Any]]:
    # The import of Pygments takes 30 ms, so it is left to the first coloured code.
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, Keyword, Name, Number, Operator, String

    types = {
        "hc": (Comment,),
        "hs": (String,),
        "hn": (Number,),
        "hk": (Keyword, Operator.Word, Name.Tag),
        "hf": (Name.Function, Name.Class, Name.Builtin, Name.Decorator, Name.Attribute),
    }
    return get_lexer_by_name(name, stripnl=False, ensurenl=False), types


def _class_of(kind: Any, types: dict[str, Any]) -> str:
    return next((name for name, kinds in types.items() if any(kind in one for one in kinds)), "")
