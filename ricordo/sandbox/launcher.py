"""The first program in the sandbox, which becomes the program of a call. It runs alone, with nothing but the standard library.

Where no helper has done it, it first gives up its user, its files and the system calls it does not need (Landlock and seccomp), in
a child that it watches over. Then it waits for the call, sets the limits, and runs the program.
"""

import base64
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

ANSWER = 3  # the file descriptor for a program's answer
PROGRAM = "<program>"
_NOBODY = 65534
_STACK = 64 * 2**20  # bytes
_NO_NEW_PRIVILEGES, _SUBREAPER, _KEEP_CAPABILITIES, _AMBIENT, _SECCOMP = 38, 36, 8, 47, 22
_READ_ANYTHING = 2  # CAP_DAC_READ_SEARCH: Landlock decides what is read
_CAPSET = {"x86_64": 126, "aarch64": 91}
_RULESET, _ADD_RULE, _RESTRICT = 444, 445, 446  # of Landlock, on every machine
# Rights of Landlock: execute, write, read; read and all that changes a folder; truncate and ioctl came later.
_READ, _READ_FILE, _WRITE, _WRITE_FILE, _IOCTL = 0xD, 0x5, 0x77BF, 0x4007, 1 << 15


def main(options: dict[str, Any]) -> None:
    """Confine this process where that is still to be done, receive a call, and become it."""
    if "life" in options:
        _watch_over_a_child(options["life"], options["status"])
        _confine(options)
    else:
        _drop_user(options["user"])
    import dataclasses  # noqa: F401 - what most programs need, so that a process that waits has it already
    import inspect  # noqa: F401
    import traceback  # noqa: F401
    import typing  # noqa: F401

    control = socket.socket(fileno=options["control"])
    control.sendall(b"+")
    (length,) = struct.unpack(">I", _receive(control, 4))
    call = json.loads(_receive(control, length))
    for path, size in call["files"]:
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(_receive(control, size))
    here = os.getcwd()
    environment = {
        "HOME": here,
        "TMPDIR": here,
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    if call["has_proxy"]:
        listener = socket.create_server(("127.0.0.1", 0))
        socket.send_fds(control, [b"+"], [listener.fileno()])
        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment |= dict.fromkeys(
            ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy
        )
        environment["NODE_USE_ENV_PROXY"] = "1"
    environment |= call["environment"]
    control.detach()
    if options["answer"] != ANSWER:
        os.dup2(options["answer"], ANSWER)
    os.closerange(ANSWER + 1, 1024)
    _limit(call["limits"])
    if call["argv"]:
        os.set_inheritable(ANSWER, False)
        _become(call["argv"], environment)
    os.environ.clear()
    os.environ.update(environment)
    run_program(call["program"])


def run_program(program: str) -> NoReturn:
    """Run Python as the main module; what it raises goes to standard error, with the program's own lines."""
    import linecache
    import traceback
    import types

    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [PROGRAM]
    sys.path.insert(0, os.getcwd())
    linecache.cache[PROGRAM] = (len(program), None, program.splitlines(keepends=True), PROGRAM)
    code = 0
    try:
        exec(compile(program, PROGRAM, "exec"), module.__dict__)  # noqa: S102 - what the sandbox is for
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if code and not isinstance(left.code, int):
            print(left.code, file=sys.stderr)
    except BaseException as error:
        code = 1
        trace = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(type(error), error, trace)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    # The call ends with its program: no thread that still runs holds it up.
    os._exit(code & 0xFF)


def _become(argv: list[str], environment: dict[str, str]) -> NoReturn:
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # Python ignores them, and what it starts would too
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        print(f"{argv[0]} is not there in the sandbox.", file=sys.stderr)
    except OSError as error:
        print(f"{argv[0]} cannot be run in the sandbox: {error.strerror}.", file=sys.stderr)
    sys.stderr.flush()
    os._exit(127)


def _receive(control: socket.socket, size: int) -> bytes:
    """Return so many bytes; the process ends where the server is gone."""
    received = bytearray()
    while len(received) < size:
        part = control.recv(min(size - len(received), 1 << 20))
        if not part:
            os._exit(0)
        received += part
    return bytes(received)


def _limit(limits: dict[str, int]) -> None:
    seconds = limits["cpu_seconds"]
    wanted = {
        resource.RLIMIT_CORE: (0, 0),
        # Not the address space, of which some languages reserve a lot that they never use.
        resource.RLIMIT_DATA: (limits["memory"], limits["memory"]),
        resource.RLIMIT_STACK: (8 * 2**20, _STACK),
        resource.RLIMIT_NOFILE: (limits["open_files"], limits["open_files"]),
        resource.RLIMIT_FSIZE: (limits["file"], limits["file"]),
        resource.RLIMIT_NPROC: (limits["processes"], limits["processes"]),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
    }
    if seconds:
        wanted[resource.RLIMIT_CPU] = (seconds, seconds + 1)
    for kind, (soft, hard) in wanted.items():
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def _drop_user(user: int) -> None:
    """Become this user, or nobody where the machine does not know so high a number; 0: stay who one is."""
    if not user:
        return
    os.setgroups([])
    try:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError:
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _watch_over_a_child(life: int, status: int) -> None:
    """Return in a child. The parent ends the whole group once the child has ended, or the server has."""
    import threading

    _control(_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        os.close(life)
        os.close(status)
        return

    def end_with_the_server() -> None:
        os.read(life, 1)
        os.kill(0, signal.SIGKILL)

    threading.Thread(target=end_with_the_server, daemon=True).start()
    while True:
        pid, ended = os.wait()
        if pid == child:
            os.write(status, b"%d" % os.waitstatus_to_exitcode(ended))
            os.kill(0, signal.SIGKILL)


def _confine(options: dict[str, Any]) -> None:
    """Give up the user, then files by Landlock, then system calls by seccomp; raises OSError where the kernel refuses."""
    if options["user"]:
        _control(_KEEP_CAPABILITIES, 1)
        _drop_user(options["user"])
        # Folders above what may be read can be root's alone. Of all that root could, this is left, and Landlock is above it.
        header, bits = struct.pack("Ii", 0x20080522, 0), 1 << _READ_ANYTHING
        _call(_CAPSET[os.uname().machine], header, struct.pack("6I", bits, bits, bits, 0, 0, 0))
        _control(_AMBIENT, 2, _READ_ANYTHING)
    _control(_NO_NEW_PRIVILEGES, 1)
    if options["abi"]:
        _restrict_files(options["abi"], options["read"], options["write"])
    if options["filter"]:
        import ctypes

        program = base64.b64decode(options["filter"])
        steps = ctypes.create_string_buffer(program, len(program))
        _control(_SECCOMP, 2, struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(steps)))


def landlock_abi() -> int:
    """The version of Landlock; raises OSError where there is none."""
    return _call(_RULESET, 0, 0, 1)


def _restrict_files(abi: int, read: list[str], write: list[str]) -> None:
    handled = 0x7FFF | (_IOCTL if abi >= 5 else 0)
    sockets, scopes = (3 if abi >= 4 else 0), (3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _call(_RULESET, struct.pack("3Q", handled, sockets, scopes)[:size], size, 0)
    for paths, of_folder, of_file in ((read, _READ, _READ_FILE), (write, _WRITE, _WRITE_FILE)):
        for path in paths:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            rights = of_folder if os.path.isdir(path) else of_file
            _call(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, opened), 0)
            os.close(opened)
    _call(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _control(*arguments: Any) -> None:
    """Call prctl."""
    _check("prctl", *arguments, *[0] * (5 - len(arguments)))


def _call(*arguments: Any) -> int:
    return _check("syscall", *arguments)


def _check(name: str, *arguments: Any) -> int:
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    passed = [
        argument if isinstance(argument, bytes) else ctypes.c_long(argument)
        for argument in arguments
    ]
    result: int = getattr(library, name)(*passed)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments[0]}: {os.strerror(error)}")
    return result


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
