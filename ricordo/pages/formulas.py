"""Formulas in Markdown: LaTeX between dollar signs or brackets, shown as MathML.

Browsers draw MathML without fonts or scripts. The library copies attributes and text unchanged. So
this module writes only known elements and attributes, and escapes everything.
"""

from html import unescape
from typing import TYPE_CHECKING, Any

from markupsafe import escape

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline

# The most characters of a formula. A longer formula is shown as it is written.
_LONGEST = 1_000
_DEEPEST = 60  # the most levels of nested elements, and the most opening braces
_ELEMENTS = frozenset(
    "math mrow mi mn mo mtext ms mspace mfrac msqrt mroot msub msup msubsup munder mover "
    "munderover mtable mtr mtd mstyle mpadded mphantom menclose mmultiscripts mprescripts none".split()
)
_ATTRIBUTES = frozenset(
    "display displaystyle mathvariant stretchy fence form separator lspace rspace linethickness "
    "accent accentunder columnalign rowspacing columnspacing notation width height depth".split()
)
# A formula's beginning and end, and whether it is shown as a block.
_FENCES = (("$$", "$$", True), ("\\[", "\\]", True), ("\\(", "\\)", False), ("$", "$", False))


def add_formulas(parser: "MarkdownIt") -> None:
    """Let a parser of Markdown read formulas."""
    parser.inline.ruler.before("escape", "formula", _read_formula)
    parser.add_render_rule("formula", _render_formula)


def mathml(latex: str, *, is_block: bool = False) -> str | None:
    """Return the formula as MathML; None if it is too long or cannot be read."""
    if len(latex) > _LONGEST or latex.count("{") > _DEEPEST:
        return None
    # The import takes 1 MB of memory, and time, so it is left to the first formula.
    from latex2mathml.converter import convert_to_element

    try:
        element = convert_to_element(latex, display="block" if is_block else "inline")
        return _serialized(element, 0)
    except Exception:  # the converter raises errors of many kinds for broken formulas
        return None


def _serialized(element: "Element", depth: int) -> str:
    if depth > _DEEPEST:
        raise ValueError("too deep")
    inside = str(escape(unescape(element.text or "")))
    inside += "".join(
        _serialized(child, depth + 1) + str(escape(unescape(child.tail or ""))) for child in element
    )
    if element.tag not in _ELEMENTS:
        return inside
    attributes = "".join(
        f' {name}="{escape(unescape(text))}"'
        for name, text in element.items()
        if name in _ATTRIBUTES
    )
    return f"<{element.tag}{attributes}>{inside}</{element.tag}>"


def _read_formula(state: "StateInline", silent: bool) -> bool:
    text = state.src
    start = state.pos
    fence = next((fence for fence in _FENCES if text.startswith(fence[0], start)), None)
    if fence is None or (start and text[start - 1] == "\\"):
        return False
    begin, end, is_block = fence
    inside_from = start + len(begin)
    inside_to = text.find(end, inside_from, inside_from + _LONGEST)
    latex = text[inside_from:inside_to]
    if inside_to < 0 or not latex.strip():
        return False
    if begin == "$" and not _is_formula(latex, text[inside_to + 1 : inside_to + 2]):
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.content = latex
        token.meta = {"is_block": is_block, "source": text[start : inside_to + len(end)]}
    state.pos = inside_to + len(end)
    return True


def _is_formula(latex: str, after: str) -> bool:
    """Return False for sums of money, as in "from $5 to $10"."""
    return not (latex[0].isspace() or latex[-1].isspace() or after.isdigit() or "\n" in latex)


def _render_formula(_renderer: Any, tokens: Any, index: int, _options: Any, _env: Any) -> str:
    token = tokens[index]
    is_block: bool = token.meta["is_block"]
    html = mathml(token.content, is_block=is_block)
    if html is None:
        return f"<code>{escape(token.meta['source'])}</code>"
    return f'<span class="formula">{html}</span>' if is_block else html
