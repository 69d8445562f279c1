"""`data`: where the prompts of an RL run come from and how long they may be."""

from __future__ import annotations

from typing import Literal

from .base import Node, key, node

Truncation = Literal["error", "left", "right", "middle"]


class CustomClassConfig(Node):
    """A class in a Python file of the user's."""

    path: str | None = key(None, "Python file that defines the class; null uses the built-in one.")
    name: str | None = key(None, "Name of the class in that file.")


class DataConfig(Node):
    """Prompts for training and validation."""

    tokenizer: str | None = key(None, "Folder or hub name of the tokenizer; null takes the model's own.")
    use_shm: bool = key(False, "Copy the data set into shared memory before reading it.")
    train_files: str | list[str] = key(
        "~/data/rlhf/gsm8k/train.parquet",
        "Training prompts: one file or a list of parquet, json or jsonl files.",
        min_length=1,
    )
    val_files: str | list[str] | None = key(
        "~/data/rlhf/gsm8k/test.parquet",
        "Validation prompts: one file or a list; null validates nothing.",
        min_length=1,
    )
    train_max_samples: int = key(-1, "Rows of the training set to use; -1 uses all of them.", ge=-1)
    val_max_samples: int = key(-1, "Rows of the validation set to use; -1 uses all of them.", ge=-1)
    prompt_key: str = key("prompt", "Column with the prompt: a list of {role, content} messages, or text.")
    reward_fn_key: str = key("data_source", "Column whose value chooses the reward function of a row.")
    image_key: str = key("images", "Column with the images of a row.")
    video_key: str = key("videos", "Column with the videos of a row.")
    max_prompt_length: int = key(512, "Longest prompt in tokens, after the chat template.", ge=1)
    max_response_length: int = key(512, "Longest response in tokens; generation stops there.", ge=1)
    train_batch_size: int = key(1024, "Prompts sampled per training step, over all ranks.", ge=1)
    val_batch_size: int | None = key(None, "Prompts per validation batch; null takes the whole set.", ge=1)
    return_raw_input_ids: bool = key(
        False, "Also return prompt ids without the chat template, for a reward model with another tokenizer."
    )
    return_raw_chat: bool = key(
        False, "Also return the messages as they were before the chat template: agents have them in any case."
    )
    return_full_prompt: bool = key(False, "Also return the prompt text after the chat template.")
    shuffle: bool = key(True, "Draw training prompts in random order, from `seed` alone.")
    validation_shuffle: bool = key(False, "Draw validation prompts in random order.")
    seed: int = key(42, "Seed of the order of prompts and of the choice made by train_max_samples.", ge=0)
    filter_overlong_prompts: bool = key(False, "Drop prompts longer than max_prompt_length and log how many.")
    filter_overlong_prompts_workers: int = key(1, "Processes that measure prompt lengths.", ge=1)
    truncation: Truncation = key(
        "error",
        "What to do with a prompt longer than max_prompt_length: error stops, left keeps the last tokens, right the "
        "first, middle the first and last halves.",
    )
    trust_remote_code: bool = key(True, "Let the tokenizer run Python code that comes with it.")
    custom_cls: CustomClassConfig = node(CustomClassConfig, "A data set class of your own.")
