"""Tools in JavaScript and TypeScript, which Node runs."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ricordo.errors import Unavailable

_STRIPS_TYPES = (22, 6)  # the first version of Node that runs TypeScript, with a flag
_SYSTEM = (Path("/usr"), Path("/bin"))


# Names that no function of a module can have: keywords, and words reserved in strict mode
# (ECMAScript 2026, 12.7.2 and 13.1.1).
_RESERVED = frozenset(
    """arguments await break case catch class const continue debugger default delete do else enum
    eval export extends false finally for function if implements import in instanceof interface let
    new null package private protected public return static super switch this throw true try typeof
    var void while with yield""".split()
)
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def is_function_name(name: str) -> bool:
    """Return True if a function of a module can have this name."""
    return _NAME.fullmatch(name) is not None and name not in _RESERVED


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A call that Node runs.

    `program` is a Python program that replaces itself by Node. `files` are its files by name.
    `readable` are the folders that it may read.
    """

    program: str
    files: Mapping[str, bytes]
    readable: Sequence[Path]


def javascript_call(source: str, source_type: str, function: str) -> NodeCall:
    """Return the call that runs the function of this source.

    Args:
        source: The source of the tool, a module.
        source_type: "javascript" or "typescript".
        function: The name of the function in the source.

    Raises:
        Unavailable: Node is missing or too old.
    """
    is_typed = source_type == "typescript"
    node, readable = node_command(is_typed=is_typed)
    name = "tool.mts" if is_typed else "tool.mjs"
    command = [*node, "program.mjs", name]
    files = {
        name: f"{source}\nexport {{ {function} as calledFunction }};\n".encode("utf-8", "replace"),
        "program.mjs": Path(__file__).with_name("program.mjs").read_bytes(),
    }
    # The answer's descriptor is not inherited by default, so keep it open for Node.
    program = f"import os\nos.set_inheritable(3, True)\nos.execv({command[0]!r}, {command!r})"
    return NodeCall(program, files, readable)


def node_command(*, is_typed: bool) -> tuple[list[str], Sequence[Path]]:
    """Return Node's command line, and the folders that it must read.

    Raises Unavailable if Node is missing or too old.
    """
    node, version = _node()
    if is_typed and version < _STRIPS_TYPES:
        raise Unavailable(
            f"TypeScript needs Node 22.6 or newer, but this server has {version[0]}.{version[1]}. "
            "The operator can install it; or use JavaScript."
        )
    command = [str(node), "--no-warnings"]
    if is_typed:
        command.append("--experimental-strip-types")
    if any(node.is_relative_to(folder) for folder in _SYSTEM):
        return command, ()
    return command, (node.parent.parent,)


@cache
def _node() -> tuple[Path, tuple[int, int]]:
    path = shutil.which("node")
    version_output = ""
    if path:
        version_output = subprocess.run(  # noqa: S603
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    version = re.match(r"v(\d+)\.(\d+)", version_output)
    if not path or not version:
        raise Unavailable(
            "JavaScript and TypeScript need Node, which is not installed on the server. The "
            "operator can install it, for example with: apt-get install nodejs"
        )
    return Path(path).resolve(), (int(version[1]), int(version[2]))
