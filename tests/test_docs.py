"""The pages cannot go stale: what is registered is described, and every command line validates."""

import re
import shlex
from pathlib import Path

import pytest

from hone.algorithms import ADVANTAGE_ESTIMATORS, KL_KINDS, LOSS_AGG_MODES, POLICY_LOSSES
from hone.config.load import preview
from hone.config.support import NOT_BUILT

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.md"))]


def built(key: str, names) -> set[str]:
    """The names that the configuration does not refuse as not built."""
    works = [row.works for row in NOT_BUILT["ppo"] if row.key == key]
    return {name for name in names if all(name in allowed for allowed in works)}


@pytest.mark.parametrize(
    "names",
    [
        built("algorithm.adv_estimator", ADVANTAGE_ESTIMATORS),
        built("actor_rollout_ref.actor.policy_loss.loss_mode", POLICY_LOSSES),
        {kind for kind in KL_KINDS if not kind.endswith("+") and kind != "full"},
        set(LOSS_AGG_MODES),
    ],
)
def test_everything_that_can_be_chosen_is_described(names):
    assert names
    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []


def command_lines() -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^ {4}(hone (?:ppo|sft|generate|eval) .*)$", text, flags=re.M):
            if "..." not in line and "--config-" not in line:
                found.append((page.name, shlex.split(line)[1:]))
    return found


@pytest.mark.parametrize(("page", "command"), command_lines())
def test_every_command_line_of_the_documentation_validates(page, command):
    preview(command[0], command[1:])


def test_the_links_between_pages_lead_somewhere():
    for page in PAGES + [ROOT / "benchmarks" / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
