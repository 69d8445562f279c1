"""`actor_rollout_ref.rollout`: the engine that generates, and how it samples."""

from __future__ import annotations

from typing import Any, Literal

from .base import BLANKS, Node, OpenNode, key, node, ref

ACTOR = "actor_rollout_ref.actor"
EngineName = Literal["hf", "vllm", "sglang"]
EngineDtype = Literal["auto", "bfloat16", "float16", "float32"]
CallFormat = Literal["auto", "hermes", "qwen3_coder", "llama3_json", "gpt-oss", "glm"]
LoadFormat = Literal[
    "auto", "hf", "dtensor", "megatron", "safetensors", "dummy", "dummy_hf", "dummy_dtensor", "dummy_megatron"
]


class SamplingKeys(Node):
    """How the next token is drawn."""

    temperature: float = key(1.0, "Divides the logits before sampling; 0 takes the most likely token.", ge=0)
    top_k: int = key(-1, "Sample among the k most likely tokens; -1 or 0 samples among all.", ge=-1)
    top_p: float = key(1.0, "Sample among the most likely tokens that hold this probability; 1 is all.", gt=0, le=1)
    min_p: float = key(0.0, "Drop tokens less likely than this share of the most likely one; 0 drops none.", ge=0, le=1)
    n: int = key(1, "Responses per prompt.", ge=1)
    do_sample: bool = key(True, "Sample; false takes the most likely token every time.")


class ValKwargs(SamplingKeys):
    """How validation samples."""


class SglangKwargs(OpenNode):
    """Arguments for SGLang's engine; any of its own names."""

    attention_backend: str | None = key(None, "Attention kernels of SGLang; null lets it choose.")


class EngineKwargs(Node):
    """Arguments handed to the inference engine as they are."""

    vllm: dict[str, Any] = key({}, "Arguments for vLLM's engine; any of its own names.")
    sglang: SglangKwargs = node(SglangKwargs)


class MultiTurnConfig(Node):
    """Conversations with tools and simulated users."""

    enable: bool = key(False, "Let the model call tools and go on, and let a simulated user answer it.")
    max_turns: int | None = key(None, "Most turns of the model in one trajectory; null is max_model_len // 3.", ge=1)
    tool_config_path: str | None = key(None, "YAML file that lists the tools.")
    interaction_config_path: str | None = key(None, "YAML file that lists the simulated users.")
    format: CallFormat = key("auto", "How the model writes calls; auto takes what its chat template is written for.")
    completion_callback: str | None = key(
        None,
        "Function called with the row and the messages after each turn: FILE.py:NAME or package.module.NAME.",
    )
    use_inference_chat_template: bool = key(
        False,
        "Continue from the conversation as the chat template renders it at inference; earlier turns that it changes "
        "(reasoning left out, for example) are then context and not trained. False keeps all tokens as sampled.",
    )
    enable_tokenization_sanity_check: bool = key(
        True, "Compare the ids that grew turn by turn with those of the whole conversation, and say where they part."
    )
    max_parallel_calls: int | None = key(None, "Most calls of one turn, which run at once; null is any number.", ge=1)
    tool_timeout: float = key(60.0, "Seconds that a call of a tool, an interaction or the callback may take.", gt=0)
    max_tool_response_length: int = key(256, "Longest answer of a tool, in characters; more is cut, with a mark.", ge=1)
    tool_response_truncate_side: Literal["left", "middle", "right"] = key("middle", "Where a longer answer is cut.")


class CustomServer(Node):
    """A class of the user's that generates in place of the engine that `rollout.name` names."""

    path: str | None = key(None, "Python file that defines the class; null leaves generation to rollout.name.")
    name: str | None = key(None, "Name of the class in that file.")


class AgentKeys(Node):
    """What happens between a prompt and a finished trajectory."""

    default_agent_loop: str = key(
        "single_turn", "Agent that runs rows without an agent_name of their own; tools with multi_turn.enable."
    )
    agent_loop_path: str | None = key(None, "Python file that registers more agents.")


class AgentConfig(AgentKeys):
    """What happens between a prompt and a finished trajectory."""

    custom_async_server: CustomServer = node(CustomServer)


class RolloutConfig(SamplingKeys):
    """Generation of trajectories during training."""

    name: EngineName = key("vllm", "Engine that generates; hf is hone's own, in the trainer's process.")
    mode: Literal["async", "sync"] = key("async", "Whether trajectories are taken as they finish or all at once.")
    prompt_length: int = key(ref("data.max_prompt_length"), "Longest prompt in tokens.", ge=1)
    response_length: int = key(ref("data.max_response_length"), "Longest response in tokens.", ge=1)
    dtype: EngineDtype = key("bfloat16", "Format of the engine's weights; should be that of the trained model.")
    gpu_memory_utilization: float = key(
        0.5, "Share of the GPU's memory (CPU: the machine's, for all its ranks) for vLLM, SGLang.", gt=0, le=1
    )
    ignore_eos: bool = key(False, "Go on after the end token, up to response_length.")
    enforce_eager: bool = key(True, "Do not capture CUDA graphs.")
    free_cache_engine: bool = key(True, "Free the KV cache while training.")
    load_format: LoadFormat = key(
        "dummy_dtensor",
        "What vLLM or SGLang begins with until the trainer's weights come: random ones (dummy_*), or the model's files "
        "(others).",
    )
    tensor_model_parallel_size: int = key(2, "Ranks of a machine that share one engine, each a part of it.", ge=1)
    max_model_len: int | None = key(None, "Longest prompt plus response; null takes the sum of both lengths.", ge=1)
    max_num_batched_tokens: int = key(8192, "Most tokens in one forward pass of the engine.", ge=1)
    max_num_seqs: int = key(1024, "Most sequences generated at once.", ge=1)
    enable_chunked_prefill: bool = key(True, "Split long prompts over several forward passes.")
    disable_log_stats: bool = key(True, "Keep the engine's own statistics out of the log.")
    log_prob_micro_batch_size: int | None = key(None, "Deprecated: trajectories per pass over all ranks.", ge=1)
    log_prob_micro_batch_size_per_gpu: int = key(16, "Trajectories per pass when old log-probs are computed.", ge=1)
    log_prob_use_dynamic_bsz: bool = key(ref(f"{ACTOR}.use_dynamic_bsz"), "Fill those micro-batches by tokens.")
    log_prob_max_token_len_per_gpu: int = key(
        ref(f"{ACTOR}.ppo_max_token_len_per_gpu"), "Most tokens in one of those micro-batches.", ge=1
    )
    repetition_penalty: float = key(1.0, "Divides the logits of tokens that were seen; 1 changes nothing.", gt=0)
    stop: list[str] = key(
        [], "Texts that end a response: with the first token after which it contains one.", json_schema_extra=BLANKS
    )
    stop_token_ids: list[int] = key([], "Token ids that end a response, next to the end token.")
    use_fire_sampling: bool = key(
        False, "Training: draw the first token of a response at fire_temperature, from the whole vocabulary (FIRE)."
    )
    fire_temperature: float = key(30.0, "Temperature of that first token.", gt=0)
    calculate_log_probs: bool = key(False, "Keep the sampler's own log-probs, for diagnostics and rollout_is.")
    verify_weights: Literal["first", "always", "never"] = key(
        "first",
        "After which weight hand-overs the log-probs of an engine with weights of its own are compared with the "
        "trainer's; first: those it begins with and those of the first update.",
    )
    engine_kwargs: EngineKwargs = node(EngineKwargs)
    val_kwargs: ValKwargs = node(ValKwargs, temperature=0.0, do_sample=False)
    multi_turn: MultiTurnConfig = node(MultiTurnConfig)
    agent: AgentConfig = node(AgentConfig)

    @property
    def engine(self) -> str:
        """What generates: the engine of `name`, or a class of the user's (`custom`)."""
        return self.name if self.agent.custom_async_server.path is None else "custom"
