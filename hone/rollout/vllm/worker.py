"""What hone adds to vLLM's worker, in the process that holds the weights: methods that the engine calls by name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

from hone.rollout.hand_over import Layout, read


class WeightReceiver:
    """Mixed into vLLM's worker, whose attributes it uses.

    vLLM keeps some weights in another form than a checkpoint's (packed for the CPU's kernels, fused): a hand-over loads
    layer by layer into the checkpoint's form, and each layer is processed anew once all its weights have come.
    """

    vllm_config: Any
    model_runner: Any

    def hone_begin_weights(self) -> None:
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(self._model)

    def hone_load_weights(self, path: str, layout: Layout) -> None:
        with set_current_vllm_config(self.vllm_config):
            self._model.load_weights(read(path, layout))

    def hone_finish_weights(self) -> None:
        with set_current_vllm_config(self.vllm_config), _quiet_about_heads():
            finalize_layerwise_reload(self._model, self.vllm_config.model_config)
            _process_tied_heads(self._model)

    @property
    def _model(self) -> Any:
        return self.model_runner.get_model()


@contextmanager
def _quiet_about_heads() -> Iterator[None]:
    """vLLM warns that a tied head was handed no weights. Whether heads are right, a comparison of log-probs says."""
    logger = logging.getLogger(finalize_layerwise_reload.__module__)

    def of_others(record: logging.LogRecord) -> bool:
        return ParallelLMHead.__name__ not in record.getMessage()

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


def _process_tied_heads(model: nn.Module) -> None:
    """A head that shares the embedding's weight loads none itself, so that the form it computes with stayed the old."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
