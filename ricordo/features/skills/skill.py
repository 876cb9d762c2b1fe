"""Skills in the open Agent Skills format, and their text in a memory block.

A skill is a folder with `SKILL.md`, which has a front matter in YAML, and other files. The format
is that of https://agentskills.io/specification.

One block holds the whole skill, so that one version, one proposal and one approval cover all of its
files. The block's text is `SKILL.md`. Each other file follows a line of the form `=== file:
scripts/run.py ===`. If a file itself contains such a line, the stored line has a backslash in
front.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ricordo.domain.block import SKILL_LABEL
from ricordo.domain.hidden_text import describe_hidden, has_hidden_text
from ricordo.domain.text import name_key, normal_name, normal_text
from ricordo.errors import Invalid, TooLong

SKILL_FILE = "SKILL.md"
LONGEST_NAME = 64
LONGEST_DESCRIPTION = 1024
LONGEST_COMPATIBILITY = 500
MOST_FILES = 100
# The most characters of a front matter, so that the beginning of a block's text contains all of it.
LONGEST_FRONT_MATTER = 4000
_LONGEST_PATH = 150
_DEEPEST = 5  # folders above a file
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FENCE = "---"
_FILE_LINE = re.compile(r"=== file: (.+) ===")
_LIKE_FILE_LINE = re.compile(r"\\*=== file: ")
# Characters that are safe in paths on all systems. A leading "-" would look like an option.
_PART = re.compile(r"[\w+@][\w+@. -]*", re.ASCII)
_TAG = re.compile("[<\uff1c\ufe64][/\uff0f!?a-zA-Z]")
_FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The fields of a skill's front matter.

    `allowed_tools` is stored unchanged, but gives the agent no tools.
    """

    name: str
    description: str
    license: str | None = None
    compatibility: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    allowed_tools: str | None = None


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill: its front matter, the text of `SKILL.md`, and its other files by path."""

    front: FrontMatter
    content: str
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.front.name

    @property
    def label(self) -> str:
        """The label of the skill's block."""
        return label_of(self.name)

    @property
    def body(self) -> str:
        """The instructions: `SKILL.md` without its front matter."""
        return _split(self.content)[1]

    @property
    def text(self) -> str:
        """The text of the skill's block."""
        parts = [_escaped(self.content)]
        for path in sorted(self.files):
            parts += [f"=== file: {path} ===\n", _escaped(self.files[path])]
        return "".join(parts)


def label_of(name: str) -> str:
    """Return the label of the block of the skill with this name.

    Args:
        name: The name as anyone may have sent it.

    Raises:
        Invalid: The format does not allow the name.
    """
    return SKILL_LABEL.format(require_name(name))


def name_of(label: str) -> str:
    """Return the name of the skill whose block has this label.

    Args:
        label: The label of a skill; another label is not allowed.
    """
    return label.split("/")[1]


def require_name(name: str) -> str:
    """Return the name if the format allows it.

    Args:
        name: The name as anyone may have sent it.

    Raises:
        Invalid: The format does not allow it.
    """
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise Invalid(
            f'"{name[:80]}" is not a valid name of a skill: use lower case letters, digits and single '
            f"hyphens between them, {LONGEST_NAME} at most."
        )
    return name


def make_skill(content: str, files: Mapping[str, str], *, name: str | None = None) -> Skill:
    """Return the skill with this `SKILL.md` and these other files.

    Texts get the normal form of memory, and end with a line break.

    Args:
        content: The text of `SKILL.md`.
        files: The other texts, by path.
        name: The name that the front matter must have, such as the folder's.

    Raises:
        Invalid: A part does not follow the format.
        TooLong: There are too many files.
    """
    content = _ended(content)
    front = read_front_matter(content)
    if name is not None and front.name != name:
        raise Invalid(
            f'The front matter names the skill "{front.name}", and its folder is "{name[:80]}". '
            "Both must be the same."
        )
    return Skill(front, content, _checked_files(files))


def parse_skill(text: str, name: str | None = None) -> Skill:
    """Return the skill in the text of a block.

    Args:
        text: The text of the block, as `Skill.text` writes it.
        name: The name that the front matter must have; None: any.

    Raises:
        Invalid: A part does not follow the format.
        TooLong: There are too many files.
    """
    (_, content), *files = parts_of(text)
    paths = [path for path, _ in files]
    if len(set(paths)) < len(paths):
        raise Invalid("Two files of the skill have the same path. Give one of them another name.")
    return make_skill(content, dict(files), name=name)


def parts_of(text: str) -> list[tuple[str, str]]:
    """Return the files in the text of a block, `SKILL.md` first, as pairs of path and text.

    Nothing is checked, so a text that violates the format has parts too.

    Args:
        text: The text of a skill's block.
    """
    lines: list[str] = []
    parts: list[tuple[str, list[str]]] = [(SKILL_FILE, lines)]
    for line in text.split("\n"):
        if start := _FILE_LINE.fullmatch(line):
            lines = []
            parts.append((start[1], lines))
        else:
            is_escaped = line.startswith("\\") and _LIKE_FILE_LINE.match(line)
            lines.append(line[1:] if is_escaped else line)
    # Each file ends with a line break. The next file's line or the end of the text follows it.
    texts = ["".join(f"{line}\n" for line in kept) for _, kept in parts[:-1]]
    texts.append("\n".join(parts[-1][1]))
    return [(path, part) for (path, _), part in zip(parts, texts, strict=True)]


def read_front_matter(content: str) -> FrontMatter:
    """Return the front matter of a `SKILL.md`.

    Fields that the format does not define are ignored, but they stay in the text.

    Args:
        content: The text; it may be cut after the front matter.

    Raises:
        Invalid: The front matter is missing, or a field violates the format.
    """
    source, _ = _split(content)
    fields = _yaml(source)
    texts = {name: _text_field(fields, name) for name in _FIELDS if name != "metadata"}
    name = require_name(texts["name"] or "")
    description = _require_description(texts["description"] or "")
    compatibility = texts["compatibility"]
    if compatibility and len(compatibility) > LONGEST_COMPATIBILITY:
        raise Invalid(f"compatibility has more than {LONGEST_COMPATIBILITY} characters.")
    return FrontMatter(
        name,
        description,
        texts["license"],
        compatibility,
        _metadata(fields.get("metadata")),
        texts["allowed-tools"],
    )


def require_path(path: str) -> str:
    """Return the path of a skill's file if it is safe everywhere.

    Args:
        path: A relative path with "/" between its parts.

    Raises:
        Invalid: It is not safe, or too long or too deep.
    """
    parts = path.split("/")
    is_safe = all(_PART.fullmatch(part) and not part.endswith((".", " ")) for part in parts)
    if not is_safe or len(path) > _LONGEST_PATH or len(parts) - 1 > _DEEPEST:
        raise Invalid(
            f'"{path[:80]}" cannot be the path of a skill\'s file. Use a relative path of letters, '
            'digits, "-", "_", "+", "@", "." and spaces, as in "scripts/run.py", '
            f"{_LONGEST_PATH} characters and {_DEEPEST} folders at most."
        )
    return path


def require_visible(skill: Skill, before: str = "") -> None:
    """Raise Invalid if the skill has hidden text that the text `before` lacks.

    Args:
        skill: The skill.
        before: The former text of its block; "" for a new skill.

    Raises:
        Invalid: The skill has hidden text, which the message describes.
    """
    if has_hidden_text(skill.text, [before]):
        raise Invalid(
            f"The skill contains invisible characters ({describe_hidden(skill.text, [before])}). "
            "Remove them first."
        )


def _split(content: str) -> tuple[str, str]:
    """Return the source of the front matter, and the body. Raises Invalid."""
    lines = content.split("\n")
    if lines[0].rstrip() == _FENCE:
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() == _FENCE:
                source = "\n".join(lines[1:number])
                if len(source) > LONGEST_FRONT_MATTER:
                    break
                return source, "\n".join(lines[number + 1 :]).removeprefix("\n")
    raise Invalid(
        f"{SKILL_FILE} must begin with a front matter: a line ---, the fields name and description, "
        f"and another line ---, {LONGEST_FRONT_MATTER} characters at most."
    )


def _yaml(source: str) -> dict[str, Any]:
    """Return the fields of the front matter, with all scalars as texts. Raises Invalid."""
    try:
        # An alias could repeat a text many times.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(source, yaml.BaseLoader)):
            raise Invalid("The front matter cannot use aliases of YAML. Write the values out.")
        fields = yaml.load(source, yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and maps
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 2}" if mark else ""
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise Invalid(f"The front matter cannot be read{line}: {problem}.") from None
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise Invalid("The front matter must have fields, as in name: pdf-tables.")
    return fields


def _text_field(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field's text; None if it is missing or empty. Raises Invalid."""
    text = fields.get(name)
    if isinstance(text, list) and name == "allowed-tools":
        text = " ".join(str(tool) for tool in text)
    if text is None:
        return None
    if not isinstance(text, str):
        raise Invalid(f"{name} in the front matter must be a text.")
    return normal_text(text).strip() or None


def _require_description(description: str) -> str:
    if not description:
        raise Invalid("The front matter must have a description: what the skill does, and when.")
    if len(description) > LONGEST_DESCRIPTION:
        raise Invalid(
            f"The description has {len(description)} characters, and {LONGEST_DESCRIPTION} are the "
            "most. Move the rest into the body."
        )
    if _TAG.search(description):
        raise Invalid("The description cannot hold tags such as <value>. Write it as plain text.")
    return description


def _metadata(fields: Any) -> dict[str, str]:
    if fields is None or fields == "":
        return {}
    if not isinstance(fields, dict) or not all(
        isinstance(part, str) for pair in fields.items() for part in pair
    ):
        raise Invalid("metadata in the front matter must be names with texts.")
    return dict(fields)


def _checked_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files with normal paths and texts. Raises Invalid, TooLong."""
    if len(files) > MOST_FILES:
        raise TooLong(f"The skill has {len(files)} files. The limit is {MOST_FILES}.")
    checked = {require_path(normal_name(path)): _ended(text) for path, text in files.items()}
    paths = [SKILL_FILE, *checked]
    keys = {name_key(path): path for path in paths}
    if len(keys) < len(files) + 1:
        raise Invalid(
            "Two files of the skill have paths that differ only in case, and some systems would "
            "make them one file. Rename one."
        )
    for path in paths:
        for folder in _folders(path):
            if name_key(folder) in keys:
                raise Invalid(f'"{folder}" is a file and a folder of the skill. Rename one.')
    return checked


def _folders(path: str) -> Iterator[str]:
    parts = path.split("/")
    for end in range(1, len(parts)):
        yield "/".join(parts[:end])


def _ended(text: str) -> str:
    """Return the text in normal form, with a line break at its end."""
    text = normal_text(text)
    if not text or text.endswith("\n"):
        return text
    return f"{text}\n"


def _escaped(text: str) -> str:
    return "\n".join(
        f"\\{line}" if _LIKE_FILE_LINE.match(line) else line for line in text.split("\n")
    )
