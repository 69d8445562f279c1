import json

import pytest

from hone.data import SFTDataset
from hone.data.chat import render
from hone.errors import UserError
from tests.shows import shows

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


@pytest.mark.parametrize("response", ["a", "b", "ab", "#### 13"])
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


@pytest.mark.parametrize(
    "row", [{"prompt": "Tom has 5 cups.", "response": "5+8=13 #### 13"}, {"messages": CONVERSATION}]
)
def test_wherever_the_left_cut_falls_the_first_token_is_not_trained_and_the_others_are(tmp_path, tokenizer, row):
    path = write(tmp_path / "a.jsonl", [row])
    options = {"tokenizer": tokenizer, "messages_key": "messages" if "messages" in row else None}
    full = SFTDataset(path, max_length=64, **options)[0]
    length = len(full.input_ids)
    inside = 0
    for limit in range(2, length):
        sample = SFTDataset(path, max_length=limit, truncation="left", **options)[0]
        assert sample.input_ids == full.input_ids[length - limit :]
        assert sample.loss_mask == [0, *full.loss_mask[length - limit + 1 :]]
        inside += full.loss_mask[length - limit]
    assert inside > 3


def test_long_rows_are_an_error_at_the_start_that_names_the_first_row_the_count_and_what_helps(tmp_path, tokenizer):
    rows = [{"prompt": "cups", "response": "5" * n} for n in (1, 60, 2, 80)]
    path = write(tmp_path / "a.jsonl", rows)
    first, longest = (
        len(tokenizer(f"<|user|>cups<|end|><|assistant|>{'5' * n}<|end|>")["input_ids"]) for n in (60, 80)
    )
    assert sum(SFTDataset(path, tokenizer=tokenizer, max_length=first - 1, max_samples=1)[0].loss_mask) == 2
    with pytest.raises(UserError) as caught:
        SFTDataset(path, tokenizer=tokenizer, max_length=first - 1)
    for part in (
        f"{path}, row 1: the rendered conversation has {first} tokens, more than data.max_length={first - 1}",
        f"2 of 4 rows are too long, the longest has {longest} tokens",
        "Raise data.max_length, or set data.truncation to left or right",
    ):
        assert part in str(caught.value)


def test_a_row_with_nothing_left_to_train_on_is_an_error_at_the_start(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"prompt": "cups", "response": "5"}, {"prompt": "cups " * 30, "response": "5"}])
    with pytest.raises(UserError, match=r"row 1: nothing to train on.*max_length=8"):
        SFTDataset(path, tokenizer=tokenizer, max_length=8, truncation="right")
    path = write(tmp_path / "b.jsonl", [{"messages": CONVERSATION}, {"messages": CONVERSATION[:1]}])
    with pytest.raises(UserError, match="row 1: nothing to train on"):
        SFTDataset(path, tokenizer=tokenizer, max_length=64, messages_key="messages")


def test_a_conversation_that_begins_with_an_answer_is_refused_at_the_start(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"messages": CONVERSATION[1:]}])
    with pytest.raises(UserError, match="row 0, column 'messages': .*begins with the assistant"):
        SFTDataset(path, tokenizer=tokenizer, max_length=64, messages_key="messages")


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


PAIR = {"prompt": "cups", "response": "5"}
MISTAKES = {
    "no text": (PAIR, {"response": ["5"]}, "column 'response': expected a text"),
    "no response": (PAIR, {"response": None}, r"column 'response' \(data\.response_key\)"),
    "no prompt": (PAIR, {"prompt": None}, r"column 'prompt' \(data\.prompt_key\)"),
    "no conversation": ({"messages": CONVERSATION}, {"messages": None}, r"column 'messages' \(data\.messages_key\)"),
    "no messages": ({"messages": CONVERSATION}, {"messages": ["text"]}, "column 'messages': expected messages"),
}


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_row_with_a_mistake_is_named_at_the_start(tmp_path, tokenizer, mistake, absent):
    right, change, message = MISTAKES[mistake]
    row = {**right, **change}
    if absent:
        row = {name: value for name, value in row.items() if value is not None} | {"other": 1}
    options = {"tokenizer": tokenizer, "max_length": 64, "messages_key": "messages" if "messages" in right else None}
    path = write(tmp_path / "a.jsonl", [right, row])
    with pytest.raises(UserError, match=rf"a\.jsonl, row 1.*{message}"):
        SFTDataset(path, **options)
    assert len(SFTDataset(path, max_samples=1, **options)) == 1


# Ends turns with text that a byte-pair tokenizer may join with the end of the answer.
WITH_PLAIN_END = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + ' e' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
# Ends the last turn in another way when the first message asks for it.
WITH_TWO_ENDS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if 'cups' in messages[0].content and not add_generation_prompt %}{{ '<|pad|>' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@pytest.mark.parametrize("template", [None, WITH_NEWLINE, WITH_FINAL_PAD, WITH_THINKING, WITH_PLAIN_END, WITH_TWO_ENDS])
def test_rows_drawn_together_are_the_rows_drawn_alone(tmp_path, tokenizer, template):
    tokenizer.chat_template = template or tokenizer.chat_template
    short, system = CONVERSATION[:2], [{"role": "system", "content": "Count."}]
    birds = [{"role": "user", "content": "Bob has 3 birds."}, {"role": "assistant", "content": "3 th"}]
    rows = [short, birds, [*system, *short], [*system, *birds], birds, short]
    path = write(tmp_path / "rows.jsonl", [{"messages": messages} for messages in rows])

    def data():
        return SFTDataset(path, tokenizer=tokenizer, max_length=128, messages_key="messages")

    assert data().samples(range(len(rows))) == [data()[i] for i in range(len(rows))]


@pytest.mark.parametrize("response", ["", " \n", "half \ud83d"])
def test_a_response_that_teaches_nothing_names_its_row(tmp_path, tokenizer, response):
    rows = [{"prompt": "Tom has 5 cups.", "response": "5"}, {"prompt": "Tom has 5 cups.", "response": response}]
    with pytest.raises(UserError, match=r"a\.jsonl, row 1, column 'response': .*(is empty|lone surrogate)"):
        SFTDataset(write(tmp_path / "a.jsonl", rows), tokenizer=tokenizer, max_length=64)


def test_an_empty_turn_in_a_conversation_names_its_row(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"messages": [*CONVERSATION[:3], {"role": "assistant", "content": ""}]}])
    with pytest.raises(UserError, match=r"a\.jsonl, row 0, column 'messages': the assistant's text is empty"):
        SFTDataset(path, tokenizer=tokenizer, max_length=64, messages_key="messages")


@shows("data.prompt_dict_keys", "data.response_dict_keys", command="sft")
def test_prompt_and_response_may_lie_inside_a_column(tmp_path, tokenizer):
    rows = [{"extra_info": {"question": "Tom has 5 cups.", "told": {"answer": "5"}}}]
    inside = {"prompt_dict_keys": ["question"], "response_dict_keys": ["told", "answer"]}
    columns = {"prompt_key": "extra_info", "response_key": "extra_info"}
    found = SFTDataset(write(tmp_path / "a.jsonl", rows), tokenizer=tokenizer, max_length=64, **columns, **inside)[0]
    flat = write(tmp_path / "b.jsonl", [{"prompt": "Tom has 5 cups.", "response": "5"}])
    assert found == SFTDataset(flat, tokenizer=tokenizer, max_length=64)[0]
    inside["response_dict_keys"] = ["answer"]
    with pytest.raises(UserError, match=r"column 'extra_info': there is no 'answer'"):
        SFTDataset(tmp_path / "a.jsonl", tokenizer=tokenizer, max_length=64, **columns, **inside)
