"""Reward functions for tests: a process of its own finds them here by name."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

RESULTS = {
    "int": 1,
    "float": 0.5,
    "bool": True,
    "float32": np.float32(0.5),
    "int64": np.int64(2),
    "numpy bool": np.bool_(False),
    "dict": {"score": 0.5, "acc": True, "length": np.int64(3), "right": np.bool_(True), "pred": "x", "why": None},
    "None": None,
    "None in a dict": {"score": None, "kind": "skipped"},
    "text": "1.0",
    "dict without score": {"reward": 1.0},
    "list": [1.0],
    "nan": float("nan"),
    "inf": float("inf"),
    "past fp32": -1e39,
    "past fp64": 10**400,
    "text in a dict": {"score": "high"},
}
calls = 0


def by_name(data_source, solution_str, ground_truth, extra_info):
    return RESULTS[solution_str]


def number(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str)


def nothing(data_source, solution_str, ground_truth, extra_info):
    return None


def raising(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "fine":
        return 1.0
    raise KeyError(solution_str)


def refused(data_source, solution_str, ground_truth, extra_info):
    raise TimeoutError("server")


def other_order(solution_str, ground_truth, data_source, extra_info):
    return {"score": 1.0, "seen": repr((data_source, solution_str, ground_truth, extra_info))}


def counting(data_source, solution_str, ground_truth, extra_info):
    """How many calls its process has had; every `ms` in the text is a millisecond of work."""
    global calls
    calls += 1
    time.sleep(float(solution_str or 0) / 1000)
    return {"score": calls, "process": os.getpid()}


def by_alarm(data_source, solution_str, ground_truth, extra_info):
    """Stops itself as math-verify does, which works in a main thread alone."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(30)
    signal.alarm(0)
    return 1.0


def by_math_verify(data_source, solution_str, ground_truth, extra_info):
    from math_verify import parse, verify

    return float(verify(parse(ground_truth), parse(solution_str)))


def stuck(data_source, solution_str, ground_truth, extra_info):
    """Stuck in the way that the text names: asleep, or where no other thread of its process can run."""
    if solution_str == "asleep":
        time.sleep(600)
    if solution_str == "in C":
        re.match(r"(a+)+$", "a" * 60 + "b")
    if solution_str == "in a program":
        subprocess.run(["sleep", "613"], check=False)
    if solution_str == "gone":
        os._exit(7)
    return 1.0


def writing_its_process(data_source, solution_str, ground_truth, extra_info):
    """Writes its process's number to a file and never comes back."""
    Path(ground_truth).write_text(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 60 + "b")


def quick_or_deadly(data_source, solution_str, ground_truth, extra_info):
    """Ends its process at once, or never comes back and lets no other thread run, as a regular expression may."""
    if solution_str == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "hold the lock":
        re.match(r"(a+)+$", "a" * 40 + "b")
    return float(solution_str)
