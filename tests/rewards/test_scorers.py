import pytest

from hone.errors import UserError
from hone.rewards import default_compute_score, register
from hone.rewards.scorers import SCORERS


@pytest.mark.parametrize("source", ["openai/gsm8k", "gsm8k", "arithmetic"])
def test_number_sources_are_scored_by_the_marked_number(source):
    assert default_compute_score(source, "#### 5", "5") == 1.0
    assert default_compute_score(source, r"\boxed{5}", "5") == 0.0


@pytest.mark.parametrize(
    "source",
    ["lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "math", "aime", "aime2024"],
)
def test_math_sources_are_scored_by_the_box(source):
    assert default_compute_score(source, r"\boxed{5}", "5") == 1.0
    assert default_compute_score(source, "#### 5", "5") == 0.0


def test_an_unknown_source_names_itself_the_known_ones_and_the_way_out():
    with pytest.raises(UserError, match=r"'riddles'.*openai/gsm8k.*aime\*.*custom_reward_function\.path"):
        default_compute_score("riddles", "x", "y")


def test_a_registered_scorer_is_used_for_its_pattern(monkeypatch):
    monkeypatch.setattr("hone.rewards.scorers.SCORERS", dict(SCORERS))

    @register("riddle-*")
    def length(data_source, solution_str, ground_truth, extra_info=None):
        return {"score": len(solution_str), "source": data_source}

    assert default_compute_score("riddle-7", "abc", None) == {"score": 3, "source": "riddle-7"}
