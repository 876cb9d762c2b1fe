"""Runs in the sandbox: code of an agent, with the agent's tools as functions where it has them.

The first line of standard input: {code, tools: {name: [parameters]}}. A call of a tool is a line {tool, arguments} on descriptor 3,
its result the next line of standard input: {status, value}. The last line on descriptor 3: {"done": true, "error": "…" or null}.
"""

import ast
import json
import linecache
import os
import sys
import traceback
import types
from typing import Any

ANSWER = 3
_FILE = "<code>"
_LONGEST_TRACE = 6_000  # characters


class ToolError(Exception):
    """A tool failed; its words say why."""


def main() -> None:
    """Run the code, and say how it ended."""
    request = json.loads(sys.stdin.readline())
    code = request["code"]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__["ToolError"] = ToolError
    for name, parameters in request["tools"].items():
        module.__dict__[name] = _function(name, parameters)
    linecache.cache[_FILE] = (len(code), None, code.splitlines(keepends=True), _FILE)
    error = None
    try:
        _run(code, module)
    except SystemExit as left:
        error = None if left.code in (None, 0) else f"The code left with exit({left.code!r})."
    except BaseException as failure:
        trace = failure.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != _FILE:
            trace = trace.tb_next
        error = "".join(traceback.format_exception(type(failure), failure, trace, limit=-20))[
            -_LONGEST_TRACE:
        ].rstrip()
    sys.stdout.flush()
    sys.stderr.flush()
    _say({"done": True, "error": error})


def _run(code: str, module: types.ModuleType) -> None:
    """Run the code; the value of an expression at its end is printed, as a prompt does."""
    tree = ast.parse(code, _FILE)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, _FILE, "exec"), module.__dict__)  # noqa: S102 - what the sandbox is for
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), _FILE, "eval"), module.__dict__)  # noqa: S307
        if value is not None:
            sys.stdout.write(f"{value if isinstance(value, str) else repr(value)}\n")


def _function(name: str, parameters: list[str]) -> Any:
    def call(*values: Any, **named: Any) -> Any:
        arguments = {**dict(zip(parameters, values, strict=False)), **named}
        _say({"tool": name, "arguments": arguments})
        line = sys.stdin.readline()
        if not line:
            raise ToolError("The server ended the call.")
        result = json.loads(line)
        if result["status"] != "success":
            raise ToolError(result["value"])
        return result["value"]

    call.__name__ = name
    return call


def _say(line: Any) -> None:
    data = json.dumps(line, default=str).encode() + b"\n"
    while data:
        data = data[os.write(ANSWER, data) :]


if __name__ == "__main__":
    main()
