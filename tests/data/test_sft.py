import json

import pytest

from hone.data import SFTDataset
from hone.data.chat import render
from hone.errors import UserError

# After the assistant's end token a newline, as ChatML has it, or an end-of-text, as others do.
WITH_NEWLINE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
WITH_FINAL_PAD = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ '<|pad|>' }}{% endif %}"
)
# An empty block before the answer of the last turn only, as reasoning models have it.
WITH_THINKING = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if loop.last and m.role == 'assistant' %}{{ '[]' }}{% endif %}"
    "{{ m.content + '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONVERSATION = [
    {"role": "user", "content": "Tom has 5 cups."},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "Ann has 7 cups."},
    {"role": "assistant", "content": "5+7=12 a"},
]


@pytest.fixture
def tokenizer(tiny_model_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model_dir)


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def trained(tokenizer, sample):
    """The trained spans as text."""
    pairs = zip(sample.input_ids, sample.loss_mask)
    marked = "".join(tokenizer.decode([token]) if mask else "\0" for token, mask in pairs)
    return [span for span in marked.split("\0") if span]


@pytest.mark.parametrize("template", [None, WITH_NEWLINE, WITH_FINAL_PAD, WITH_THINKING])
def test_text_and_end_token_are_trained_and_the_ids_are_those_of_the_whole_conversation(tmp_path, tokenizer, template):
    tokenizer.chat_template = template or tokenizer.chat_template
    path = write(tmp_path / "a.jsonl", [{"prompt": "Tom has 5 cups.", "response": "5+8=13 #### 13"}])
    sample = SFTDataset(path, tokenizer=tokenizer, max_length=64)[0]
    prompt = [{"role": "user", "content": "Tom has 5 cups."}]
    whole = [*prompt, {"role": "assistant", "content": "5+8=13 #### 13"}]
    prompt_ids = render(tokenizer, prompt, add_generation_prompt=True, where="")
    assert sample.input_ids == render(tokenizer, whole, add_generation_prompt=False, where="")
    assert sample.input_ids[: len(prompt_ids)] == prompt_ids
    assert sample.loss_mask[: len(prompt_ids)] == [0] * len(prompt_ids)
    thinking = "[]" if template == WITH_THINKING else ""
    assert trained(tokenizer, sample) == [thinking + "5+8=13 #### 13<|end|>"]


@pytest.mark.parametrize("response", ["a", "b", "ab", "", "#### 13"])
def test_any_response_is_trained_whole_with_its_end_token(tmp_path, tokenizer, response):
    tokenizer.chat_template = WITH_NEWLINE
    path = write(tmp_path / "a.jsonl", [{"prompt": "cups", "response": response}])
    assert trained(tokenizer, SFTDataset(path, tokenizer=tokenizer, max_length=64)[0]) == [response + "<|end|>"]


@pytest.mark.parametrize("template", [None, WITH_NEWLINE, WITH_FINAL_PAD, WITH_THINKING])
def test_every_assistant_turn_of_a_conversation_is_trained(tmp_path, tokenizer, template):
    tokenizer.chat_template = template or tokenizer.chat_template
    path = write(tmp_path / "a.jsonl", [{"messages": CONVERSATION}])
    sample = SFTDataset(path, tokenizer=tokenizer, max_length=128, messages_key="messages")[0]
    last = "[]5+7=12 a<|end|>" if template == WITH_THINKING else "5+7=12 a<|end|>"
    assert trained(tokenizer, sample) == ["5<|end|>", last]


def test_assistant_turns_inside_a_prompt_are_context(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"prompt": CONVERSATION[:3], "answer": "12"}])
    sample = SFTDataset(path, tokenizer=tokenizer, max_length=128, response_key="answer")[0]
    assert trained(tokenizer, sample) == ["12<|end|>"]


def test_the_demonstrations_of_the_arithmetic_set_are_read_by_their_keys(arithmetic_dir, tokenizer):
    data = SFTDataset(arithmetic_dir / "train.parquet", tokenizer=tokenizer, max_length=96, response_key="answer")
    assert len(data) == 64
    for sample in (data[i] for i in range(64)):
        assert trained(tokenizer, sample) == [data.rows[sample.row]["answer"] + "<|end|>"]


@pytest.mark.parametrize("excess", [0, 1, 3])
def test_truncation_cuts_ids_and_mask_together(tmp_path, tokenizer, excess):
    path = write(tmp_path / "a.jsonl", [{"prompt": "Tom has 5 cups.", "response": "5+8=13 #### 13"}])
    full = SFTDataset(path, tokenizer=tokenizer, max_length=64)[0]
    limit = len(full.input_ids) - excess
    left = SFTDataset(path, tokenizer=tokenizer, max_length=limit, truncation="left")[0]
    right = SFTDataset(path, tokenizer=tokenizer, max_length=limit, truncation="right")[0]
    assert (left.input_ids, left.loss_mask) == (full.input_ids[excess:], full.loss_mask[excess:])
    assert (right.input_ids, right.loss_mask) == (full.input_ids[:limit], full.loss_mask[:limit])


def test_a_long_row_is_an_error_by_default_and_names_row_length_and_key(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"prompt": "cups", "response": "5"}, {"prompt": "cups", "response": "5" * 60}])
    length = len(tokenizer("<|user|>cups<|end|><|assistant|>" + "5" * 60 + "<|end|>")["input_ids"])
    data = SFTDataset(path, tokenizer=tokenizer, max_length=length - 1)
    assert sum(data[0].loss_mask) == 2
    with pytest.raises(
        UserError, match=rf"a\.jsonl, row 1: .* {length} tokens, more than data\.max_length={length - 1}"
    ):
        data[1]


def test_a_row_with_nothing_left_to_train_on_is_an_error_that_names_it(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"prompt": "cups " * 30, "response": "5"}])
    with pytest.raises(UserError, match=r"row 0: nothing to train on.*max_length=8"):
        SFTDataset(path, tokenizer=tokenizer, max_length=8, truncation="right")[0]
    path = write(tmp_path / "b.jsonl", [{"messages": CONVERSATION[:1]}])
    with pytest.raises(UserError, match="row 0: nothing to train on"):
        SFTDataset(path, tokenizer=tokenizer, max_length=64, messages_key="messages")[0]


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_message_at_fault(tmp_path, tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ messages|length }}{{ m.content }}<|end|>{% endfor %}"
    path = write(tmp_path / "a.jsonl", [{"messages": CONVERSATION}])
    with pytest.raises(UserError, match="row 0, message 1: the chat template renders the turns before it differently"):
        SFTDataset(path, tokenizer=tokenizer, max_length=64, messages_key="messages")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_key": "reply"}, r"no column 'reply' \(data\.response_key\)"),
        ({"messages_key": "turns"}, r"no column 'turns' \(data\.messages_key\)"),
        ({"truncation": "middle"}, r"data\.truncation=middle is unknown: expected one of error, left, right"),
    ],
)
def test_wrong_options_name_their_key(tmp_path, tokenizer, options, message):
    path = write(tmp_path / "a.jsonl", [{"prompt": "cups", "response": "5"}])
    with pytest.raises(UserError, match=message):
        SFTDataset(path, tokenizer=tokenizer, max_length=64, **options)


def test_a_response_that_is_no_text_names_its_row(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"prompt": "cups", "response": ["5"]}])
    with pytest.raises(UserError, match="row 0, column 'response': expected a text"):
        SFTDataset(path, tokenizer=tokenizer, max_length=64)[0]
