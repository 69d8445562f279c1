"""The front door: quick, helpful, and without tracebacks for mistakes of the user's."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from hone.cli import interrupts
from hone.cli.main import main
from hone.disk import naming
from hone.errors import UserError


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    return int(caught.value.code or 0)


def install(monkeypatch: pytest.MonkeyPatch, name: str, function: object) -> None:
    module = types.ModuleType(f"hone.cli.{name}")
    module.run = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"hone.cli.{name}", module)


@pytest.mark.parametrize(
    ("command", "module"),
    [("ppo", "ppo"), ("sft", "sft"), ("generate", "generate"), ("eval", "evaluate"), ("data", "data"),
     ("model", "model"), ("demo", "demo"), ("plan", "plan")],
)  # fmt: skip
def test_arguments_reach_the_command_in_their_order(command: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    install(monkeypatch, module, seen.extend)
    argv = ["a.b=1", "-cp", "x", "--config-name=y", "~c", "+d=[1,2]", "--flag", "e"]
    assert run(command, *argv) == 0
    assert seen == argv


@pytest.mark.parametrize("command", ["ppo", "sft", "generate", "eval"])
def test_help_of_a_run_shows_grammar_presets_and_two_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    text = capsys.readouterr().out
    assert "a.b=1" in text and "--config-name NAME" in text and "Preset" in text
    assert text.count(f"hone {command} ") >= 3  # the usage line and two examples


@pytest.mark.parametrize("command", ["data", "config", "plan"])
def test_help_of_a_command_with_subcommands_is_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert f"hone {command}" in capsys.readouterr().out


def test_a_mistake_of_the_users_is_one_message_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: list[str]) -> None:
        raise UserError("the file has no rows")

    install(monkeypatch, "sft", fail)
    assert run("sft") == 2
    assert capsys.readouterr().err == "hone: the file has no rows\n"


def test_a_full_disk_is_one_message_with_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(argv: list[str]) -> None:
        with naming(Path("run/metrics.jsonl")), open("/dev/full", "w") as file:
            file.write("x")

    install(monkeypatch, "sft", fill)
    assert run("sft") == 2
    message = "hone: run/metrics.jsonl: No space left on device; make room there, or name another place\n"
    assert capsys.readouterr().err == message


def test_code_of_the_users_that_exits_does_not_end_a_run_as_if_it_had_gone_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(argv: list[str]) -> None:
        sys.exit(0)

    install(monkeypatch, "sft", leave)
    assert run("sft") == 2
    said = capsys.readouterr().err
    assert said.startswith("hone: something in the run called exit: SystemExit: 0") and "test_main.py" in said


def test_an_interrupt_is_one_line_and_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(argv: list[str]) -> None:
        raise KeyboardInterrupt

    install(monkeypatch, "sft", interrupt)
    assert run("sft") == 130
    assert capsys.readouterr().err == "hone: interrupted\n"


def test_a_mistyped_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generte", "a=1") == 2
    assert "did you mean generate?" in capsys.readouterr().err


IMPORTS_NOTHING_HEAVY = """
import sys
sys.argv = ["hone", *sys.argv[1:]]
from hone.cli.main import main
try:
    main()
except SystemExit as end:
    code = end.code or 0
heavy = {"torch", "transformers", "pandas", "pyarrow", "ray"} & set(sys.modules)
print("HEAVY", sorted(heavy), "CODE", code, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--help"], 0),
        (["config", "show", "ppo"], 0),
        (["config", "explain", "sft"], 0),
    ],
)
def test_help_and_configurations_need_no_heavy_package(argv: list[str], code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_NOTHING_HEAVY, *argv], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"HEAVY [] CODE {code}" in done.stderr
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import os, signal, sys, time, types
module = types.ModuleType("hone.cli.sft")
def run(argv):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    finally:
        os.kill(os.getpid(), signal.SIGINT)  # in the clean-up
        print("cleaned up", flush=True)
module.run = run
sys.modules["hone.cli.sft"] = module
from hone.cli.main import main
main(["sft"])
"""


def test_two_interrupts_at_once_are_one() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "hone: interrupted\n")


def test_a_later_interrupt_ends_a_clean_up_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "ONE_PRESS_S", 0.01)
    with interrupts.one_at_a_time():
        for _ in range(2):
            time.sleep(0.02)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
