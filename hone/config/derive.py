"""Values that follow from others before anything is resolved: other names of keys, the rollout correction's second
place, and log-probs that a correction needs."""

from __future__ import annotations

from collections.abc import Iterator

from .compose import Composition
from .conversations import ROLLOUT as CONVERSING_ROLLOUTS
from .names import NAMES, Translation, Translator
from .names.translate import followed, same
from .problems import Problem
from .rollout_correction import spell_out
from .tree import Tree, get, put

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
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


def derive(command: str, composition: Composition) -> Translation:
    """Changes the raw tree in place; what was noticed comes back."""
    tree, user_keys, overridden = composition.tree, composition.user_keys, composition.overridden
    found = Translator(tree, user_keys, overridden)(NAMES[command], composition.defaults)
    if command == "sft":
        found.notices += _conversations(tree, user_keys)
    if command == "ppo":
        said, wrong = spell_out(tree, user_keys)
        found.notices += said
        found.problems += [*wrong, *_join_corrections(tree, user_keys, overridden)]
        _switch_on_log_probs(tree, found)
    if command in CONVERSING_ROLLOUTS:
        _choose_agent(tree, user_keys, CONVERSING_ROLLOUTS[command])
    return found


def _conversations(tree: Tree, user_keys: set[str]) -> Iterator[str]:
    """Newer versions of verl train on conversations alone: there, naming their column is all that is said."""
    key, switch = "data.messages_key", "data.multiturn.enable"
    if key in user_keys and switch not in user_keys and not {"data.prompt_key", "data.response_key"} & user_keys:
        put(tree, switch, True)
        yield f"{switch} is switched on: {key} names a column of conversations"


def _join_corrections(tree: Tree, user_keys: set[str], overridden: set[str]) -> Iterator[Problem]:
    """`algorithm.` is the place that counts; a key that was only set under `actor.` moves there, and so does one that
    was set on the command line while a file sets the other."""
    for name in CORRECTION_KEYS:
        main, other = f"algorithm.{name}", f"{ACTOR}.{name}"
        main_first, other_first = (a in overridden and b not in overridden for a, b in ((main, other), (other, main)))
        if other in user_keys and (main not in user_keys or other_first):
            put(tree, main, "${" + other + "}")
        elif other in user_keys and not main_first and not same(followed(tree, main), followed(tree, other)):
            wrong = f"is {get(tree, other)!r}, but {main} is {get(tree, main)!r}"
            yield Problem(other, wrong, "the same value in both places", f"remove {other}", (main,))
        else:
            put(tree, other, "${" + main + "}")


def _switch_on_log_probs(tree: Tree, found: Translation) -> None:
    wanted = get(tree, "algorithm.rollout_is", False), get(tree, f"{ACTOR}.rollout_is", False)
    key = f"{ROLLOUT}.calculate_log_probs"
    if any(str(value).lower() == "true" for value in wanted) and str(get(tree, key, False)).lower() != "true":
        put(tree, key, True)
        found.notices.append(f"{key} is switched on: rollout_is needs the sampler's log-probs")


def _choose_agent(tree: Tree, user_keys: set[str], rollout: str) -> None:
    """Conversations have an agent of their own, unless the user names another."""
    key = f"{rollout}.agent.default_agent_loop"
    if key not in user_keys and str(get(tree, f"{rollout}.multi_turn.enable", False)).lower() == "true":
        put(tree, key, CONVERSING)
