"""Whole runs with prompts computed once train what runs without it train."""

from __future__ import annotations

import pytest

from hone.models.shared_prompts import SharedPromptLayout
from tests.shows import shows
from tests.trainers.runs import ACTOR, MODEL, ROLLOUT, Stage, difference

SGD = [f"{ACTOR}.optim.optimizer=SGD", f"{ACTOR}.optim.lr=0.1", "critic.optim.optimizer=SGD", "critic.optim.lr=0.1"]
PACKED = [f"{MODEL}.use_remove_padding=True", "critic.model.use_remove_padding=True"]
TOKENS = [f"{role}.use_dynamic_bsz=True" for role in (ACTOR, "critic")] + [
    f"{ACTOR}.ppo_max_token_len_per_gpu=150", "critic.ppo_max_token_len_per_gpu=150",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz=True", f"{ROLLOUT}.log_prob_max_token_len_per_gpu=150",
]  # fmt: skip


@shows(f"{ACTOR}.use_prefix_grouper")
@pytest.mark.parametrize("cut", [[f"{ACTOR}.ppo_micro_batch_size_per_gpu=3"], TOKENS])
@pytest.mark.parametrize("more", [[f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.entropy_coeff=0.1"],
                                  [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=full"],
                                  ["algorithm.adv_estimator=gae"], [f"{ACTOR}.shuffle=True"]])  # fmt: skip
def test_weights_and_metrics_are_those_of_whole_sequences(
    stage: Stage, cut: list[str], more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = [*SGD, *PACKED, f"{ROLLOUT}.n=4", f"{ACTOR}.ppo_epochs=2", *more]
    whole = stage.run_ppo("whole", *base)
    spared, attend = [], SharedPromptLayout.__init__

    def counting(self: SharedPromptLayout, lengths: list[int], *rest: object) -> None:
        attend(self, lengths, *rest)
        spared.append(sum(lengths) - len(self.tokens))

    monkeypatch.setattr(SharedPromptLayout, "__init__", counting)
    shared = stage.run_ppo("shared", *base, *cut, f"{ACTOR}.use_prefix_grouper=True")
    assert sum(spared) > 0
    assert difference(whole.weights(), shared.weights()) < 1e-6
    for ours, theirs in zip(shared.results(), whole.results(), strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=5e-6), name
