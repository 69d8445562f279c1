"""How a mini-batch is cut, packed or padded changes memory and time, and never what is learned."""

from __future__ import annotations

import pytest

from tests.trainers.runs import ACTOR, MODEL, REF, ROLLOUT, Stage, difference

WAYS = {
    "micro-batches of one": [f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", "critic.ppo_micro_batch_size_per_gpu=1",
                             f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=1",
                             f"{REF}.log_prob_micro_batch_size_per_gpu=1"],
    "micro-batches of three": [f"{ACTOR}.ppo_micro_batch_size_per_gpu=3", "critic.ppo_micro_batch_size_per_gpu=3",
                               f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=3"],
    "packed": [f"{MODEL}.use_remove_padding=True", "critic.model.use_remove_padding=True"],
    "packed, by tokens": [f"{MODEL}.use_remove_padding=True", "critic.model.use_remove_padding=True",
                          f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=120",
                          "critic.ppo_max_token_len_per_gpu=130"],
    "fused": [f"{MODEL}.use_fused_kernels=True", f"{MODEL}.enable_gradient_checkpointing=True"],
    "eager attention": [f"{MODEL}.override_config.attn_implementation=eager"],
}  # fmt: skip
ALGORITHMS = {
    "grpo": [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.1", f"{ACTOR}.entropy_coeff=0.01"],
    "gae": [f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
}
# AdamW divides by the size of the gradient, which is noise where the gradient is: SGD shows the gradients themselves.
SGD = [f"{role}.optim.{change}" for role in (ACTOR, "critic") for change in ("optimizer=SGD", "lr=0.1")]


@pytest.mark.parametrize("estimator", ["grpo", pytest.param("gae", marks=pytest.mark.slow)])
def test_parameters_after_a_run_do_not_depend_on_how_mini_batches_are_cut(stage: Stage, estimator: str) -> None:
    more = [*ALGORITHMS[estimator], *SGD, f"{ROLLOUT}.n=4"]
    padded = stage.run_ppo("padded", *more, estimator=estimator)
    begun = stage.run_ppo("begun", *more, f"{ACTOR}.optim.lr=0", "critic.optim.lr=0", estimator=estimator)
    for number, (way, changes) in enumerate(WAYS.items()):
        run = stage.run_ppo(f"way{number}", *more, *changes, estimator=estimator)
        for role in ("actor", "critic") if estimator == "gae" else ("actor",):
            moved = difference(begun.weights(role=role), padded.weights(role=role))
            apart = difference(padded.weights(role=role), run.weights(role=role))
            assert apart < 1e-5 * min(1, 100 * moved), f"{way}: {role} is {apart:.1e} apart and moved by {moved:.1e}"
        assert run.lines()[1]["actor/grad_norm"] == pytest.approx(padded.lines()[1]["actor/grad_norm"], rel=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        f"{ROLLOUT}.max_num_seqs=3",
        f"{ROLLOUT}.max_num_batched_tokens=60",
        f"{ROLLOUT}.free_cache_engine=False",
        "reward_model.launch_reward_fn_async=True",
    ],
)
def test_how_the_engine_batches_changes_no_answer(stage: Stage, change: str) -> None:
    def dumped(name: str, *more: str) -> list[str]:
        run = stage.run_ppo(name, f"trainer.rollout_data_dir={stage.directory}/{name}/rollout", *more)
        return [line["output"] for step in (1, 2) for line in run.lines(f"rollout/{step}.jsonl")]

    assert dumped("run", change) == dumped("plain")
