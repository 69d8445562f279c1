"""Where reward functions run: in processes that import them once, and that end with the run."""

import functools
import gc
import os
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest

from hone.errors import UserError
from hone.rewards import Reward, RewardManager
from hone.rewards.address import Address
from hone.rewards.place import Place
from hone.rewards.process import ScoringProcess
from hone.rewards.worker import serve
from hone.user_code import load_function
from tests.rewards import functions

ROOT = Path(__file__).parents[2]
OWN = """
from dataclasses import dataclass
from functools import partial, wraps
from hone.rewards.gsm8k import compute_score as imported

def compute_score(data_source, solution_str, ground_truth, extra_info, factor=1):
    return Answer(solution_str).length * factor

@dataclass
class Answer:
    text: str
    @property
    def length(self):
        return len(self.text)

class Scorer:
    def __call__(self, data_source, solution_str, ground_truth, extra_info):
        return 9.0

def doubled(function):
    def call(**answer):
        return 2 * function(**answer)
    return call

twice = doubled(compute_score)
thrice = partial(compute_score, factor=3)
scorer = Scorer()
"""


def rewards(manager, *texts):
    """Of calls that are all handed in before the first is back."""
    pending = [manager.submit("source", text, "truth") for text in texts]
    return [future.result() for future in pending]


def ended(process):
    """Whether the process is no more, or has a few seconds later gone."""
    for _ in range(100):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def test_calls_run_one_after_the_other_in_one_process_that_keeps_its_state():
    found = rewards(RewardManager(functions.counting), "20", "0", "0", "0")
    assert [reward.score for reward in found] == [1.0, 2.0, 3.0, 4.0]
    (process,) = {reward.extras["process"] for reward in found}
    assert process != os.getpid() and functions.calls == 0


def test_several_processes_work_at_once():
    manager = RewardManager(functions.counting, processes=3)
    found = rewards(manager, *["200"] * 9)
    assert len({reward.extras["process"] for reward in found}) == 3
    assert max(reward.score for reward in found) < 9


@pytest.mark.parametrize("function", [functions.by_alarm, functions.by_math_verify])
def test_a_function_may_stop_itself_by_an_alarm(function):
    assert RewardManager(function).score_one("source", "$0.5$", r"$\frac{1}{2}$") == Reward(1.0)


@pytest.mark.parametrize(
    ("name", "score"), [("compute_score", 4.0), ("twice", 8.0), ("thrice", 12.0), ("scorer", 9.0), ("imported", 0.0)]
)
def test_whatever_a_users_file_calls_by_the_name_is_found(tmp_path, name, score):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    assert RewardManager(load_function(path, name)).score_one("source", "text", "4") == Reward(score)


def test_a_function_without_a_name_is_refused_with_what_to_do():
    for function in (lambda **_: 1.0, functools.partial(functions.counting)):
        with pytest.raises(UserError, match="top level of a file"):
            RewardManager(function)


def test_a_file_that_only_loads_once_is_one_message(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def compute_score(**_):\n    return 1.0\n")
    function = load_function(path)
    path.write_text("import no_such_module\n")
    manager = RewardManager(function)
    for _ in range(2):
        with pytest.raises(UserError, match=r"mine\.py fails when it is loaded.*no_such_module"):
            manager.score_one("source", "text", "4")


def test_answers_in_flight_are_scored_though_nobody_holds_the_manager():
    pending = [RewardManager(functions.number).submit("source", str(i), "truth") for i in range(3)]
    gc.collect()
    assert [future.result(timeout=30).score for future in pending] == [0.0, 1.0, 2.0]


def test_the_processes_end_with_their_manager():
    manager = RewardManager(functions.counting, processes=2)
    found = rewards(manager, *["100"] * 4)
    del manager
    gc.collect()
    assert all(ended(int(reward.extras["process"])) for reward in found)


SCRIPT = """
import sys, time
from pathlib import Path
from hone.rewards import RewardManager
from tests.rewards import functions

manager = RewardManager(functions.writing_its_process, timeout_s=float(sys.argv[2]))
pending = [manager.submit("source", "text", sys.argv[1]) for _ in range(5)]
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("leaving", flush=True)
time.sleep(float(sys.argv[3]))
"""


def script(path, timeout_s, rest):
    command = [sys.executable, "-c", SCRIPT, str(path), str(timeout_s), str(rest)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_run_ends_at_once_though_a_call_is_stuck_and_others_wait(tmp_path):
    run = script(tmp_path / "process", 600, rest=0)
    assert run.stdout.readline() == "leaving\n"
    start = time.monotonic()
    assert run.wait(timeout=30) == 0
    assert time.monotonic() - start < 5
    assert ended((tmp_path / "process").read_text())


def test_a_stuck_call_ends_itself_when_the_run_was_killed(tmp_path):
    run = script(tmp_path / "process", 1, rest=600)
    run.stdout.readline()
    run.kill()
    run.wait()
    assert ended((tmp_path / "process").read_text())


@pytest.mark.parametrize("last", ["die", "hold the lock"])
def test_the_answer_that_ends_a_process_is_blamed_and_no_other_though_replies_were_on_their_way(last):
    manager = RewardManager(functions.quick_or_deadly, timeout_s=1)
    texts = [*map(str, range(20)), last, *map(str, range(20, 40))]
    found = rewards(manager, *texts)
    assert [r.score for r in found] == [*map(float, range(20)), 0.0, *map(float, range(20, 40))]
    assert [r.error is not None for r in found] == [text == last for text in texts]


def test_a_process_that_ends_with_the_run_reports_no_failure():
    process = ScoringProcess(Address.of(functions.stuck), timeout_s=60)
    answer = {"data_source": "x", "solution_str": "asleep", "ground_truth": "", "extra_info": None}
    threading.Timer(1, process.end).start()
    with pytest.raises((EOFError, OSError)):
        next(process([answer]))


def test_a_worker_whose_run_is_gone_ends_without_a_word():
    ours, theirs = Pipe()
    ours.close()
    with Place.file() as place:
        serve(os.dup(theirs.fileno()), place.fileno())
