"""Other names that several commands share."""

from __future__ import annotations

from collections.abc import Iterator

from .rows import ANY, Renamed, Row, Settled, same_in

CHECKS = {"disable": False, "strict": True, "ignore_strippable": True}


def lora_section(section: str, *, more: bool = True) -> Iterator[Row]:
    """Adapters in a section of their own, as Megatron's are."""
    lora = f"{section}.lora"
    yield Renamed(f"{lora}.rank", f"{section}.lora_rank")
    yield Renamed(f"{lora}.alpha", f"{section}.lora_alpha")
    yield from same_in(lora, section, "target_modules")
    if more:
        yield Renamed(f"{lora}.adapter_path", f"{section}.lora_adapter_path")
        yield from same_in(lora, section, "exclude_modules")
    yield Settled(f"{lora}.type", ("lora",), "other kinds of adapters")
    yield Settled(f"{lora}.merge", ANY, "engine and trainer compute with the adapter in the same way")
    yield Settled(f"{lora}.dropout", (0.0,), "dropout in adapters")
    yield Settled(f"{lora}.*", (), "Megatron's adapters")


def reward_function(section: str) -> Iterator[Row]:
    """The reward function of one's own, where it stands in newer versions, and its arguments."""
    fix = "give the function's arguments their defaults in Python"
    yield from same_in(f"{section}.custom_reward_function", "custom_reward_function", "path", "name")
    for place in ("custom_reward_function", f"{section}.custom_reward_function"):
        yield Settled(f"{place}.reward_kwargs.*", (), "arguments of a reward function", instead=fix)


def conversations(place: str, rollout: str) -> Iterator[Row]:
    """Names below `place` of what `rollout` says of agents and turns."""
    agent, turns = f"{place}.agent", f"{place}.multi_turn"
    yield Settled(f"{agent}.num_workers", ANY, "every rank runs its agents in one event loop")
    loops = f"register the agents in a Python file and name it in {rollout}.agent.agent_loop_path"
    yield Settled(f"{agent}.agent_loop_config_path", (), "agents are named in Python", instead=loops)
    yield Settled(f"{agent}.agent_loop_manager_class", (), "managers of agents")
    yield Renamed(f"{turns}.max_assistant_turns", f"{rollout}.multi_turn.max_turns")
    yield Settled(f"{turns}.max_user_turns", (), "a bound on the turns of others")
    check = f"{rollout}.multi_turn.enable_tokenization_sanity_check"
    yield Renamed(f"{turns}.tokenization_sanity_check_mode", check, CHECKS)


def ray() -> Iterator[Row]:
    yield from same_in("ray_kwargs.ray_init", "ray_init", "num_cpus", "address")
    yield Renamed("ray_kwargs.timeline_json_file", "ray_init.timeline_json_file")
    fix = "start the cluster by yourself and set ray_init.address"
    yield Settled("ray_kwargs.ray_init.*", (), "other arguments of Ray", instead=fix)
