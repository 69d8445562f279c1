"""The program of a sandboxed process: gives up memory, time, the network and other processes, then runs the code that
stands on its input. Only the standard library: it is run as a file, apart from hone.

A fence for mistakes and for the curious, not a wall: who needs one puts the whole run into a container.
"""

import ast
import builtins
import contextlib
import ctypes
import importlib
import os
import posix
import resource
import signal
import sys
import traceback

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.", "os.kill",
    "ctypes.dlopen", "ctypes.dlsym", "resource.setrlimit", "resource.prlimit", "os.setxattr",
)  # fmt: skip
CHANGING = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate",
    "os.utime", "shutil.", "sqlite3.connect",
)  # fmt: skip
RELATIVE = ("os.remove", "os.rmdir")  # whose only number is the directory that the path is relative to
# What no hook hears of: (module, functions).
UNHEARD = (
    ("os", ("mkfifo", "mknod", "pidfd_open", "setsid")),
    ("posix", ("mkfifo", "mknod", "pidfd_open", "setsid")),
    ("signal", ("pidfd_send_signal",)),
    ("_signal", ("pidfd_send_signal",)),
    ("_posixsubprocess", ("fork_exec",)),
)
NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def leave(libc: ctypes.CDLL) -> None:
    """Into a world of its own, without a network and without other processes, as far as the kernel lets us: the rest of
    this program is then the first process there, with which all that it started ends."""
    if libc.unshare(NEW_USER | NEW_PROCESSES | NEW_NETWORK) != 0:
        libc.unshare(NEW_USER | NEW_NETWORK)
        return
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status < 0:  # to be told of it as if it were this one
            with contextlib.suppress(OSError):  # SIGKILL is as it is
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)
    libc.prctl(DIE_WITH_PARENT, signal.SIGKILL)


def confine(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    leave(ctypes.CDLL(None))
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    folder = os.path.realpath(os.getcwd())
    for module, names in UNHEARD:
        for name in names:
            setattr(importlib.import_module(module), name, refused(f"{module}.{name}"))
    posix.open = os.open = opening(os.open, folder)
    sys.addaudithook(lambda event, arguments: check(event, arguments, folder))


def refused(name: str):  # type: ignore[no-untyped-def]
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(f"{name} is not allowed here")

    return refuse


def opening(open_file, folder: str):  # type: ignore[no-untyped-def]
    """os.open, which the hook does not tell of which directory a path is relative to."""

    def open_inside(path, flags, mode=0o777, *, dir_fd=None):  # type: ignore[no-untyped-def]
        if dir_fd is not None and flags & WRITING:
            require_inside(path, dir_fd, folder)
        return open_file(path, flags, mode, dir_fd=dir_fd)

    return open_inside


def check(event: str, arguments: tuple, folder: str) -> None:  # type: ignore[type-arg]
    """Raises PermissionError for what the code may not do."""
    if event.startswith(FORBIDDEN) and not (event == "ctypes.dlopen" and arguments[0] is None):
        raise PermissionError(f"{event} is not allowed here")
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if writes or event.startswith(CHANGING):
        descriptors = [a for a in arguments[1:] if isinstance(a, int) and a >= 0] if event in RELATIVE else []
        for path in arguments[: 1 if writes else 2]:
            if isinstance(path, (str, bytes)) and path != ":memory:":
                require_inside(path, descriptors[-1] if descriptors else None, folder)


def require_inside(path, directory: "int | None", folder: str) -> None:  # type: ignore[no-untyped-def]
    text = os.fsdecode(path)
    if directory is not None:
        text = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), text)
    if not inside(text, folder):
        raise PermissionError(f"{os.fsdecode(path)} is outside of the working directory")


def inside(path: str, folder: str) -> bool:
    return path == os.devnull or os.path.realpath(path).startswith(folder + os.sep)


def run(code: str) -> int:
    """Runs it as a script; the value of a last expression is printed, as in a notebook. 1 if it raised."""
    names = {"__name__": "__main__", "__builtins__": builtins}
    try:
        tree = ast.parse(code, "<code>")
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, "<code>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
            if value is not None:
                print(repr(value))
    except SystemExit as leaving:
        return 0 if leaving.code in (None, 0) else 1
    except BaseException as problem:
        behind = problem.__traceback__.tb_next if problem.__traceback__ else None  # without the frame of this file
        traceback.print_exception(type(problem), problem, behind, file=sys.stdout)
        return 1
    return 0


if __name__ == "__main__":
    source = sys.stdin.buffer.read().decode("utf-8", "replace")
    confine(*map(int, sys.argv[1:]))
    status = run(source)
    sys.stdout.flush()
    os._exit(status)
