"""Tokenizers with small chat templates in the manner of four families of models, and an engine that plays a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hone.data.prompts import Sample
from hone.rollout.interface import Completion, Sampling

# Tools in the system turn, calls as JSON between tags, answers of tools in a turn of the user's.
QWEN = """
{%- if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson + '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- else %}
{%- set content = m.content %}
{%- if strip_thinking is not defined and m.role == 'assistant' and '</think>' in content and not loop.last %}
{%- set content = content.split('</think>')[-1] %}
{%- endif %}
{{- '<|im_start|>' + m.role + '\n' + content }}
{%- for c in m.tool_calls or [] %}
{{- ('\n' if content or not loop.first else '') + '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""  # noqa: E501

# Qwen3's way with reasoning: kept while the turn is behind the user's last question, with an empty one where the last
# turn has none, and left out of everything before that question.
QWEN3 = """
{%- if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson + '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- set ns = namespace(question=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.question = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- elif m.role == 'assistant' %}
{%- set content, thought = m.content, '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.question and (loop.last or thought) %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}
{{- content }}
{%- for c in m.tool_calls or [] %}
{{- ('\n' if content or not loop.first else '') + '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""  # noqa: E501

# A call is the whole turn; the answer of a tool is quoted and comes from ipython. Its contents are trimmed.
LLAMA = """
{{- '<|begin_of_text|>' }}
{%- for m in messages %}
{%- set role = 'ipython' if m.role == 'tool' else m.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
{%- if m.role == 'tool' %}{{ m.content | tojson }}
{%- elif m.tool_calls %}{{ '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' + m.tool_calls[0].function.arguments | tojson + '}' }}
{%- else %}{{ m.content | trim }}{% endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""  # noqa: E501

# No token closes a turn: the next role's token does, and the model samples it.
GLM = """
{{- '[gMASK]<sop>' }}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- else %}{{ '<|' + m.role + '|>' + ('\n' + m.content.strip() if m.content.strip() else '') }}
{%- for c in m.tool_calls or [] %}
{{- '\n<tool_call>' + c.function.name + '\n' }}
{%- for key, value in c.function.arguments.items() %}{{ '<arg_key>' + key + '</arg_key>\n<arg_value>' + value + '</arg_value>\n' }}{% endfor %}
{{- '</tool_call>' }}
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""  # noqa: E501

# Answers of tools only behind a call, named after it; the last turn's end token is another than that of earlier ones.
GPT_OSS = """
{%- set last = namespace(name=none) %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- set last.name = m.tool_calls[0].function.name %}
{%- if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{{- '<|start|>assistant to=functions.' + last.name + '<|channel|>commentary json<|message|>' + m.tool_calls[0].function.arguments | tojson + '<|call|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- elif m.role == 'tool' %}
{%- if last.name is none %}{{ raise_exception('a tool answers and nobody called') }}{% endif %}
{{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' + m.content | tojson + '<|end|>' }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""  # noqa: E501

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


@dataclass(frozen=True)
class Family:
    template: str
    special: tuple[str, ...]
    plain: tuple[str, ...]  # added tokens that are not special
    end: str


FAMILIES = {
    "hermes": Family(QWEN, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), TAGS, "<|im_end|>"),
    "llama3_json": Family(
        LLAMA,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        (),
        "<|eot_id|>",
    ),
    "glm": Family(
        GLM,
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
        (*TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        "<|endoftext|>",
    ),
    "gpt-oss": Family(
        GPT_OSS,
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"),
        (),
        "<|return|>",
    ),
}
CORPUS = ["What is 17 * 23? The answer is 391.", '{"name": "calculator", "arguments": {"expression": "17*23"}}'] * 4


@cache
def tokenizer_of(family: str, template: str | None = None) -> PreTrainedTokenizerFast:
    known = FAMILIES[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(known.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False) for text in known.plain])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=known.end, chat_template=template or known.template
    )


def prompt(tokenizer: Any, text: str = "What is 17 * 23?", tools: Any = None, **extra_info: Any) -> Sample:
    messages = [{"role": "user", "content": text}]
    ids = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    return Sample(0, list(ids), messages, "sums", "391", extra_info, None, "row")


def letters(tokenizer: Any, text: str) -> list[int]:
    """The text in as many tokens as it has letters, special tokens whole: not how the tokenizer would split it."""
    ids: list[int] = []
    while text:
        whole = next((t for t in tokenizer.get_added_vocab() if text.startswith(t)), text[0])
        ids += tokenizer.encode(whole, add_special_tokens=False)
        text = text[len(whole) :]
    return ids


class Script:
    """An engine that says the given texts, one a call, letter by letter; the last token of a turn ends it unless the
    text is longer than it may be."""

    def __init__(self, tokenizer: Any, *turns: str) -> None:
        self.tokenizer = tokenizer
        self.turns = list(turns)
        self.said: list[list[int]] = []
        self.asked: list[list[int]] = []
        self.limits: list[int] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        ids = letters(self.tokenizer, self.turns[len(self.said)])
        cut = ids[: sampling.max_tokens]
        self.said.append(cut)
        self.asked.append(list(prompt_ids))
        self.limits.append(sampling.max_tokens)
        logprobs = [-0.001 * (len(self.said) * 1000 + i) for i in range(len(cut))]
        return Completion(cut, logprobs, "length" if len(cut) < len(ids) else "stop", [len(self.said)] * len(cut))
