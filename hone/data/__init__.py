"""Data: rows of files, prompts and demonstrations rendered by a chat template, their order, preparation recipes."""

from hone.data.files import Rows, read_rows
from hone.data.order import BatchOrder, epoch_order
from hone.data.prompts import PromptDataset, Sample
from hone.data.sft import SFTDataset, SFTSample

__all__ = ["BatchOrder", "PromptDataset", "Rows", "SFTDataset", "SFTSample", "Sample", "epoch_order", "read_rows"]
