"""LoRA through peft: a frozen model around whose linear layers adapters are trained, W x + (alpha / r) B A x.

Hu et al. 2021, https://arxiv.org/abs/2106.09685, equation 3. The model itself stays what it is, with other layers
inside, so that whatever runs a model runs this one. Nothing else in hone knows peft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hone.config.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter_config
from hone.errors import UserError
from hone.models.lora_targets import Choice, check_layer, linear_layers, short_names, target_layers

TRAINED, START = "default", "start"  # names of peft's adapters in a layer
BASE = ".base_layer."  # where peft keeps the layer that it puts an adapter around
PEFT_PREFIX = "base_model.model."  # of every name in the files of an adapter


@dataclass(frozen=True)
class LoraSettings:
    """A new adapter of this rank, scale and choice of layers, or a trained one at `path`, which brings its own.

    section: where the user finds the keys
    """

    rank: int
    alpha: float
    targets: Choice
    excluded: Choice | None = None
    path: str | None = None
    section: str = "actor_rollout_ref.model"


class Adapter:
    """The adapter of a model: which of its weights are trained, and how they stand beside the frozen ones.

    head: name of a head that is trained whole, as part of the adapter
    """

    def __init__(self, model: PreTrainedModel, config: Any, layers: list[str], head: str | None) -> None:
        self.config = config
        self.layers: dict[str, Any] = {name: model.get_submodule(name) for name in layers}
        self.has_start = any(START in layer.lora_A for layer in self.layers.values())
        self._freeze(model, head)
        self.shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}

    def _freeze(self, model: PreTrainedModel, head: str | None) -> None:
        """What is trained is kept in fp32, whatever the format of the model: steps too small for bf16 would be lost."""
        model.requires_grad_(False)
        for layer in self.layers.values():
            for matrices in (layer.lora_A, layer.lora_B):
                matrices.float()
                matrices[TRAINED].requires_grad_(True)
        if head is not None:
            model.get_submodule(head).requires_grad_(True)

    @contextmanager
    def as_at_start(self) -> Iterator[None]:
        """The model as it was when the run began: without its adapter, or with the trained one it began with.

        peft's own switches also change `requires_grad`, which a sharded model does not bear.
        """
        for layer in self.layers.values():
            layer._disable_adapters, layer._active_adapter = not self.has_start, START
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer._disable_adapters, layer._active_adapter = False, TRAINED

    def merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a plain model that computes the same, under Hugging Face names, from the whole weights of the
        model with its adapter. W + (alpha / r) B A is computed in fp32 and rounded once, to the format of W."""
        plain: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            layer, inside, part = name.partition(BASE)
            if inside and part == "weight":
                plain[f"{layer}.{part}"] = (tensor.float() + self._product(layer, weights)).to(tensor.dtype)
            elif inside:
                plain[f"{layer}.{part}"] = tensor
            elif ".lora_A." not in name and ".lora_B." not in name:
                plain[name] = tensor
        return plain

    def _product(self, name: str, weights: Mapping[str, Tensor]) -> Tensor:
        a, b = (weights[f"{name}.{matrix}.{TRAINED}.weight"].float() for matrix in ("lora_A", "lora_B"))
        layer = self.layers[name]
        product = layer.scaling[TRAINED] * (b @ a)
        return product.T if layer.fan_in_fan_out else product

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the trained weights, given whole and by name, as peft writes an adapter."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({_peft_name(name): weights[name].contiguous() for name in self.shapes}, folder / ADAPTER_WEIGHTS)
        self.config.save_pretrained(str(folder))

    def load(self, folder: Path) -> dict[str, Tensor]:
        """The trained weights that `save` wrote. Raises UserError when they are those of another adapter."""
        saved = _read_config(folder)
        for field in ("r", "lora_alpha", "use_rslora", "alpha_pattern"):
            ours, theirs = getattr(self.config, field), saved.get(field)
            if ours != theirs:
                raise UserError(f"{folder} holds an adapter with {field}={theirs}, and this run's has {field}={ours}")
        return self.checked(_read_weights(folder), folder)

    def checked(self, weights: dict[str, Tensor], folder: Path, *, may_lack: str | None = None) -> dict[str, Tensor]:
        """The same if they have exactly the names and shapes of this adapter's, but for the head `may_lack`."""
        found = {name: tensor.shape for name, tensor in weights.items()}
        lacking = {name for name in self.shapes if may_lack and _of(name, may_lack)} - found.keys()
        expected = {name: shape for name, shape in self.shapes.items() if name not in lacking}
        if apart := {name for name, _ in found.items() ^ expected.items()}:
            raise UserError(f"{folder} holds the adapter of another model: {min(apart)!r} is not the same in both")
        return weights


def attach(
    model: PreTrainedModel, settings: LoraSettings, *, head: str | None = None, keep_start: bool = False
) -> Adapter:
    """Freezes the model and puts adapters around its layers, in place; random numbers come from torch's generator.

    head:       name of a head that is trained too
    keep_start: keep what a trained adapter was at the start, for `Adapter.as_at_start`
    """
    path = None if settings.path is None else Path(settings.path).expanduser()
    if path is None:
        layers = target_layers(model, settings.targets, settings.excluded, settings.section)
        return _injected(model, _fields(model, layers, settings), layers, head, [TRAINED])
    weights, key = _read_weights(path), f"{settings.section}.lora_adapter_path"
    layers = [n for n, _ in model.named_modules() if f"{n}.lora_A.{TRAINED}.weight" in weights]
    known = linear_layers(model)
    for name in layers:
        check_layer(name, known, key)
    if not layers:
        raise UserError(f"{key}: {path} holds an adapter for none of this model's layers")
    fields = _fields(model, layers, settings) | _of_trained(path)
    adapter = _injected(model, fields, layers, head, [TRAINED, START] if keep_start else [TRAINED])
    _fill(model, adapter.checked(weights, path, may_lack=head))
    return adapter


def _injected(
    model: PreTrainedModel, fields: dict[str, Any], layers: list[str], head: str | None, names: list[str]
) -> Adapter:
    peft = _peft()
    for name in names:
        peft.inject_adapter_in_model(peft.LoraConfig(**fields), model, adapter_name=name)
        del model.peft_config  # by which peft would take the next one for a mistake
    told = {
        "base_model_name_or_path": model.config.name_or_path,
        "inference_mode": True,
        "modules_to_save": None if head is None else [head],
        "task_type": "CAUSAL_LM" if head is None else "TOKEN_CLS",
    }
    config = peft.LoraConfig(**fields, **told)
    config.target_modules = fields["target_modules"]  # peft makes it a set, without an order
    adapter = Adapter(model, config, layers, head)
    for layer in adapter.layers.values():
        layer._active_adapter = TRAINED
    return adapter


def _fields(model: PreTrainedModel, layers: list[str], settings: LoraSettings) -> dict[str, Any]:
    """What peft's configuration says of the computation."""
    alpha = settings.alpha
    return {
        "r": settings.rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "target_modules": short_names(model, layers),
        "fan_in_fan_out": any(isinstance(model.get_submodule(name), Conv1D) for name in layers),
    }


def _of_trained(folder: Path) -> dict[str, Any]:
    """What a trained adapter says of its own computation. Its dropout is left out: log-probs would be noise."""
    saved = _read_config(folder)
    names = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    return {name: saved[name] for name in names if saved.get(name) is not None}


def _fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    start = {name.replace(f".{TRAINED}.", f".{START}."): tensor for name, tensor in weights.items()}
    own = dict(model.named_parameters())
    for name, tensor in {**start, **weights}.items():
        if name in own:
            own[name].data.copy_(tensor)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return read_adapter_config(folder)
    except (ValueError, OSError) as error:
        raise UserError(f"{folder / ADAPTER_CONFIG} cannot be gone on from: {error}") from error


def _read_weights(folder: Path) -> dict[str, Tensor]:
    try:
        saved = load_file(folder / ADAPTER_WEIGHTS)
    except (SafetensorError, FileNotFoundError) as error:
        raise UserError(f"{folder / ADAPTER_WEIGHTS} is damaged or not there: {error}") from error
    return {_own_name(name): tensor for name, tensor in saved.items()}


def _peft_name(name: str) -> str:
    return PEFT_PREFIX + name.replace(f".{TRAINED}.", ".")


def _own_name(name: str) -> str:
    name = name.removeprefix(PEFT_PREFIX)
    for matrix in ("lora_A", "lora_B"):
        name = name.replace(f".{matrix}.", f".{matrix}.{TRAINED}.")
    return name


def _of(name: str, module: str) -> bool:
    return name.startswith(f"{module}.")


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise UserError('adapters are made by peft, which is not installed: pip install "hone-rl[lora]"') from error
    return peft
