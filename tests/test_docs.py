"""The pages cannot go stale: what is registered has its section, keys exist, and every command line validates."""

import re
import shlex
import textwrap
from functools import cache
from pathlib import Path

import pytest
import torch

from hone.algorithms import (
    ADVANTAGE_ESTIMATORS,
    KL_KINDS,
    LOSS_AGG_MODES,
    POLICY_LOSSES,
    AdvantageInputs,
    PolicyLossInputs,
    PolicyLossParams,
)
from hone.config.check import cross_field_problems
from hone.config.load import preview
from hone.config.pages import PAGES as GENERATED
from hone.config.presets import DEFAULT_PRESET, PRESETS
from hone.config.schema import PPOConfig
from hone.config.schema.walk import document, knows
from hone.config.support import unsupported

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *DOCS]
WRITTEN = [page for page in PAGES if page.name not in GENERATED]  # by hand; the others are made from the schema
TEXT = (ROOT / "docs" / "algorithms.md").read_text()
ABBREVIATED = {"actor": "actor_rollout_ref.actor", "rollout": "actor_rollout_ref.rollout"}
SECTIONS_DESCRIBED = ("algorithm.", "actor_rollout_ref.actor.policy_loss.", "reward_model.overlong_buffer.")


def commands(text: str) -> list[list[str]]:
    """The indented `hone` command lines of a text that are complete, as argument lists without `hone`."""
    lines = re.findall(r"^ {4}(hone (?:ppo|sft|generate|eval)\b.*)$", text.replace("\\\n", " "), flags=re.M)
    return [shlex.split(line)[1:] for line in lines if "..." not in line and "--config-" not in line]


def parts(text: str, level: int) -> dict[str, str]:
    """Heading -> the text below it, for the headings of one level."""
    pieces = re.split(rf"^{'#' * level} (.+)$", text, flags=re.M)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


CHAPTERS = parts(TEXT, 2)
SECTIONS = {heading: body for chapter in CHAPTERS.values() for heading, body in parts(chapter, 3).items()}


def described(chapter: str) -> set[str]:
    """The names in backticks in the headings of a chapter."""
    return {name for heading in parts(CHAPTERS[chapter], 3) for name in re.findall(r"`([^`]+)`", heading)}


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def full_key(key: str) -> str:
    first, _, rest = key.partition(".")
    return f"{ABBREVIATED.get(first, first)}.{rest}"


def keys_in(text: str) -> list[str]:
    """What is written in backticks like a configuration key, `a.b` or `a.b=value`, in full."""
    dotted = re.compile(r"([a-z_]+(?:\.[a-z_]+)+)(?:=.*)?", flags=re.S)
    found = [match[1] for match in map(dotted.fullmatch, quoted(text)) if match]
    return [full_key(key) for key in found if not key.endswith((".md", ".py", ".yaml", ".json", ".jsonl", ".parquet"))]


@cache
def refused(command: str, overrides: tuple[str, ...] = ()) -> frozenset[str]:
    """The keys that this build cannot act on, or that contradict each other."""
    config = preview(command, overrides).config
    return frozenset(p.key for p in [*unsupported(command, config), *cross_field_problems(config)])


@pytest.mark.parametrize(
    ("chapter", "names"),
    [
        ("Advantage estimators", set(ADVANTAGE_ESTIMATORS)),
        ("Policy losses", set(POLICY_LOSSES)),
        ("KL kinds", {kind.rstrip("+") for kind in KL_KINDS} | {"+"}),
    ],
)
def test_the_sections_of_a_chapter_are_exactly_what_is_registered(chapter, names):
    assert described(chapter) == names


def test_every_loss_aggregation_mode_has_its_row():
    rows = re.findall(r"^\| `([^`]+)` \| 1", CHAPTERS["From trajectories to a loss"], flags=re.M)
    assert sorted(rows) == sorted(LOSS_AGG_MODES)


def test_every_key_of_an_algorithm_is_named():
    wanted = {key for key, doc in document(PPOConfig).items() if key.startswith(SECTIONS_DESCRIBED) and not doc.section}
    assert len(wanted) > 20
    assert sorted(wanted - set(keys_in(TEXT))) == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_key_in_backticks_exists(page):
    schemas = [PRESETS[preset].schema for preset in DEFAULT_PRESET.values()]
    unknown = [key for key in keys_in(page.read_text()) if not any(knows(schema, key) for schema in schemas)]
    assert unknown == []


def test_every_setting_in_backticks_validates():
    settings = [text for text in quoted(TEXT) if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+=\S+", text)]
    assert settings
    preview("ppo", [full_key(setting) for setting in settings])


@pytest.mark.parametrize(
    ("page", "command"), [(page.name, line) for page in PAGES for line in commands(page.read_text())]
)
def test_every_command_line_of_the_documentation_validates(page, command):
    preview(command[0], command[1:])


def test_the_front_page_and_the_algorithms_show_command_lines():
    assert commands((ROOT / "README.md").read_text())
    assert [heading for heading, body in SECTIONS.items() if not commands(body) and "your own" not in heading] == []


@pytest.mark.parametrize("heading", [heading for heading, body in SECTIONS.items() if commands(body)])
def test_no_section_shows_an_option_that_is_refused(heading):
    body = SECTIONS[heading]
    extra = {key for command in commands(body) for key in refused(command[0], tuple(command[1:])) - refused(command[0])}
    assert not extra


def test_the_estimator_shown_for_users_gives_advantages_of_trainable_tokens():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    rewards = torch.tensor([[0.0, 1.0, torch.nan], [0.25, 0.0, 0.0]])
    inputs = AdvantageInputs(token_rewards=rewards, mask=mask, group_ids=torch.tensor([0, 0]))
    advantages, _ = shown_code("Estimators of your own")["half_baseline"](inputs)
    assert advantages.tolist() == [[0.5, 0.5, 0.0], [-0.25, 0.0, 0.0]]


def test_the_loss_shown_for_users_is_minus_advantage_times_distance_plus_its_square():
    squared = shown_code("Losses of your own")["squared"]
    inputs = PolicyLossInputs(
        logprobs=torch.tensor([-1.0, torch.nan]),
        old_logprobs=torch.tensor([-1.5, 0.0]),
        advantages=torch.tensor([2.0, 1.0]),
        mask=torch.tensor([True, False]),
        segment_ids=torch.tensor([0, 0]),
    )
    loss, metrics = squared(inputs, PolicyLossParams())
    assert loss.tolist() == [-2.0 * 0.5 + 0.25, 0.0]
    assert metrics["ppo_kl"].tolist() == [-0.5, 0.0]


def shown_code(heading: str) -> dict:
    """The names that the Python example of a section defines."""
    block = re.search(r"^ {4}from .*?(?=^\S)", SECTIONS[heading], flags=re.M | re.S)
    assert block, heading
    names: dict = {}
    exec(textwrap.dedent(block[0]), names)
    return names


def test_the_index_names_every_page_once():
    index = (ROOT / "docs" / "README.md").read_text()
    listed = re.findall(r"^- \[([\w.-]+)\]\(\1\): \S", index, flags=re.M)
    assert sorted(listed) == [page.name for page in DOCS if page.name != "README.md"]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=lambda page: str(page.parent.name))
def test_the_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []
