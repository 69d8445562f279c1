"""`model` sections: which Hugging Face model is trained and how its layers run."""

from __future__ import annotations

from typing import Any, Literal

from .base import Node, OpenNode, key, node, ref


class MoeConfig(Node):
    """Mixture-of-experts models."""

    freeze_moe_router: bool = key(False, "Keep the weights fixed that choose a token's experts.")


class OverrideConfig(OpenNode):
    """Changes to the model's own configuration; any other key is an attribute of that configuration."""

    attn_implementation: Literal["flash_attention_2", "sdpa", "eager"] = key(
        "flash_attention_2", "How attention is computed; all of them give the same result."
    )
    hf_config: dict[str, Any] = key({}, "Attributes of the Hugging Face configuration to change.", alias="model_config")
    moe_config: MoeConfig = node(MoeConfig, "Mixture-of-experts models.")

    @property
    def hf_overrides(self) -> dict[str, Any]:
        """All attributes of the Hugging Face configuration that the user wants changed."""
        return {**(self.model_extra or {}), **self.hf_config}


class FusedKernelOptions(Node):
    """Only read when use_fused_kernels is on."""

    impl_backend: Literal["torch", "triton"] = key("torch", "What computes log-probs and entropy from hidden states.")


class LoraKeys(Node):
    """Low-rank adapters: the model's own weights stay as they are, and B A x * lora_alpha / lora_rank is added."""

    lora_rank: int = key(0, "Rank of the LoRA adapters; 0 trains all weights.", ge=0)
    lora_alpha: float = key(16, "Scale of the LoRA adapters: their output counts lora_alpha / lora_rank times.", gt=0)
    target_modules: str | list[str] = key(
        "all-linear",
        "Layers that get an adapter: all-linear (all but the output head), names (a list, or text with commas between "
        "them), or a regular expression for the whole name of a layer.",
    )

    @property
    def trains_adapter(self) -> bool:
        """Whether an adapter is trained in place of the model's weights."""
        return self.lora_rank > 0


class TrainedModelKeys(LoraKeys):
    """What the models of actor and critic share."""

    external_lib: str | None = key(None, "Python package to import before loading, to register models with it.")
    override_config: OverrideConfig = node(OverrideConfig)
    enable_gradient_checkpointing: bool = key(False, "Recompute activations in the backward pass to save memory.")
    enable_activation_offload: bool = key(False, "Keep activations in CPU memory between forward and backward.")
    trust_remote_code: bool = key(False, "Let the model run Python code that comes with it.")
    use_remove_padding: bool = key(False, "Pack sequences end to end instead of padding them to one length.")
    use_shm: bool = key(False, "Copy the model's files into shared memory before loading them.")
    exclude_modules: str | list[str] | None = key(
        None, "Of the layers of target_modules those that get no adapter, named in the same ways."
    )
    lora_adapter_path: str | None = key(
        None, "Folder of a trained adapter to go on from; it brings its own rank, scale and layers."
    )

    @property
    def trains_adapter(self) -> bool:
        return self.lora_rank > 0 or self.lora_adapter_path is not None


class ActorModelConfig(TrainedModelKeys):
    """The model that is trained; rollout and reference start from the same weights."""

    path: str = key("~/models/deepseek-llm-7b-chat", "Folder or hub name of the Hugging Face model to train.")
    use_liger: bool = key(False, "Replace layers by Liger kernels.")
    use_fused_kernels: bool = key(
        False, "Compute log-probs and entropy from hidden states in chunks, without a [tokens, vocab] tensor."
    )
    fused_kernel_options: FusedKernelOptions = node(FusedKernelOptions)


class ScoringModelKeys(Node):
    """Loading options of a model that only scores."""

    trust_remote_code: bool = key(False, "Let the model run Python code that comes with it.")
    use_remove_padding: bool = key(False, "Pack sequences end to end instead of padding them to one length.")
    use_fused_kernels: bool = key(False, "Use fused kernels in the forward pass.")
    use_shm: bool = key(False, "Copy the model's files into shared memory before loading them.")
    external_lib: str | None = key(
        ref("actor_rollout_ref.model.external_lib"), "Python package to import before loading the model."
    )
