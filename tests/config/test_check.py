"""Rules that tie keys together, and what must exist on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config import ConfigError, Problem, load

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
Runnable = dict[str, list[str]]


def problems_of(argv: list[str], command: str = "ppo") -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load(command, argv)
    return caught.value.problems


@pytest.mark.parametrize("command", ["ppo", "sft", "generate", "eval"])
def test_a_configuration_that_can_run_loads(command: str, runnable: Runnable) -> None:
    keys = {override.partition("=")[0] for override in runnable[command]}
    assert load(command, runnable[command]).user_keys == keys


@pytest.mark.parametrize(
    ("batch", "mini", "legal_batches", "legal_minis"),
    [(10, 4, (8, 12), (2, 5)), (4, 16, (16,), (4,)), (7, 2, (6, 8), (1, 7))],
)
def test_a_batch_that_mini_batches_cannot_divide_names_the_nearest_legal_sizes(
    runnable: Runnable, batch: int, mini: int, legal_batches: tuple[int, ...], legal_minis: tuple[int, ...]
) -> None:
    sizes = [f"data.train_batch_size={batch}", f"{ACTOR}.ppo_mini_batch_size={mini}"]
    (problem,) = problems_of([*runnable["ppo"], *sizes])  # the critic's size follows: one problem, not two
    assert problem.key == f"{ACTOR}.ppo_mini_batch_size"
    assert f"data.train_batch_size={batch}" in problem.wrong and f"={mini}" in problem.wrong
    batches, minis = problem.fix.split(", or ")
    assert batches == "set data.train_batch_size=" + " or ".join(map(str, legal_batches))
    assert minis == f"{ACTOR}.ppo_mini_batch_size=" + " or ".join(map(str, legal_minis))


def test_the_critic_has_a_mini_batch_size_of_its_own(runnable: Runnable) -> None:
    argv = [*runnable["ppo"], "critic.ppo_mini_batch_size=100"]
    assert [problem.key for problem in problems_of(argv)] == ["critic.ppo_mini_batch_size"]
    load("ppo", [*argv, "algorithm.adv_estimator=grpo"])  # no critic, no rule


def test_a_mini_batch_smaller_than_the_ranks_is_reported(runnable: Runnable) -> None:
    argv = [*runnable["ppo"], "trainer.n_gpus_per_node=8", f"{ACTOR}.ppo_mini_batch_size=2", f"{ROLLOUT}.n=3"]
    problem = next(p for p in problems_of(argv) if p.key == f"{ACTOR}.ppo_mini_batch_size")
    assert (
        "6 trajectories for 8 ranks" in problem.wrong
        and problem.fix == f"set {ACTOR}.ppo_mini_batch_size=4, or {ROLLOUT}.n=4"
    )


def test_the_deprecated_micro_batch_size_is_split_over_the_ranks(runnable: Runnable) -> None:
    loaded = load("ppo", [*runnable["ppo"], "critic.ppo_micro_batch_size=6"])
    assert loaded.config.critic.ppo_micro_batch_size_per_gpu == 6
    assert loaded.config.critic.forward_micro_batch_size_per_gpu == 6
    assert any("critic.ppo_micro_batch_size is deprecated" in notice for notice in loaded.notices)
    two = [*runnable["ppo"], "critic.ppo_micro_batch_size=5", "trainer.n_gpus_per_node=2"]
    assert "critic.ppo_micro_batch_size" in [p.key for p in problems_of(two)]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["critic.ppo_micro_batch_size=4", "critic.ppo_micro_batch_size_per_gpu=4"], "critic.ppo_micro_batch_size"),
        (["algorithm.adv_estimator=rloo"], f"{ROLLOUT}.n"),
        (["algorithm.adv_estimator=grpo_passk"], f"{ROLLOUT}.n"),
        (["critic.enable=False"], "critic.enable"),
        (["algorithm.custom_estimator.name=mine"], "algorithm.custom_estimator.path"),
        (["algorithm.custom_estimator.path=/no/such.py", "algorithm.custom_estimator.name=mine"],
         "algorithm.custom_estimator.path"),
        ([f"{ACTOR}.policy_loss.custom_loss.path={__file__}"], f"{ACTOR}.policy_loss.custom_loss.name"),
        (["reward_model.overlong_buffer.enable=True"], "reward_model.overlong_buffer.len"),
        (["reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=513"],
         "reward_model.overlong_buffer.len"),
        (["algorithm.filter_groups.enable=True"], f"{ROLLOUT}.n"),
        (["algorithm.filter_groups.enable=True", f"{ROLLOUT}.n=2", "algorithm.use_kl_in_reward=True",
          "algorithm.filter_groups.metric=seq_final_reward"], "algorithm.filter_groups.metric"),
        (["critic.enable=True", "algorithm.adv_estimator=grpo"], "critic.enable"),
        (["trainer.critic_warmup=1", "algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=2"], "trainer.critic_warmup"),
        (["custom_reward_function.name=mine"], "custom_reward_function.path"),
        (["algorithm.pf_ppo.weight_pow=-1"], "algorithm.pf_ppo.weight_pow"),
        ([f"{ROLLOUT}.temperature=0"], f"{ROLLOUT}.temperature"),
        ([f"{ROLLOUT}.do_sample=False"], f"{ROLLOUT}.do_sample"),
        ([f"{ROLLOUT}.prompt_length=7"], f"{ROLLOUT}.prompt_length"),
        ([f"{ROLLOUT}.max_model_len=1000"], f"{ROLLOUT}.max_model_len"),
        ([f"{ACTOR}.loss_scale_factor=7"], f"{ACTOR}.loss_scale_factor"),
        ([f"{ACTOR}.policy_loss.clip_cov_lb=9"], f"{ACTOR}.policy_loss.clip_cov_lb"),
        (["algorithm.rollout_is=True", f"{ACTOR}.rollout_is=False"], f"{ACTOR}.rollout_is"),
        (
            ["algorithm.rollout_is_threshold=2", "algorithm.rollout_is_threshold_lower=3"],
            "algorithm.rollout_is_threshold_lower",
        ),
        (["algorithm.rollout_is=True", "algorithm.rollout_is_mode=veto"], "algorithm.rollout_is_veto_threshold"),
        ([f"{ACTOR}.optim.warmup_style=cosine", f"{ACTOR}.optim.lr_scheduler_type=constant"],
         f"{ACTOR}.optim.warmup_style"),
        (["trainer.resume_mode=resume_path"], "trainer.resume_from_path"),
        (["trainer.resume_from_path=/tmp"], "trainer.resume_from_path"),
        (["trainer.resume_mode=resume_path", "trainer.resume_from_path=/no/such"], "trainer.resume_from_path"),
        (["trainer.val_only=True", "data.val_files=null"], "trainer.val_only"),
        (["data.train_files=/no/such.parquet"], "data.train_files"),
        (["data.train_files=[/no/such.parquet]"], "data.train_files"),
        (["data.train_files=/tmp"], "data.train_files"),
        (["data.val_files=hdfs://a/b"], "data.val_files"),
        (["actor_rollout_ref.model.path=~/no/such"], "actor_rollout_ref.model.path"),
        (["critic.model.path=./no-such"], "critic.model.path"),
        (["custom_reward_function.path=reward.py"], "custom_reward_function.path"),
        (["trainer.logger=[console,swanlab]"], "trainer.logger"),
    ],
)  # fmt: skip
def test_one_contradiction_is_one_problem(runnable: Runnable, overrides: list[str], key: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("hone.config.paths.find_spec", lambda name: None)
    assert [problem.key for problem in problems_of([*runnable["ppo"], *overrides])] == [key]


@pytest.mark.parametrize(
    "key",
    [
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        "critic.ppo_max_token_len_per_gpu",
        "critic.forward_max_token_len_per_gpu",
    ],
)
def test_a_token_cap_below_one_trajectory_names_the_smallest_that_works(runnable: Runnable, key: str) -> None:
    argv = [
        *runnable["ppo"],
        f"{ACTOR}.use_dynamic_bsz=True",
        "data.max_prompt_length=100",
        f"{ACTOR}.use_kl_loss=True",
    ]
    problem = next(p for p in problems_of([*argv, f"{key}=611"]) if p.key == key)
    assert problem.fix == f"set {key}=612"
    load("ppo", [*argv, f"{key}=612"])
    load("ppo", [*argv[:-3], f"{key}=611"])  # without dynamic batches the cap does not speak


def test_validation_alone_may_be_greedy(runnable: Runnable) -> None:
    load("ppo", [*runnable["ppo"], "trainer.val_only=True", f"{ROLLOUT}.temperature=0"])


def test_sft_keys_are_tied_too(runnable: Runnable) -> None:
    argv = [*runnable["sft"], "data.use_dynamic_bsz=True", "data.max_token_len_per_gpu=1023"]
    assert [p.key for p in problems_of(argv, "sft")] == ["data.max_token_len_per_gpu"]
    assert load("sft", [*runnable["sft"], "optim.warmup_steps_ratio=0.3"]).config.optim.lr_warmup_steps_ratio == 0.3
    both = [*runnable["sft"], "optim.warmup_steps_ratio=0.3", "optim.lr_warmup_steps_ratio=0.2"]
    assert [p.key for p in problems_of(both, "sft")] == ["optim.warmup_steps_ratio"]


def test_all_problems_come_together(runnable: Runnable) -> None:
    overrides = {
        "trainer.sed": "1",
        "data.train_batch_size": "True",
        "algorithm.adv_estimator": "grop",
        "algorithm.gamma": "2",
        "data.train_files": "/no/such",
        f"{ROLLOUT}.temperature": "0",
        "reward_model.enable": "True",
        "data.seed": "${no.such}",
        f"{ACTOR}.optim.lr": "1,2",
    }
    argv = [f"{key}={value}" for key, value in overrides.items()]
    found = {problem.key.partition("=")[0] for problem in problems_of([*runnable["ppo"], *argv])}
    assert found == set(overrides)


def test_the_error_lists_every_problem_on_a_line_of_its_own(runnable: Runnable) -> None:
    with pytest.raises(ConfigError) as caught:
        load("ppo", [*runnable["ppo"], "trainer.sed=1", "algorithm.gamma=2"])
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("2 problems") and len(lines) == 2
    assert "trainer.sed" in lines[0] and "trainer.seed" in lines[0] and ">= 0 and <= 1" in lines[1]


def test_the_correction_may_be_set_at_either_place(runnable: Runnable) -> None:
    for place in ("algorithm", ACTOR):
        argv = [f"{place}.rollout_is=True", f"{place}.rollout_is_threshold=2.0", f"{place}.rollout_is_level=sequence"]
        loaded = load("ppo", [*runnable["ppo"], *argv])
        for section in (loaded.config.algorithm, loaded.config.actor_rollout_ref.actor):
            found = (section.rollout_is, section.rollout_is_threshold, section.rollout_is_level)
            assert found == (True, 2.0, "sequence")
        assert loaded.config.actor_rollout_ref.rollout.calculate_log_probs
        assert any("calculate_log_probs is switched on" in notice for notice in loaded.notices)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.adv_estimator=grpo"], "a group of one"),
        (["algorithm.adv_estimator=opo"], "all advantages are 0"),
        ([f"{ACTOR}.use_kl_loss=True", "algorithm.use_kl_in_reward=True"], "counts twice"),
        ([f"{ROLLOUT}.top_p=0.9"], "top_p=0.9: the sampler's support differs from the trainer's"),
        ([f"{ROLLOUT}.top_k=5"], "top_k=5: the sampler's support differs"),
        ([f"{ROLLOUT}.min_p=0.1", f"{ROLLOUT}.top_p=0.9"], "top_p=0.9, min_p=0.1: the sampler's support differs"),
        ([f"{ROLLOUT}.repetition_penalty=1.1"], "repetition_penalty=1.1: the sampler's distribution differs"),
        (
            ["trainer.save_freq=5", f"{ACTOR}.checkpoint.save_contents=[model,extra]"],
            f"{ACTOR}.checkpoint leaves out optimizer: a resumed run will differ",
        ),
        (["trainer.save_freq=5", f"{ACTOR}.checkpoint.save_contents=[model]"], "leaves out optimizer, extra"),
        (["trainer.save_freq=5", f"{ACTOR}.checkpoint.load_contents=[model,optimizer]"], "leaves out extra"),
        (
            ["trainer.save_freq=5", "critic.checkpoint.save_contents=[model,optimizer]"],
            "critic.checkpoint leaves out extra",
        ),
        ([f"{ROLLOUT}.tensor_model_parallel_size=4"], "tensor_model_parallel_size"),
        ([f"{ROLLOUT}.gpu_memory_utilization=0.4"], "gpu_memory_utilization"),
        ([f"{ROLLOUT}.mode=sync"], "mode=sync"),
        ([], "trainer.save_freq=-1: no checkpoint is saved"),
        ([f"{ROLLOUT}.val_kwargs.n=4"], "all the same"),
        ([f"{ACTOR}.fsdp_config.reshard_after_forward=False"], "nothing to shard"),
        ([f"{ACTOR}.fsdp_config.fsdp_size=2"], "nothing to shard"),
        (["ray_init.num_cpus=4"], "nothing to shard"),
        (["trainer.n_gpus_per_node=2", f"{ACTOR}.fsdp_config.forward_prefetch=True"], "only strategy=fsdp reads"),
        (["trainer.balance_batch=True"], "trainer.balance_batch"),
        (["data.val_files=null"], "nothing is validated"),
        (["trainer.device=cpu", f"{ACTOR}.use_torch_compile=True"], "use_torch_compile"),
        (
            ["trainer.device=cpu", "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2"],
            "flash_attention_2",
        ),
        ([f"{ROLLOUT}.dtype=float32"], "computes with the policy's weights"),
        ([f"{ROLLOUT}.calculate_log_probs=False"], "calculate_log_probs=False"),
        ([f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=bf16"], "nothing to shard"),
    ],
)
def test_what_has_no_or_another_effect_is_said(runnable: Runnable, overrides: list[str], words: str) -> None:
    assert any(words in notice for notice in load("ppo", [*runnable["ppo"], *overrides]).notices)


CHECKPOINTS = [
    ("ppo", [f"{ACTOR}.checkpoint.save_contents=[hf_model]"], f"{ACTOR}.checkpoint.save_contents"),
    ("ppo", [f"{ACTOR}.checkpoint.save_contents=[]"], f"{ACTOR}.checkpoint.save_contents"),
    ("ppo", [f"{ACTOR}.checkpoint.load_contents=[optimizer]"], f"{ACTOR}.checkpoint.load_contents"),
    ("ppo", ["critic.checkpoint.save_contents=[optimizer,extra]"], "critic.checkpoint.save_contents"),
    ("ppo", ["critic.checkpoint.load_contents=[]"], "critic.checkpoint.load_contents"),
    ("sft", ["trainer.checkpoint.save_contents=[hf_model,optimizer]"], "trainer.checkpoint.save_contents"),
]


@pytest.mark.parametrize(("command", "overrides", "key"), CHECKPOINTS)
def test_a_resume_that_would_begin_with_untrained_weights_is_refused(
    runnable: Runnable, command: str, overrides: list[str], key: str
) -> None:
    argv = [*runnable[command], "trainer.save_freq=5", *overrides]
    (problem,) = problems_of(argv, command)
    assert problem.key == key and "model" in problem.expected and "trainer.resume_mode=disable" in problem.fix
    load(command, [*argv, "trainer.resume_mode=disable"])


def test_contents_are_free_where_nothing_is_saved_or_resumed(runnable: Runnable) -> None:
    contents = [f"{ACTOR}.checkpoint.save_contents=[hf_model]", f"{ACTOR}.checkpoint.load_contents=[model]"]
    load("ppo", [*runnable["ppo"], *contents])  # save_freq is -1
    load("ppo", [*runnable["ppo"], *contents, "trainer.save_freq=5", "trainer.val_only=True"])
    plain = [*runnable["ppo"], "trainer.save_freq=5", "algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=2"]
    load("ppo", [*plain, "critic.checkpoint.save_contents=[hf_model]"])  # no critic
    echoed = f"{ACTOR}.checkpoint.save_contents=[hf_model]"  # and what an earlier run saved would be loaded so
    assert [p.key for p in problems_of([*runnable["ppo"], echoed])] == [f"{ACTOR}.checkpoint.load_contents"]


def test_a_critic_may_warm_up_before_the_actor(runnable: Runnable) -> None:
    load("ppo", [*runnable["ppo"], "trainer.critic_warmup=1"])


def test_a_name_without_a_file_is_refused_for_evaluation_too(runnable: Runnable) -> None:
    argv = [*runnable["eval"], "custom_reward_function.name=mine"]
    (problem,) = problems_of(argv, "eval")
    assert problem.key == "custom_reward_function.path" and "custom_reward_function.name=mine" in problem.wrong
    load("eval", [*argv, f"custom_reward_function.path={__file__}"])
    load("eval", [*runnable["eval"], "custom_reward_function.name=compute_score"])


def test_a_weight_of_0_or_more_is_a_power_of_any_reward(runnable: Runnable) -> None:
    load("ppo", [*runnable["ppo"], "algorithm.use_pf_ppo=True", "algorithm.pf_ppo.weight_pow=0"])


def test_notices_of_the_other_commands(runnable: Runnable) -> None:
    sharding = load("sft", [*runnable["sft"], "model.fsdp_config.mixed_precision.reduce_dtype=bf16"]).notices
    assert any("nothing to shard" in notice for notice in sharding)
    partly = load("sft", [*runnable["sft"], "trainer.save_freq=5", "trainer.checkpoint.save_contents=[model]"]).notices
    assert any("trainer.checkpoint leaves out optimizer, extra" in notice for notice in partly)
    assert any("prompt_key" in notice for notice in load("eval", [*runnable["eval"], "data.prompt_key=q"]).notices)


def test_a_plain_run_has_nothing_to_say(runnable: Runnable) -> None:
    plain = [f"{ACTOR}.use_torch_compile=False", "actor_rollout_ref.model.override_config.attn_implementation=sdpa"]
    assert load("ppo", [*runnable["ppo"], *plain, "trainer.save_freq=5"]).notices == []
    unsaved = [f"{ACTOR}.checkpoint.save_contents=[model]", "trainer.resume_mode=disable"]
    assert load("ppo", [*runnable["ppo"], *plain, *unsaved, "trainer.save_freq=5"]).notices == []


def test_roles_exist_when_they_are_needed(runnable: Runnable) -> None:
    plain = load("ppo", runnable["ppo"]).config
    assert plain.trains_critic and not plain.needs_reference
    argv = [*runnable["ppo"], "algorithm.adv_estimator=grpo", f"{ACTOR}.use_kl_loss=True"]
    grpo = load("ppo", argv).config
    assert not grpo.trains_critic and grpo.needs_reference


def test_files_in_the_home_folder_are_found(
    runnable: Runnable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    load("ppo", [*runnable["ppo"], "data.train_files=~/rows.parquet"])


def test_a_hub_name_is_not_looked_for_on_disk(runnable: Runnable) -> None:
    load("ppo", [*runnable["ppo"], "actor_rollout_ref.model.path=owner/name-1.5B"])


@pytest.mark.parametrize(
    ("size", "strategy", "said"),
    [(2, "fsdp2", None), (1, "fsdp2", None), (-1, "fsdp", None), (3, "fsdp2", "3 does not divide the 4"),
     (0, "fsdp", "0 does not divide"), (1, "fsdp", "1 with strategy fsdp")],
)  # fmt: skip
def test_shard_groups_divide_the_ranks(
    runnable: dict[str, list[str]], size: int, strategy: str, said: str | None
) -> None:
    actor = "actor_rollout_ref.actor"
    keys = [f"{actor}.fsdp_config.fsdp_size={size}", f"{actor}.strategy={strategy}", "critic.strategy=fsdp2"]
    load("ppo", [*runnable["ppo"], *keys])  # one rank shards nothing
    argv = [*runnable["ppo"], *keys, "trainer.n_gpus_per_node=4"]
    if said is None:
        load("ppo", argv)
    else:
        with pytest.raises(ConfigError, match=said):
            load("ppo", argv)


def test_fine_tuning_shards_by_the_same_rules(runnable: Runnable) -> None:
    four = [*runnable["sft"], "trainer.n_gpus_per_node=4"]
    assert [p.key for p in problems_of([*four, "model.fsdp_config.fsdp_size=3"], "sft")] == [
        "model.fsdp_config.fsdp_size"
    ]
    replicated = [*four, "model.fsdp_config.fsdp_size=1"]
    assert load("sft", replicated).config.ranks == 4
    assert "wrong gradients" in problems_of([*replicated, "model.strategy=fsdp"], "sft")[0].wrong


@pytest.mark.parametrize(
    ("command", "overrides", "words"),
    [
        ("sft", ["model.strategy=fsdp"], "nothing to shard or to balance, so nothing is left to do for model.strategy"),
        ("sft", ["trainer.n_gpus_per_node=4", "data.train_batch_size=3"], "3 leaves some of the 4 ranks without work"),
        ("generate", ["ray_init.num_cpus=4"], "ray_init.num_cpus"),
        ("generate", ["trainer.n_gpus_per_node=8", "data.batch_size=3", "data.n_samples=2"], "6 leaves some of the 8"),
    ],
)
def test_ranks_and_keys_without_work_are_named(
    runnable: Runnable, command: str, overrides: list[str], words: str
) -> None:
    assert any(words in notice for notice in load(command, [*runnable[command], *overrides]).notices)


def test_a_cluster_may_have_the_gpu_that_this_machine_lacks(runnable: Runnable) -> None:
    argv = [*runnable["ppo"], f"{ACTOR}.use_torch_compile=True", "trainer.n_gpus_per_node=2"]
    assert any("acts on a GPU only" in notice for notice in load("ppo", [*argv, "trainer.device=cpu"]).notices)
    joined = load("ppo", [*argv, "ray_init.address=auto"]).notices
    assert not any("acts on a GPU only" in notice for notice in joined)


@pytest.mark.parametrize("command", ["ppo", "sft", "generate"])
def test_a_timeline_must_have_a_place(runnable: Runnable, command: str, tmp_path: Path) -> None:
    argv = [*runnable[command], "trainer.n_gpus_per_node=2", f"ray_init.timeline_json_file={tmp_path}"]
    assert [p.key for p in problems_of(argv, command)] == ["ray_init.timeline_json_file"]


def test_several_ranks_have_something_to_shard(runnable: dict[str, list[str]]) -> None:
    argv = ["trainer.n_gpus_per_node=2", f"{ACTOR}.fsdp_config.reshard_after_forward=False", "ray_init.num_cpus=2"]
    assert not any("nothing to shard" in notice for notice in load("ppo", [*runnable["ppo"], *argv]).notices)


@pytest.mark.parametrize("batch", [10**12 + 1, 2**63 - 1])
def test_an_absurd_batch_size_is_answered_at_once(runnable: Runnable, batch: int) -> None:
    (problem,) = problems_of([*runnable["ppo"], f"data.train_batch_size={batch}"])
    minis = problem.fix.split(f"{ACTOR}.ppo_mini_batch_size=")[1].split(" or ")
    assert all(batch % int(mini) == 0 for mini in minis)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.train_batch_size=99999999999999999999", "below 2**63"),
        ("trainer.seed=1e30", "below 2**63"),
        ("data.seed=1e30", "below 2**63"),
        (f"{ACTOR}.data_loader_seed=-1", "an integer >= 0"),
        ("data.train_files=[]", "is empty"),
        ("data.val_files=[]", "or null"),
        ("data.train_files=[rows.parquet,'']", "has an empty entry"),
        ("data.prompt_key=''", "is empty"),
        ("actor_rollout_ref.model.path=''", "is empty"),
        ("data.train_max_samples=0", "leaves no row"),
        ("data.val_max_samples=0", "leaves no row"),
        ("trainer.default_local_dir=/proc/foo", "cannot be written"),
    ],
)
def test_a_value_that_could_only_fail_later_is_refused(runnable: Runnable, override: str, words: str) -> None:
    (problem,) = problems_of([*runnable["ppo"], override])
    assert problem.key == override.partition("=")[0]
    assert words in str(problem)


def test_the_largest_seed_is_accepted(runnable: Runnable) -> None:
    assert load("ppo", [*runnable["ppo"], f"trainer.seed={2**63 - 1}"]).config.trainer.seed == 2**63 - 1


def test_the_metric_of_groups_is_one_that_the_reward_function_can_return(runnable: Runnable) -> None:
    filtered = [*runnable["ppo"], "algorithm.filter_groups.enable=True", f"{ROLLOUT}.n=2"]
    foreign = [*filtered, "algorithm.filter_groups.metric=acc"]
    (problem,) = problems_of(foreign)
    assert problem.key == "algorithm.filter_groups.metric" and "seq_reward" in problem.expected
    load("ppo", [*foreign, f"custom_reward_function.path={__file__}"])  # its keys are not known before it runs


def test_liger_is_refused_on_a_cpu(runnable: Runnable) -> None:
    (problem,) = problems_of([*runnable["sft"], "model.use_liger=True", "trainer.device=cpu"], "sft")
    assert problem.key == "model.use_liger"


@pytest.mark.parametrize("part", ["", "/actor"])
def test_a_checkpoint_in_place_of_a_model_says_where_the_model_is(
    runnable: Runnable, tmp_path: Path, part: str
) -> None:
    step = tmp_path / "run" / "global_step_2"
    (step / "actor").mkdir(parents=True)
    argv = [*runnable["generate"], f"model.path={step}{part}"]
    (problem,) = problems_of(argv, "generate")
    assert problem.key == "model.path" and "save with hf_model in checkpoint.save_contents" in problem.fix
    (step / "actor" / "huggingface").mkdir()
    (problem,) = problems_of(argv, "generate")
    assert problem.fix == f"set model.path={step}/actor/huggingface"
