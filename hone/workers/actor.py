"""The policy and its reference in one process: log-probs and updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hone.algorithms import PolicyLossParams
from hone.batch import Batch
from hone.config.schema.actor import ActorConfig
from hone.config.schema.ppo import PPOConfig
from hone.models.load import load_tokenizer
from hone.tracking.timing import TrainingCost, measured_peak_flops
from hone.training.checkpoint import load_engine, save_engine
from hone.workers.build import actor_engine, reference_engine
from hone.workers.custom_loss import custom_loss
from hone.workers.objectives import PolicyObjective
from hone.workers.settings import RunSettings


class ActorWorker:
    def __init__(self, config: PPOConfig, run: RunSettings, peers: Mapping[str, Any]) -> None:
        self.engine = actor_engine(config, run, peers["ref"].engine if "ref" in peers else None)
        algorithm = config.algorithm
        self.exact_reward_kl = algorithm.use_kl_in_reward and algorithm.kl_penalty == "full"
        self.objective = policy_objective(config.actor_rollout_ref.actor)
        model = config.actor_rollout_ref.model
        self.tokenizer = load_tokenizer(config.data.tokenizer or model.path, trust_remote_code=model.trust_remote_code)

    def compute_logprobs(self, batch: Batch) -> Batch:
        """Columns old_logprobs and entropy of the policy as it is now, and full_kl where the reward wants it."""
        exact = {"full_kl"} if self.exact_reward_kl else set()
        columns = dict(self.engine.forward(batch, {"logprobs", "entropy"} | exact).tokens)
        return Batch(batch.offsets, {"old_logprobs": columns.pop("logprobs"), **columns})

    def update(self, batch: Batch, training_step: int) -> dict[str, float]:
        """One optimiser step on a mini-batch with a `loss_weight` column; metrics without prefix."""
        return self._step(batch, training_step)[1]

    def update_on_policy(self, batch: Batch, training_step: int) -> tuple[Batch, dict[str, float]]:
        """The same with the old log-probs taken from the step's own forward pass: the columns of `compute_logprobs`,
        and metrics."""
        outputs, metrics = self._step(batch, training_step, watch=("logprobs", "entropy"))
        columns = dict(outputs.tokens)
        return Batch(batch.offsets, {"old_logprobs": columns.pop("logprobs"), **columns}), metrics

    def _step(self, batch: Batch, training_step: int, watch: Collection[str] = ()) -> tuple[Batch, dict[str, float]]:
        outputs, metrics = self.engine.watched_step(
            batch, self.objective, watch, training_step=training_step, mask="loss_mask"
        )
        return outputs, metrics if self.objective.kl_kind is None else {**metrics, "kl_coef": self.objective.kl_coef}

    def stochastic(self) -> bool:
        return self.engine.stochastic

    def cost(self) -> TrainingCost:
        """What an update costs here; measures the hardware's peak."""
        config = self.engine.model.config.get_text_config()
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return TrainingCost(
            parameters=self.engine.num_parameters,
            trained=self.engine.num_trained,
            attention_width=config.num_hidden_layers * config.num_attention_heads * head_size,
            peak=measured_peak_flops(self.engine.device, self.engine.options.compute_dtype),
        )

    def save(self, path: Path, contents: Collection[str]) -> None:
        save_engine(self.engine, path, contents, self.tokenizer)

    def load(self, path: Path, contents: Collection[str]) -> None:
        load_engine(self.engine, path, contents)


class ReferenceWorker:
    """A model of its own, or the actor's with its adapter set aside."""

    def __init__(self, config: PPOConfig, run: RunSettings, peers: Mapping[str, Any]) -> None:
        own = config.actor_rollout_ref.model.trains_adapter
        self.engine = peers["actor"].engine.reference if own else reference_engine(config, run)

    def compute_logprobs(self, batch: Batch) -> Batch:
        """Column ref_logprobs."""
        return Batch(batch.offsets, {"ref_logprobs": self.engine.forward(batch, {"logprobs"})["logprobs"]})


def loss_params(actor: ActorConfig) -> PolicyLossParams:
    loss = actor.policy_loss
    return PolicyLossParams(
        clip_ratio_low=actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
        tau_pos=loss.tau_pos,
        tau_neg=loss.tau_neg,
        clip_cov_ratio=loss.clip_cov_ratio,
        clip_cov_lb=loss.clip_cov_lb,
        clip_cov_ub=loss.clip_cov_ub,
        kl_cov_ratio=loss.kl_cov_ratio,
        ppo_kl_coef=loss.ppo_kl_coef,
    )


def policy_objective(actor: ActorConfig) -> PolicyObjective:
    return PolicyObjective(
        loss_mode=actor.policy_loss.loss_mode,
        params=loss_params(actor),
        entropy_coeff=actor.entropy_coeff,
        kl_kind=actor.kl_loss_type if actor.use_kl_loss else None,
        kl_coef=actor.kl_loss_coef,
        custom_loss=custom_loss(actor),
    )
