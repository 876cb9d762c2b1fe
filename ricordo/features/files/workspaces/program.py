"""Sandbox program that runs a command on the files of a workspace.

It writes the files into a folder, runs the command there, and answers with the changes. Standard
input and the answer on descriptor 3 have the form of `exchange.py`. This module imports nothing of
the server.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ANSWER = 3


def main() -> None:
    """Run the command, and answer with its exit code and its changes.

    The changes are the files that it wrote and the paths that it deleted.
    """
    source = sys.stdin.buffer
    command = json.loads(source.readline())["command"]
    home = Path("home").absolute()
    home.mkdir()
    before: dict[str, str] = {}
    while line := source.readline():
        entry = json.loads(line)
        content = source.read(entry["size"])
        path = home / entry["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        before[entry["path"]] = hashlib.sha256(content).hexdigest()
    environment = {**os.environ, "HOME": str(home), "PWD": str(home)}
    argv = ["sh", "-c", command]
    process = subprocess.run(  # noqa: S603 - running the caller's command is this program's purpose
        argv, cwd=home, env=environment, stdin=subprocess.DEVNULL, check=False
    )
    changed = []
    left_out = []
    remaining = set()
    for path in sorted(home.rglob("*")):  # rglob follows no links
        short = path.relative_to(home).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            left_out.append(short)
        elif path.is_file():
            remaining.add(short)
            content = path.read_bytes()
            if before.get(short) != hashlib.sha256(content).hexdigest():
                changed.append((short, content))
    deleted = [path for path in before if path not in remaining]
    with os.fdopen(ANSWER, "wb") as answer:
        header = {"exit_code": process.returncode, "deleted": deleted, "left_out": left_out}
        answer.write(json.dumps(header).encode() + b"\n")
        for short, content in changed:
            entry = json.dumps({"path": short, "size": len(content)}).encode()
            answer.write(entry + b"\n" + content)


if __name__ == "__main__":
    main()
