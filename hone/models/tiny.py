"""A tiny random Qwen3 model with a tokenizer of its own, as an ordinary Hugging Face folder.

Small enough to be trained with RL on two CPU cores in minutes; for demos, tests and measurements, not for use.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hone.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("system", "user", "assistant")
ROLE_TOKENS = tuple(f"<|{role}|>" for role in ROLES)
BYTES = 256
SMALLEST_VOCAB = BYTES + 2 + len(ROLES)

# No newline between turns: every token of a short prompt counts.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role'] + ': expected system, user or assistant') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# With tools: calls in Hermes' format, without the spaces of JSON. The tools' schemas are left out, since so small a
# model cannot read them: it learns from examples which tools there are.
TOOL_TOKENS = ("<|tool|>", "<tool_call>", "</tool_call>")
TOOL_TEMPLATE = CHAT_TEMPLATE.replace("'assistant']", "'assistant', 'tool']").replace(
    " + '<|end|>' }}",
    " }}{% for call in message.tool_calls or [] %}"
    """{{ '<tool_call>{"name":"' + call.function.name + '","arguments":' }}"""
    "{{ call.function.arguments | tojson(separators=(',', ':')) + '}</tool_call>' }}{% endfor %}{{ '<|end|>' }}",
)


def train_tokenizer(texts: Iterable[str], *, vocab: int = 512, tools: bool = False) -> "PreTrainedTokenizerFast":
    """Byte-level BPE over `texts` with digits apart, at most `vocab` entries in all, special tokens included. `tools`
    gives it a turn for their answers, and tokens around calls."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    smallest = SMALLEST_VOCAB + (len(TOOL_TOKENS) if tools else 0)
    if vocab < smallest:
        raise UserError(f"--vocab={vocab} is too small: {BYTES} bytes and the special tokens need {smallest}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, END, *ROLE_TOKENS, *(TOOL_TOKENS if tools else ())],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[*ROLE_TOKENS, *(TOOL_TOKENS[:1] if tools else ())],
        chat_template=TOOL_TEMPLATE if tools else CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(
    tokenizer: "PreTrainedTokenizerFast", *, hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, seed: int
) -> "Qwen3ForCausalLM":
    """A randomly initialised fp32 model that fits `tokenizer`; the global random state is left as it was."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    if hidden % heads or (hidden // heads) % 2 or heads % kv_heads:
        raise UserError(
            f"--hidden={hidden} --heads={heads} --kv-heads={kv_heads} do not fit: hidden must be an even multiple of "
            "heads (rotary embedding halves each head), and heads a multiple of kv-heads."
        )
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        dtype="float32",
        **ids,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, **ids)
    return model


def make_tiny_model(
    output_dir: str | Path,
    *,
    texts: Iterable[str],
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    mlp: int = 384,
    vocab: int = 512,
    seed: int = 0,
    tools: bool = False,
) -> Path:
    """Train the tokenizer on `texts`, draw the weights from `seed`, save both; `from_pretrained` loads the folder."""
    directory = Path(output_dir).expanduser()
    tokenizer = train_tokenizer(texts, vocab=vocab, tools=tools)
    model = build_model(tokenizer, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, mlp=mlp, seed=seed)
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)
    return directory
