"""Run an agent's code in the sandbox, with the agent's tools as functions.

The first line of standard input is {code, tools: {name: [parameters]}}. A call of a tool is a line
{tool, arguments} on descriptor 3; its result is the next line of standard input: {status, value}.
The last line on descriptor 3 is {"done": true, "error": "…" or null}.
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
    """The error of a tool that failed; the message is its reason."""


def main() -> None:
    """Run the code, and report its end."""
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
    except SystemExit as exit_request:
        if exit_request.code not in (None, 0):
            error = f"The code called exit({exit_request.code!r})."
    except BaseException as failure:
        trace = failure.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != _FILE:
            trace = trace.tb_next
        lines = traceback.format_exception(type(failure), failure, trace, limit=-20)
        error = "".join(lines)[-_LONGEST_TRACE:].rstrip()
    sys.stdout.flush()
    sys.stderr.flush()
    _send_line({"done": True, "error": error})


def _run(code: str, module: types.ModuleType) -> None:
    """Run the code, and print the value of an expression at its end."""
    tree = ast.parse(code, _FILE)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, _FILE, "exec"), module.__dict__)  # noqa: S102 - the purpose of the sandbox
    if isinstance(last, ast.Expr):
        last_code = compile(ast.Expression(last.value), _FILE, "eval")
        printed = eval(last_code, module.__dict__)  # noqa: S307 - as above
        if printed is not None:
            sys.stdout.write(f"{printed if isinstance(printed, str) else repr(printed)}\n")


def _function(name: str, parameters: list[str]) -> Any:
    def call(*positional: Any, **keywords: Any) -> Any:
        arguments = {**dict(zip(parameters, positional, strict=False)), **keywords}
        _send_line({"tool": name, "arguments": arguments})
        line = sys.stdin.readline()
        if not line:
            raise ToolError("The server ended the call.")
        reply = json.loads(line)
        if reply["status"] != "success":
            raise ToolError(reply["value"])
        return reply["value"]

    call.__name__ = name
    return call


def _send_line(message: Any) -> None:
    rest = json.dumps(message, default=str).encode() + b"\n"
    while rest:
        rest = rest[os.write(ANSWER, rest) :]


if __name__ == "__main__":
    main()
