"""The reference policy of a run that trains an adapter: the policy's own model, with the adapter set aside."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hone.models.lora import Adapter


class AsAtStart(nn.Module):
    """What a module gave before its adapter was trained, from the same weights and without gradients."""

    def __init__(self, module: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.module = module
        self.adapter = adapter

    def forward(self, *arguments: Any) -> Any:
        training = self.module.training
        self.module.eval()  # a reference draws no dropout, in the midst of an update either
        try:
            with torch.no_grad(), self.adapter.as_at_start():
                return self.module(*arguments)
        finally:
            self.module.train(training)
