"""What a run keeps of itself in its checkpoints, and whether that is enough to go on from."""

from __future__ import annotations

from collections.abc import Iterator

from .problems import Problem
from .schema import PPOConfig, SFTConfig

RESUME = "trainer.resume_mode"


def checkpoint_problems(config: PPOConfig | SFTConfig) -> Iterator[Problem]:
    """Without the model's weights, a resumed run would go on from the untrained model and say nothing."""
    if config.trainer.resume_mode == "disable":
        return
    for section, saved, loaded in _contents(config):
        if _saves(config):
            yield from _without_model(f"{section}.save_contents", saved)
        if isinstance(config, PPOConfig):
            yield from _without_model(f"{section}.load_contents", loaded)


def checkpoint_notices(config: PPOConfig | SFTConfig) -> Iterator[str]:
    if isinstance(config, PPOConfig) and not config.trainer.val_only and config.trainer.save_freq < 1:
        yield (
            f"trainer.save_freq={config.trainer.save_freq}: no checkpoint is saved, and the trained model is lost when "
            "the run ends; set trainer.save_freq=N to save it every N steps and after the last one"
        )
    if config.trainer.resume_mode == "disable" or not _saves(config):
        return
    for section, saved, loaded in _contents(config):
        missing = [part for part in ("optimizer", "extra") if part not in saved or part not in loaded]
        if missing:
            yield f"{section} leaves out {', '.join(missing)}: a resumed run will differ from one that never stopped"


def _contents(config: PPOConfig | SFTConfig) -> Iterator[tuple[str, list, list]]:
    """Each section with what it saves and what it loads."""
    if isinstance(config, SFTConfig):
        saved = config.trainer.checkpoint.save_contents
        yield "trainer.checkpoint", saved, saved
        return
    actor, critic = config.actor_rollout_ref.actor.checkpoint, config.critic.checkpoint
    yield "actor_rollout_ref.actor.checkpoint", actor.save_contents, actor.load_contents
    if config.trains_critic:
        yield "critic.checkpoint", critic.save_contents, critic.load_contents


def _saves(config: PPOConfig | SFTConfig) -> bool:
    return isinstance(config, SFTConfig) or (config.trainer.save_freq > 0 and not config.trainer.val_only)


def _without_model(key: str, contents: list) -> Iterator[Problem]:
    if "model" not in contents:
        wrong = f"is [{','.join(contents)}], so that a resumed run would go on from the untrained model"
        yield Problem(key, wrong, "model among them", f"add model, or set {RESUME}=disable", (RESUME,))
