"""The roots of `hone generate` (responses for a file of prompts) and `hone eval` (scores for a file of responses)."""

from __future__ import annotations

from .base import BLANKS, Node, key, node, ref
from .model import OverrideConfig
from .reward import CustomRewardFunction
from .rollout import AgentKeys, EngineDtype, EngineName, MultiTurnConfig
from .trainer import Device, RayInitConfig, rank_timeout


class GenerationTrainerConfig(Node):
    """Processes and devices."""

    nnodes: int = key(1, "Machines.", ge=1)
    n_gpus_per_node: int = key(1, "Ranks on each machine.", ge=1)
    device: Device = key("auto", "Where the model runs; auto takes a GPU if there is one.")
    seed: int = key(0, "Seed of sampling.", ge=0)
    ray_wait_register_center_timeout: int = rank_timeout()


class GenerationDataConfig(Node):
    """Prompts in, responses out."""

    path: str = key("~/data/rlhf/math/test.parquet", "Parquet, json or jsonl file with the prompts.")
    prompt_key: str = key("prompt", "Column with the prompt: a list of {role, content} messages, or text.")
    n_samples: int = key(1, "Responses per prompt.", ge=1)
    output_path: str = key(
        "~/data/rlhf/math/generated.parquet",
        "File for the rows with a `responses` column added; rows that are done before a run fails stay beside it.",
    )
    batch_size: int | None = key(
        None, "Prompts in flight at once, over all ranks; null hands all of them to the engines.", ge=1
    )
    max_samples: int = key(-1, "Rows to use; -1 uses all of them.", ge=-1)
    trust_remote_code: bool = key(ref("model.trust_remote_code"), "Let the tokenizer run code that comes with it.")


class GenerationModelConfig(Node):
    """The model that answers."""

    path: str = key("~/models/Qwen2-7B-Instruct", "Folder or hub name of the Hugging Face model.")
    external_lib: str | None = key(None, "Python package to import before loading the model.")
    trust_remote_code: bool = key(False, "Let the model run Python code that comes with it.")
    override_config: OverrideConfig = node(OverrideConfig)


class GenerationRolloutConfig(Node):
    """The engine and how it samples."""

    name: EngineName = key("hf", "Engine that generates; hf is hone's own, in the rank's process.")
    temperature: float = key(1.0, "Divides the logits before sampling; 0 takes the most likely token.", ge=0)
    top_k: int = key(-1, "Sample among the k most likely tokens; -1 or 0 samples among all.", ge=-1)
    top_p: float = key(1.0, "Sample among the most likely tokens that hold this probability; 1 is all.", gt=0, le=1)
    do_sample: bool = key(True, "Sample; false takes the most likely token every time.")
    prompt_length: int = key(512, "Longest prompt in tokens.", ge=1)
    response_length: int = key(512, "Longest response in tokens.", ge=1)
    dtype: EngineDtype = key("bfloat16", "Format of the engine's weights.")
    gpu_memory_utilization: float = key(
        0.5, "Share of the GPU's memory (CPU: the machine's, for all its ranks) for vLLM, SGLang.", gt=0, le=1
    )
    enforce_eager: bool = key(True, "Do not let vLLM or SGLang capture CUDA graphs.")
    tensor_model_parallel_size: int = key(1, "Ranks of a machine that share one engine, each a part of it.", ge=1)
    max_num_seqs: int = key(1024, "Most sequences that a rank generates at once.", ge=1)
    max_num_batched_tokens: int = key(8192, "Most tokens in one forward pass of a rank's engine.", ge=1)
    max_model_len: int | None = key(None, "Longest prompt plus response; null takes the sum of both lengths.", ge=1)
    ignore_eos: bool = key(False, "Go on after the end token, up to response_length.")
    stop: list[str] = key(
        [], "Texts that end a response: with the first token after which it contains one.", json_schema_extra=BLANKS
    )
    multi_turn: MultiTurnConfig = node(MultiTurnConfig)
    agent: AgentKeys = node(AgentKeys)


class GenerationConfig(Node):
    """Generation for a file of prompts."""

    trainer: GenerationTrainerConfig = node(GenerationTrainerConfig)
    data: GenerationDataConfig = node(GenerationDataConfig)
    model: GenerationModelConfig = node(GenerationModelConfig)
    rollout: GenerationRolloutConfig = node(GenerationRolloutConfig)
    ray_init: RayInitConfig = node(RayInitConfig)

    @property
    def ranks(self) -> int:
        return self.trainer.nnodes * self.trainer.n_gpus_per_node


class EvaluationDataConfig(Node):
    """A file of responses."""

    path: str = key("/tmp/math_Qwen2-7B-Instruct.parquet", "Parquet, json or jsonl file with responses.")
    prompt_key: str = key("prompt", "Column with the prompt.")
    response_key: str = key("responses", "Column with the list of responses.")
    data_source_key: str = key("data_source", "Column that chooses the reward function and groups the metrics.")
    reward_model_key: str = key("reward_model", "Column that holds the ground truth.")


class EvaluationConfig(Node):
    """Scores for a file of responses."""

    data: EvaluationDataConfig = node(EvaluationDataConfig)
    custom_reward_function: CustomRewardFunction = node(CustomRewardFunction)
    output_path: str | None = key(None, "JSON file for the metrics; null only prints them.")
