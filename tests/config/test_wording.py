"""Bad overrides and YAML files are answered in plain words: what is wrong, where, and what to do. The libraries that
read them have words of their own, which nobody who wrote the input would know."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from hone.config import ConfigError, load
from hone.errors import UserError

FOREIGN = re.compile(
    r"EQUAL|EOF|token|viable|extraneous|Interpolation|full_key|object_type|NoneType|HydraException|KeyError|codec"
    r"|search path|composed|flow |block |constructor|\bprovider\b|stream|pydantic|ListConfig|DictConfig|Traceback"
)

OVERRIDES = {
    "trainer.total_epochs": ["has no '='", "write trainer.total_epochs=VALUE"],
    "trainer.total_epochs:3": ["has no '='", "write trainer.total_epochs=3"],
    "trainer.total_epochs =3": ["without spaces", "write trainer.total_epochs=3"],
    "trainer.total_epochs==3": ["two '='", "write trainer.total_epochs=3"],
    "trainer..total_epochs=3": ["single dots", "write trainer.total_epochs=3"],
    ".trainer.seed=3": ["single dots", "write trainer.seed=3"],
    "trainer.=1": ["single dots"],
    "+++trainer.seed=1": ["is no key", "write trainer.seed=1"],
    "++": ["names no key"],
    "=3": ["names no key"],
    "trainer.logger=[console": ["bracket ([) is not closed"],
    "trainer.logger=console]": ["bracket (]) is closed that was not opened"],
    "ray_init={num_cpus:1": ["bracket ({) is not closed"],
    "trainer.project_name=a(b": ["bracket (() is not closed", "trainer.project_name='\"a(b\"'"],
    "trainer.project_name='abc": ["quote (') is not closed"],
    'trainer.project_name="abc': ['quote (") is not closed'],
    "trainer.total_epochs=foo(3)": ["foo(...) is no function", "quote the text"],
    "trainer.project_name=a#b": ["holds '#'", "trainer.project_name='\"a#b\"'"],
    "trainer.project_name=日本": ["holds '日'", "quotes"],
    "trainer.project_name=a\nb": ["holds '\\n'"],
    'ray_init={"num_cpus":1}': ["keys of an object stand in quotes", "ray_init={num_cpus:1}"],
    "trainer.seed=" + "1" * 5000: ["a number of 5000 digits", "2**63"],
    "trainer.project_name=${": ["(${) is not closed"],
    "trainer.project_name=${nope.key}": ["there is no key nope.key"],
    "trainer.project_name=${trainer.sed}": ["there is no key trainer.sed", "did you mean trainer.seed?"],
    "trainer.project_name=${HOME}/x": ["there is no key HOME", "${oc.env:HOME}"],
    "trainer.project_name=${oc.env:NOT_SET_HERE}": ["environment variable NOT_SET_HERE is not set"],
    "trainer.project_name=${foo:1}": ["${foo:...} is nothing known"],
    "trainer.project_name=${trainer}": ["is the section that trainer.project_name is in"],
    "trainer.project_name=${trainer.project_name}": ["leads back to trainer.project_name"],
    "trainer=null": ["is a section, not null"],
    "trainer.project_name=???": ["has no value", "set trainer.project_name="],
    "ray_init={1:2}": ["ray_init.1", "not a known key"],
    "actor_rollout_ref.actor.optim.lr=nan": ["no finite number"],
    "data.train_files=$HOME/rows.parquet": ["holds the variable $HOME", "${oc.env:HOME}"],
    "trainer.default_local_dir=$NOWHERE/run": ["holds the variable $NOWHERE"],
    "hydra.run.dir=x": ["no Hydra run folders"],
}

FILES = {
    "trainer:\n\tseed: 3\n": ["line 2, column 1", "a tab", "indent with spaces"],
    "trainer:\n  seed: 3\n project_name: a\n": ["line 3, column 2", "indentation"],
    "trainer:\n  project_name: a: b\n": ["line 2", "second ': '", "quotes"],
    "trainer:\n  seed: 3\n  seed: 4\n": ["line 3", "the key seed stands there twice"],
    "trainer: [a\n": ["line 2", "is not closed"],
    'trainer:\n  project_name: "abc\n': ["a quote is not closed"],
    "trainer: *nope\n": ["line 1", "*nope refers to nothing"],
    "trainer: !foo x\n": ["the tag !foo is unknown"],
    "trainer: {seed: 1}\n---\nb: 2\n": ["line 2", "a second document begins"],
    "trainer:\n  project_name: @abc\n": ["line 2", "a value begins with @"],
    "? [a, b]\n: 3\n": ["a key is a list"],
    "~: 2\n": ["a key is null"],
    "3\n": ["holds a single value"],
    "- a\n": ["holds no keys"],
    "trainer: !!set {a, b}\n": ["key trainer", "holds a value that is no text, number, list or section"],
    "trainer:\n  project_name: ${a b\n": ["key trainer.project_name", "cannot be read"],
    "trainer:\n  project_name: ${nope}\n": ["there is no key nope"],
    "defaults:\n  - nope\n": ["its defaults list names nope", "no such file"],
    "defaults:\n  - group: two\n": ["its defaults list names group/two", "expected one of one"],
    "defaults:\n  - group: ???\n": ["group is left open"],
    "defaults:\n  - 3\n": ["3 is no name"],
    "defaults:\n  - [a]\n": ["['a'] is no name"],
    "defaults:\n  - _self_\n  - _self_\n": ["_self_ stands there twice"],
    "defaults:\n  - a: b\n    c: d\n": ["one entry has 2 keys (a, c)"],
    "defaults:\n  - mine\n": ["its defaults list leads back to it"],
    "defaults:\n  - ppo_trainer\n  - override hydra/launcher: x\n": ["hydra/launcher/x", "no such file"],
}


def said(argv: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        load("ppo", argv)
    return str(caught.value)


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda text: text[:40])
def test_a_bad_override_is_answered_in_plain_words(override: str, runnable: dict[str, list[str]]) -> None:
    text = said([*runnable["ppo"], override])
    assert all(part in text for part in OVERRIDES[override]), text
    assert not FOREIGN.search(text), text


@pytest.mark.parametrize("written", FILES, ids=lambda text: text[:40].replace("\n", " "))
def test_a_bad_file_is_answered_with_its_place_in_plain_words(
    written: str, runnable: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "one.yaml").write_text("trainer: {seed: 1}\n")
    (tmp_path / "mine.yaml").write_text(written, encoding="utf-8")
    text = said([*runnable["ppo"], "-cp", str(tmp_path), "-cn", "mine"])
    assert all(part in text for part in FILES[written]), text
    assert not FOREIGN.search(text), text


@pytest.mark.parametrize("content", [b"trainer: \xe9\n", bytes(range(256)), "trainer: 1".encode("utf-16")])
def test_a_file_that_is_no_text_says_so(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    text = said(["-cp", str(tmp_path), "-cn", "mine"])
    assert "mine.yaml" in text and "UTF-8" in text and not FOREIGN.search(text)


def test_a_group_that_a_file_leaves_open_is_chosen_on_the_command_line(
    runnable: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "one.yaml").write_text("# @package _global_\ntrainer: {seed: 11}\n")
    (tmp_path / "mine.yaml").write_text("defaults:\n  - ppo_trainer\n  - group: ???\n  - _self_\n")
    argv = [*runnable["ppo"], "-cp", str(tmp_path), "-cn", "mine", "group=one"]
    assert load("ppo", argv).config.trainer.seed == 11


def test_what_hydra_warns_of_is_a_notice(runnable: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("hydra:\n  searchpath: [file:///nowhere]\ndefaults:\n  - ppo_trainer\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notices = load("ppo", [*runnable["ppo"], "-cp", str(tmp_path), "-cn", "mine"]).notices
    assert any("hydra.searchpath names /nowhere, which is no folder here" in notice for notice in notices)
    assert any("lacks _self_" in notice for notice in notices)


@pytest.mark.parametrize(("name", "meant"), [("ppo_trainr", "ppo_trainer"), ("my_experiment", None), ("link", None)])
def test_only_a_name_that_is_close_is_suggested(name: str, meant: str | None, tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").touch()
    text = said(["-cp", str(tmp_path), "-cn", name])
    assert (f"did you mean {meant}?" in text) if meant else ("did you mean" not in text), text


def test_a_flag_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config-name=b: is given twice"):
        load("ppo", ["--config-name=a", "--config-name=b"])


def test_raw_chat_is_always_at_hand_and_said_to_be(runnable: dict[str, list[str]]) -> None:
    notices = load("ppo", [*runnable["ppo"], "data.return_raw_chat=True"]).notices
    assert any("data.return_raw_chat=True asks for what is always so" in notice for notice in notices)


@pytest.mark.parametrize("command", ["ppo", "eval"])
def test_a_reward_function_of_the_users_is_said_to_score_all_rows(
    command: str, runnable: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").touch()
    argv = [*runnable[command], f"custom_reward_function.path={tmp_path}/mine.py"]
    assert any("scores the rows of every data source" in notice for notice in load(command, argv).notices)
