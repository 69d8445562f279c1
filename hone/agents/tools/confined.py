"""The program of a sandboxed process: gives up memory, time, the network and other processes, then runs the code that
stands on its input. Only the standard library: it is run as a file, apart from hone.

A fence for mistakes and for the curious, not a wall: who needs one puts the whole run into a container.
"""

import ast
import builtins
import ctypes
import os
import resource
import sys
import traceback

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.", "os.kill",
    "ctypes.dlopen", "resource.setrlimit", "os.setxattr",
)  # fmt: skip
CHANGING = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate",
    "shutil.",
)  # fmt: skip
NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000  # CLONE_NEWUSER | CLONE_NEWNET


def confine(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    # Where the kernel does not let us leave its network, the hook below still stands.
    ctypes.CDLL(None).unshare(NEW_USER_AND_NETWORK)
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    folder = os.path.realpath(os.getcwd())
    sys.addaudithook(lambda event, arguments: check(event, arguments, folder))


def check(event: str, arguments: tuple, folder: str) -> None:  # type: ignore[type-arg]
    """Raises PermissionError for what the code may not do."""
    if event.startswith(FORBIDDEN) and not (event == "ctypes.dlopen" and arguments[0] is None):
        raise PermissionError(f"{event} is not allowed here")
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if writes or event.startswith(CHANGING):
        for path in arguments[: 1 if writes else 2]:
            if isinstance(path, (str, bytes)) and not inside(os.fsdecode(path), folder):
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
