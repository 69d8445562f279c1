"""Values that follow from others before anything is resolved: old names of keys, the rollout correction's second place,
and log-probs that a correction needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .problems import Problem
from .rollout_correction import spell_out
from .tree import Tree, get, put

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"

# (section, count per rank, section that says how many ranks share sequences); the deprecated count over all ranks is
# named so without _per_gpu
MICRO_BATCHES = (
    (ACTOR, "ppo_micro_batch_size_per_gpu", ACTOR),
    ("critic", "ppo_micro_batch_size_per_gpu", "critic"),
    (REF, "log_prob_micro_batch_size_per_gpu", REF),
    (ROLLOUT, "log_prob_micro_batch_size_per_gpu", ACTOR),
)
RENAMED = {
    "ppo": (
        (f"{ACTOR}.optim.warmup_style", f"{ACTOR}.optim.lr_scheduler_type"),
        ("critic.optim.warmup_style", "critic.optim.lr_scheduler_type"),
    ),
    "sft": (("optim.warmup_steps_ratio", "optim.lr_warmup_steps_ratio"),),
}
CONVERSING = "tools"
CORRECTION_KEYS = (
    "rollout_is",
    "rollout_is_threshold",
    "rollout_is_threshold_lower",
    "rollout_is_level",
    "rollout_is_mode",
    "rollout_is_weights",
    "rollout_is_veto_threshold",
)


@dataclass
class Derivation:
    """What was noticed while deriving."""

    notices: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def derive(command: str, tree: Tree, user_keys: set[str]) -> Derivation:
    """Changes the raw tree in place."""
    found = Derivation()
    for old, new in RENAMED.get(command, ()):
        _rename(old, new, tree, user_keys, found)
    if command == "ppo":
        for section, name, sharing in MICRO_BATCHES:
            _split_micro_batch(f"{section}.{name}", _takers(tree, sharing), tree, user_keys, found)
        said, wrong = spell_out(tree, user_keys)
        found.notices += said
        found.problems += [*wrong, *_join_corrections(tree, user_keys)]
        _switch_on_log_probs(tree, found)
        _choose_agent(tree, user_keys)
    return found


def _rename(old: str, new: str, tree: Tree, user_keys: set[str], found: Derivation) -> None:
    value = get(tree, old, None)
    if value is None:
        return
    put(tree, old, None)
    if new in user_keys and get(tree, new) != value:
        wrong = f"is {value!r}, but {new}, its new name, is {get(tree, new)!r}"
        found.problems.append(Problem(old, wrong, "one of the two", f"remove {old}", (new,)))
        return
    put(tree, new, value)
    found.notices.append(f"{old} is an old name; {new}={value} is used")


def _split_micro_batch(per_rank: str, takers: int | None, tree: Tree, user_keys: set[str], found: Derivation) -> None:
    total = per_rank.removesuffix("_per_gpu")
    count = get(tree, total, None)
    if count is None:
        return
    if per_rank in user_keys:
        wrong = f"is given next to {per_rank}"
        found.problems.append(Problem(total, wrong, "one of the two", f"remove {total}, it is deprecated", (per_rank,)))
    elif not isinstance(count, int) or isinstance(count, bool) or takers is None:
        return  # the schema reports the type
    elif count % takers:
        wrong = f"{count} cannot be shared by {takers} ranks"
        found.problems.append(Problem(total, wrong, f"a multiple of {takers}", f"set {per_rank} instead"))
    else:
        each = count // takers
        put(tree, per_rank, each)
        put(tree, total, None)
        found.notices.append(f"{total} is deprecated; {per_rank}={each} is used ({count} over {takers} ranks)")


def _takers(tree: Tree, section: str) -> int | None:
    """Ranks that take trajectories of their own: those that share sequences count once. None: the schema reports it."""
    sharing = get(tree, f"{section}.ulysses_sequence_parallel_size", 1)
    if section == REF and isinstance(sharing, str):  # a reference to the actor's
        sharing = get(tree, f"{ACTOR}.ulysses_sequence_parallel_size", 1)
    counts = [*(get(tree, f"trainer.{key}", None) for key in ("nnodes", "n_gpus_per_node")), sharing]
    if not all(isinstance(count, int) and count > 0 for count in counts):
        return None
    nodes, ranks_per_node, sharing = counts
    return max(nodes * ranks_per_node // sharing, 1)


def _join_corrections(tree: Tree, user_keys: set[str]) -> Iterator[Problem]:
    """`algorithm.` is the place that counts; a key that was only set under `actor.` moves there."""
    for name in CORRECTION_KEYS:
        main, other = f"algorithm.{name}", f"{ACTOR}.{name}"
        if other in user_keys and main not in user_keys:
            put(tree, main, "${" + other + "}")
        elif other in user_keys and _differ(get(tree, main), get(tree, other)):
            wrong = f"is {get(tree, other)!r}, but {main} is {get(tree, main)!r}"
            yield Problem(other, wrong, "the same value in both places", f"remove {other}", (main,))
        else:
            put(tree, other, "${" + main + "}")


def _differ(a: Any, b: Any) -> bool:
    return a != b and not any(isinstance(value, str) and "${" in value for value in (a, b))


def _switch_on_log_probs(tree: Tree, found: Derivation) -> None:
    wanted = get(tree, "algorithm.rollout_is", False), get(tree, f"{ACTOR}.rollout_is", False)
    key = f"{ROLLOUT}.calculate_log_probs"
    if any(str(value).lower() == "true" for value in wanted) and str(get(tree, key, False)).lower() != "true":
        put(tree, key, True)
        found.notices.append(f"{key} is switched on: rollout_is needs the sampler's log-probs")


def _choose_agent(tree: Tree, user_keys: set[str]) -> None:
    """Conversations have an agent of their own, unless the user names another."""
    key = f"{ROLLOUT}.agent.default_agent_loop"
    if key not in user_keys and str(get(tree, f"{ROLLOUT}.multi_turn.enable", False)).lower() == "true":
        put(tree, key, CONVERSING)
