"""One term for one thing: words that the glossary rules out, unique class names, and modules named by nouns."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import ricordo

PACKAGE = Path(ricordo.__file__).parent
ROOT = Path(__file__).parent.parent
# The field's own nouns in -ing; every other module is named for a thing.
NOUNS_IN_ING = {"routing", "embedding", "paging", "packaging", "logging", "tracing", "scoring", "indexing"}


def ruled_out(*, in_texts: bool = False) -> set[str]:
    """The words and phrases of the column "not this", in small letters; in texts, those in brackets are allowed."""
    words: set[str] = set()
    for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[3] not in ("", "–", "---", "not this"):
            words.update(word.strip().lower().replace("_", " ") for word in cells[3].split(","))
    if in_texts:
        return {word for word in words if not word.startswith("(")}
    return {word.strip("()") for word in words}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text("utf-8"))


def identifiers(tree: ast.Module) -> set[str]:
    """Names that the module defines: classes, functions, parameters, variables and attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def words_of(identifier: str) -> str:
    """`_LateRoute`, `late_route` → `late route`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", identifier)
    return " ".join(spaced.lower().split())


def texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def phrase(words: set[str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(sorted(map(re.escape, words))) + r")\b", re.IGNORECASE)


def test_no_identifier_uses_a_word_that_the_glossary_rules_out() -> None:
    """A reader who knows the field should never have to learn a word of ours."""
    pattern = phrase(ruled_out())
    faults = [
        f"{path}: {name}"
        for path, tree in sources()
        for name in sorted(identifiers(tree))
        if pattern.search(words_of(name))
    ]
    assert faults == []


def test_no_text_of_the_package_uses_a_word_that_the_glossary_rules_out() -> None:
    """Models read prompts and tool descriptions, users read errors and help."""
    pattern = phrase(ruled_out(in_texts=True))
    faults = [
        f"{path}: …{text[max(0, found.start() - 30) : found.end() + 30]}…"
        for path, tree in sources()
        for text in texts(tree)
        if (found := pattern.search(text))
    ]
    for path in sorted((PACKAGE / "prompt" / "texts").glob("*.md")):
        faults += [f"{path.name}: {found.group()}" for found in pattern.finditer(path.read_text("utf-8"))]
    assert faults == []


def test_a_class_name_is_unique_in_the_package() -> None:
    """One name, one meaning: two classes of one name cannot be told apart in a sentence."""
    where: dict[str, list[str]] = defaultdict(list)
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                where[node.name.lstrip("_")].append(path)
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_a_module_is_named_for_a_thing() -> None:
    """`closing.py` could be anything; `run_end.py` is what it says."""
    stems = {path.stem for path in PACKAGE.rglob("*.py")}
    assert {stem for stem in stems if stem.endswith("ing")} - NOUNS_IN_ING == set()
