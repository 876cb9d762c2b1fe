"""The first program in the sandbox, which turns into the program of a call.

It imports only the standard library. If no helper program, such as bubblewrap, has confined this
process, it forks a child and watches the child. The child gives up its user, its access to files
(Landlock) and the system calls that it does not need (seccomp). Then it waits for the call, sets
the limits, and runs the program.
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
# Options of prctl.
_NO_NEW_PRIVILEGES = 38
_SUBREAPER = 36
_KEEP_CAPABILITIES = 8
_AMBIENT = 47
_SECCOMP = 22
_READ_ANYTHING = 2  # CAP_DAC_READ_SEARCH: Landlock decides which files may be read
_CAPSET = {"x86_64": 126, "aarch64": 91}
# System calls of Landlock; their numbers are the same on every machine.
_RULESET = 444
_ADD_RULE = 445
_RESTRICT = 446
# Rights of Landlock for folders and files: execute, read, and all changes. Later versions added the
# rights to truncate and to call ioctl.
_READ = 0xD
_READ_FILE = 0x5
_WRITE = 0x77BF
_WRITE_FILE = 0x4007
_IOCTL = 1 << 15


def main(options: dict[str, Any]) -> None:
    """If this process is not confined yet, confine it. Then receive a call and run it."""
    if "life" in options:
        _watch_over_a_child(options["life"], options["status"])
        _confine(options)
    else:
        _drop_user(options["user"])
    # Most programs need these modules, so a waiting process has already loaded them.
    import dataclasses  # noqa: F401
    import inspect  # noqa: F401
    import traceback  # noqa: F401
    import typing  # noqa: F401

    control = socket.socket(fileno=options["control"])
    control.sendall(b"+")
    (length,) = struct.unpack(">I", _receive(control, 4))
    call = json.loads(_receive(control, length))
    for path, size in call["files"]:
        if parent := os.path.dirname(path):
            os.makedirs(parent, exist_ok=True)
        with open(path, "wb") as file:
            file.write(_receive(control, size))
    workspace = os.getcwd()
    environment = {
        "HOME": workspace,
        "TMPDIR": workspace,
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
    """Run Python as the main module.

    The traceback of an exception goes to standard error, without the launcher's lines.
    """
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
        code_object = compile(program, PROGRAM, "exec")
        exec(code_object, module.__dict__)  # noqa: S102 - the purpose of the sandbox
    except SystemExit as exit_request:
        if isinstance(exit_request.code, int):
            code = exit_request.code
        elif exit_request.code is not None:
            code = 1
            print(exit_request.code, file=sys.stderr)
    except BaseException as error:
        code = 1
        trace = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(type(error), error, trace)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    # The call ends with its program, even if a thread still runs.
    os._exit(code & 0xFF)


def _become(argv: list[str], environment: dict[str, str]) -> NoReturn:
    # Python ignores these signals, and the program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
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
    """Return this many bytes; the process ends if the server has closed the socket."""
    received = bytearray()
    while len(received) < size:
        part = control.recv(min(size - len(received), 1 << 20))
        if not part:
            os._exit(0)
        received += part
    return bytes(received)


def _limit(limits: dict[str, int]) -> None:
    seconds = limits["cpu_seconds"]
    new_limits = {
        resource.RLIMIT_CORE: (0, 0),
        # The limit is on data and not on address space, since some languages reserve much address
        # space without using it.
        resource.RLIMIT_DATA: (limits["memory"], limits["memory"]),
        resource.RLIMIT_STACK: (8 * 2**20, _STACK),
        resource.RLIMIT_NOFILE: (limits["open_files"], limits["open_files"]),
        resource.RLIMIT_FSIZE: (limits["file"], limits["file"]),
        resource.RLIMIT_NPROC: (limits["processes"], limits["processes"]),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
    }
    if seconds:
        new_limits[resource.RLIMIT_CPU] = (seconds, seconds + 1)
    for kind, (soft, hard) in new_limits.items():
        maximum = resource.getrlimit(kind)[1]
        if maximum != resource.RLIM_INFINITY:
            soft = min(soft, maximum)
            hard = min(hard, maximum)
        resource.setrlimit(kind, (soft, hard))


def _drop_user(user: int) -> None:
    """Become the user with this number, or `nobody` if it is not available. 0 keeps the user."""
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
    """Fork, and return only in the child.

    The parent ends the whole group once the child or the server has ended.
    """
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
        pid, wait_status = os.wait()
        if pid == child:
            os.write(status, b"%d" % os.waitstatus_to_exitcode(wait_status))
            os.kill(0, signal.SIGKILL)


def _confine(options: dict[str, Any]) -> None:
    """Give up the user, then access to files by Landlock, then system calls by seccomp.

    Raises OSError if the kernel refuses.
    """
    if options["user"]:
        _control(_KEEP_CAPABILITIES, 1)
        _drop_user(options["user"])
        # Folders above readable ones may be accessible only to root. So this one capability of root
        # is kept; Landlock limits what it allows.
        header = struct.pack("Ii", 0x20080522, 0)
        bits = 1 << _READ_ANYTHING
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
    """Return the version of Landlock. Raises OSError if there is none."""
    return _call(_RULESET, 0, 0, 1)


def _restrict_files(abi: int, read: list[str], write: list[str]) -> None:
    handled = 0x7FFF | (_IOCTL if abi >= 5 else 0)
    sockets = 3 if abi >= 4 else 0
    scopes = 3 if abi >= 6 else 0
    if abi < 4:
        size = 8
    elif abi < 6:
        size = 16
    else:
        size = 24
    ruleset = _call(_RULESET, struct.pack("3Q", handled, sockets, scopes)[:size], size, 0)
    for paths, of_folder, of_file in ((read, _READ, _READ_FILE), (write, _WRITE, _WRITE_FILE)):
        for path in paths:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            rights = of_folder if os.path.isdir(path) else of_file
            _call(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, descriptor), 0)
            os.close(descriptor)
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
    c_arguments = [
        argument if isinstance(argument, bytes) else ctypes.c_long(argument)
        for argument in arguments
    ]
    status: int = getattr(library, name)(*c_arguments)
    if status < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments[0]}: {os.strerror(error)}")
    return status


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
