"""Programs that try to escape from the sandbox or to harm the machine.

A program that succeeds prints ESCAPED. `python -m tests.sandbox.escapes BACKEND FOLDER` runs them
all as this user, and prints as JSON how each ended. With the further argument `neighbours` it runs
two calls in parallel instead.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

SECRET = "the-secret-of-the-server"
_LIBC = "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True)\n"


def reads(path: str) -> str:
    return f"print('ESCAPED', open({path!r}).read(1 << 20)[:50])"


def calls(number: int, *arguments: str, beyond: str = "-1") -> str:
    """A system call that must fail."""
    return (
        f"{_LIBC}print('ESCAPED' if libc.syscall({number}, {', '.join(arguments) or '0'}) > "
        f"{beyond} else os.strerror(ctypes.get_errno()))"
    )


def connects(host: str, port: str, family: str = "AF_INET") -> str:
    return (
        f"import socket; socket.create_connection(({host!r}, {port}), 2) if {family!r} == "
        "'AF_INET' else None; print('ESCAPED')"
    )


# Programs by the name of their attempt. {data}, {port}, {pid} and {other} are the server's folder,
# a loopback port, a process and another workspace.
ESCAPES: dict[str, str] = {
    "read /etc/shadow": reads("/etc/shadow"),
    "read /etc/passwd of the machine": "s = open('/etc/passwd').read(); print('ESCAPED' if 'root' in s else s)",
    "read the database": reads("{data}/ricordo.db"),
    "read the key file": reads("{data}/secret.key"),
    "write into the data folder": "open('{data}/evil', 'w').write('x'); print('ESCAPED')",
    "truncate the database": "import os; os.truncate('{data}/ricordo.db', 0); print('ESCAPED')",
    "read another workspace": reads("{other}/secret.txt"),
    "list the temporary folder of the machine": (
        "import os; print('ESCAPED' if 'marker-of-the-machine' in os.listdir('/tmp') else 'not "
        "there')"
    ),
    "read the environment": f"import os; print('ESCAPED' if {SECRET!r} in str(os.environ) else 'not there')",
    "read the server's environment": f"print('ESCAPED' if {SECRET!r} in open('/proc/{{pid}}/environ').read() else 'other')",
    "read the parent's environment": (
        f"import os; print('ESCAPED' if {SECRET!r} in "
        f"open(f'/proc/{{{{os.getppid()}}}}/environ').read() else 'other')"
    ),
    "read the root through /proc": (
        f"print('ESCAPED' if {SECRET!r} in open('/proc/1/root{{data}}/secret.key').read() else "
        "'other')"
    ),
    "read through the parent's folder": (
        "import os; print('ESCAPED', os.listdir(f'/proc/{{os.getppid()}}/cwd/../..') and "
        "open(f'/proc/{{os.getppid()}}/root{data}/secret.key').read())"
    ),
    "write a kernel setting": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh'); print('ESCAPED')",
    "trigger the kernel": "open('/proc/sysrq-trigger', 'w').write('h'); print('ESCAPED')",
    "read the kernel's memory": "open('/proc/kcore', 'rb').read(1); print('ESCAPED')",
    "write to /sys": "open('/sys/power/state', 'w').write('mem'); print('ESCAPED')",
    "write to a disk": (
        "import glob; [open(p, 'r+b') for p in glob.glob('/dev/[svn][dv]*') or ['/dev/sda']]; "
        "print('ESCAPED')"
    ),
    "write a program of the system": "open('/usr/bin/env', 'a').write('x'); print('ESCAPED')",
    "leave a program in /etc": "open('/etc/profile.d/evil.sh', 'w').write('x'); print('ESCAPED')",
    "connect to the server": connects("127.0.0.1", "{port}"),
    "connect to the metadata address": connects("169.254.169.254", "80"),
    "connect to the world": connects("1.1.1.1", "53"),
    "send a datagram": (
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', "
        "('127.0.0.1', {port})) and print('ESCAPED' if "
        "open('/proc/net/route').read().count('\\n') > 1 else 'no route')"
    ),
    "resolve a name": "import socket; socket.getaddrinfo('localhost.localdomain.example', 80); print('ESCAPED')",
    "open a raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('ESCAPED')",
    "open a packet socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('ESCAPED')",
    "open a netlink socket": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); print('ESCAPED')",
    "open a vsock": "import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); print('ESCAPED')",
    "talk to an abstract socket": (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0ricordo-escape-{port}'); "
        "print('ESCAPED')"
    ),
    "follow a symlink out": "import os; os.symlink('{data}/secret.key', 'link'); print('ESCAPED', open('link').read())",
    "hard-link a file": "import os; os.link('{data}/secret.key', 'hard'); print('ESCAPED', open('hard').read())",
    "climb out of the workspace": reads("../../../../../../..{data}/secret.key"),
    "kill the server": (
        "import os, signal; os.kill({pid}, signal.SIGTERM); print('ESCAPED' if '{shared}' else "
        "'its own')"
    ),
    "kill everything": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "trace a process": _LIBC
    + "print('ESCAPED' if libc.ptrace(16, {pid}, 0, 0) == 0 else 'refused')",
    "read a process's memory": "open('/proc/{pid}/mem', 'rb').read(1); print('ESCAPED')",
    "make a user namespace": _LIBC
    + "print('ESCAPED' if libc.unshare(0x10000000) == 0 else 'refused')",
    "make a mount namespace": _LIBC
    + "print('ESCAPED' if libc.unshare(0x20000) == 0 else 'refused')",
    "clone into a namespace": calls(56, "0x10000000 | 17", "0", "0", "0", "0"),
    "clone3 into a namespace": calls(435, "0", "88"),
    "enter a namespace": "import os; fd = os.open('/proc/self/ns/net', 0); "
    + _LIBC.strip()
    + "; print('ESCAPED' if libc.setns(fd, 0) == 0 else 'refused')",
    "mount": _LIBC
    + "print('ESCAPED' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, b'') == 0 else 'refused')",
    "unmount": _LIBC + "print('ESCAPED' if libc.umount2(b'/usr', 2) == 0 else 'refused')",
    "change the root": "import os; os.chroot('/'); print('ESCAPED')",
    "become root": "import os; os.setuid(0); print('ESCAPED')"
    if os.geteuid()
    else "import os; os.setresuid(0, 0, 0); print('ESCAPED')",
    "use a set-uid program": (
        "import subprocess; r = subprocess.run(['su', '-c', 'id'], capture_output=True, "
        "text=True); print('ESCAPED' if 'uid=0' in r.stdout else r.stderr)"
    ),
    "set up io_uring": calls(425, "4", "0"),
    "add a key": calls(248, "b'user'", "b'a'", "b'b'", "1", "-3"),
    "load a filter program": calls(321, "0", "0", "0"),
    "watch the machine": calls(298, "0", "0", "-1", "-1", "0"),
    "handle page faults": calls(323, "0"),
    "load a module": calls(313, "0", "0", "0"),
    "restart the machine": calls(169, "0xfee1dead", "672274793", "0", "0"),
    "set the clock": calls(227, "0", "0", beyond="-1"),
    "change the host's name": _LIBC
    + "print('ESCAPED' if libc.sethostname(b'evil', 4) == 0 else 'refused')",
    "call in the old way": calls(0x40000000 + 39),
    "type into a terminal": "import fcntl; fcntl.ioctl(0, 0x5412, b'x'); print('ESCAPED')",
    "make a device": (
        "import os; os.mknod('disk', 0o60666, os.makedev(8, 0)); print('ESCAPED', os.open('disk', "
        "0))"
    ),
    "use inherited descriptors": (
        "import os\nfor fd in range(4, 256):\n    try:\n        os.fstat(fd); print('ESCAPED', "
        "fd)\n    except OSError: pass"
    ),
    "raise its limits": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100000, 100000)); "
        "print('ESCAPED')"
    ),
    "raise its priority": "import os; os.nice(-10); print('ESCAPED')",
    "ask for privileges": _LIBC + "print('ESCAPED' if libc.prctl(39, 0, 0, 0, 0) == 0 else 'kept')",
    # Programs that harm without escaping.
    "bomb of forks": (
        "import os, time\nmade = 0\nwhile made < 5000:\n    try:\n        if os.fork() == 0:\n    "
        "        time.sleep(60); os._exit(0)\n        made += 1\n    except OSError: "
        "break\nprint('ESCAPED' if made > 200 else made)"
    ),
    "bomb of memory": "x = []\nfor _ in range(64): x.append(bytearray(64 << 20))\nprint('ESCAPED')",
    "fill the disk": "f = open('big', 'wb')\nfor _ in range(600): f.write(b'x' * (1 << 20))\nprint('ESCAPED')",
    "fill the disk with many files": (
        "import os\nfor i in range(40):\n    with open(f'f{{i}}', 'wb') as f: f.write(b'x' * (20 "
        "<< 20))\nimport time; time.sleep(1)\nprint('ESCAPED')"
    ),
    "write without end": "while True: print('x' * 100000)",
    "loop without end": "while True: pass",
    "sleep without end": "import time; time.sleep(1000)",
    "leave an orphan": (
        "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n      "
        "  [os.close(n) for n in (0, 1, 2)]\n        time.sleep(991); os._exit(0)\n    "
        "os._exit(0)\nprint('left')"
    ),
    "ignore signals": (
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n "
        "   except (OSError, ValueError): pass\ntime.sleep(992)"
    ),
}
# These run in a separate sandbox: they look at the processes around them, end them, or harm them.
ALONE = (
    *(
        "read the parent's environment",
        "read through the parent's folder",
        "use inherited descriptors",
    ),
    *(
        "kill everything",
        "bomb of forks",
        "bomb of memory",
        "fill the disk",
        "fill the disk with many files",
    ),
    *(
        "write without end",
        "loop without end",
        "sleep without end",
        "leave an orphan",
        "ignore signals",
    ),
)
# Programs that only the time limit stops.
SLEEPERS = {"sleep without end", "ignore signals"}
# The others are forks of one program, since starting Python takes longer than the attempt.
TOGETHER = """
import json, os, sys
for name, program in json.load(sys.stdin).items():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)
        try:
            exec(program, {"__name__": "__main__"})
        except BaseException as error:
            print(repr(error))
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answers:
        words = answers.read(300).decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([name, words, code]))
"""


async def run_together(sandbox: Any, programs: dict[str, str], limits: Any) -> dict[str, Any]:
    """Try each program in a fork of one sandboxed process; return how each ended."""
    result = await sandbox.run_python(TOGETHER, json.dumps(programs).encode(), limits=limits)
    lines = [json.loads(line) for line in result.stdout.decode().splitlines()]
    assert len(lines) == len(programs), (result.reason, result.stderr[-2000:])
    return {
        name: {
            "out": words,
            "err": "",
            "code": code,
            "stopped_by": "",
            "reason": f"ended with {code}" if code else "",
        }
        for name, words, code in lines
    }


async def run_all(backend: str, folder: Path, names: list[str]) -> dict[str, Any]:
    from ricordo.sandbox.options import SandboxSettings
    from ricordo.sandbox.service import Sandbox, SandboxCall, SandboxLimits
    from ricordo.settings import Settings

    data = folder / "data"
    data.mkdir(mode=0o700)
    for name in ("ricordo.db", "secret.key"):
        (data / name).write_text(SECRET)
    sandbox = Sandbox(Settings(data_dir=data), SandboxSettings(sandbox=backend))  # type: ignore[arg-type]
    shown = folder / "shown"
    shown.mkdir()
    victim = subprocess.Popen(["sleep", "900"], env={**os.environ, "VICTIM": SECRET})
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0ricordo-escape-{port}")
    abstract.listen()
    limits = SandboxLimits(
        memory_mb=256, cpu_seconds=1, seconds=4, processes=32, file_mb=50, output_kb=64
    )
    ended: dict[str, Any] = {}
    try:
        async with sandbox.open(
            SandboxCall(("sleep", "800"), files={"secret.txt": SECRET.encode()})
        ) as other:
            there = other.workspace or Path(f"/proc/{other.process.pid}/root/sandbox")
            values = {
                "data": data,
                "port": port,
                "pid": victim.pid,
                "other": there,
                "shared": other.workspace or "",
            }

            programs = {
                name: ESCAPES[name].format(**values) if "{" in ESCAPES[name] else ESCAPES[name]
                for name in names
            }

            async def attempt(name: str) -> None:
                within = replace(limits, seconds=1.5) if name in SLEEPERS else limits
                result = await sandbox.run_python(
                    programs[name], b"", limits=within, readable=(shown,)
                )
                ended[name] = {
                    "out": result.stdout.decode("utf-8", "replace")[:300],
                    "err": result.stderr.decode("utf-8", "replace")[-300:],
                    "code": result.exit_code,
                    "stopped_by": result.stopped_by,
                    "reason": result.reason,
                }

            places = asyncio.Semaphore(4)

            async def in_turn(name: str) -> None:
                async with places:
                    await attempt(name)

            alone = set(names) & {*ALONE}
            together = {name: program for name, program in programs.items() if name not in ALONE}
            many = replace(limits, seconds=60, cpu_seconds=30)
            (answers, *_) = await asyncio.gather(
                run_together(sandbox, together, many),
                *map(attempt, alone & SLEEPERS),
                *map(in_turn, alone - SLEEPERS),
            )
            ended |= answers
        ended["the victim"] = victim.poll() is None
        ended["the files"] = [(data / name).read_text() for name in ("ricordo.db", "secret.key")]
        ended["the folder"] = sorted(os.listdir(data))
        ended["connections"] = _is_untouched(listener) and _is_untouched(abstract)
    finally:
        await sandbox.close()
        victim.send_signal(signal.SIGKILL)
    # Processes that were started there name this folder in their command line, and so do their
    # forks.
    running = subprocess.run(
        ["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True
    ).stdout
    ended["left"] = [line for line in running.splitlines() if str(shown) in line]
    return ended


# Forks as many processes as one call may have, and waits. Only then the other call forks.
BUSY = """
import os, time
for _ in range({count}):
    if os.fork() == 0:
        time.sleep(60); os._exit(0)
print("ready", flush=True)
while not os.path.exists({end!r}):
    time.sleep(0.02)
"""
PATIENT = """
import os, time
print("ready", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.02)
for _ in range({count}):
    if os.fork() == 0:
        time.sleep(60); os._exit(0)
print("forked", flush=True)
"""


async def run_neighbours(backend: str, folder: Path) -> dict[str, Any]:
    """Run a call that forks after its neighbour has as many processes as a call may have."""
    from ricordo.sandbox.options import SandboxSettings
    from ricordo.sandbox.service import Sandbox, SandboxLimits, SandboxResult
    from ricordo.settings import Settings

    data, shown = folder / "data", folder / "shown"
    for path in (data, shown):
        path.mkdir(mode=0o755)
    sandbox = Sandbox(Settings(data_dir=data), SandboxSettings(sandbox=backend))  # type: ignore[arg-type]
    go, end = shown / "go", shown / "end"

    async def begin(program: str) -> asyncio.Task[SandboxResult]:
        """Start a program, and return its call once it says that it is ready."""
        ready = asyncio.Event()
        call = sandbox.run_python(
            program,
            b"",
            limits=SandboxLimits(processes=32),
            readable=(shown,),
            on_output=lambda *_: ready.set(),
        )
        task = asyncio.create_task(call)
        await asyncio.wait_for(ready.wait(), 60)
        return task

    try:
        patient = await begin(PATIENT.format(go=str(go), count=20))
        busy = await begin(BUSY.format(end=str(end), count=30))
        go.touch()
        results = {"patient": await patient}
        end.touch()
        results["busy"] = await busy
    finally:
        await sandbox.close()
    return {
        name: {
            "out": result.stdout.decode(),
            "err": result.stderr.decode(),
            "reason": result.reason,
        }
        for name, result in results.items()
    }


def _is_untouched(listener: socket.socket) -> bool:
    listener.settimeout(0.05)
    try:
        listener.accept()
    except TimeoutError:
        return True
    return False


if __name__ == "__main__":
    _backend, _folder, *_what = sys.argv[1:]
    _run = run_neighbours if _what else partial(run_all, names=list(ESCAPES))
    print(json.dumps(asyncio.run(_run(_backend, Path(_folder)))))
