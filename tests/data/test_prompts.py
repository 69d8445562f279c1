import copy
import json
import logging

import numpy as np
import pytest

from hone.data import PromptDataset
from hone.errors import UserError


def words(count):
    return " ".join(["cups"] * count)


def write(path, prompts, **columns):
    rows = [{"prompt": prompt, "data_source": "arithmetic", **columns} for prompt in prompts]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def dataset(path, tokenizer, **options):
    return PromptDataset(path, tokenizer=tokenizer, **{"max_prompt_length": 64, **options})


def rendered(tokenizer, text):
    return tokenizer(f"<|user|>{text}<|end|><|assistant|>")["input_ids"]


def test_a_sample_carries_the_rendered_prompt_and_the_columns_of_its_row(arithmetic_dir, tiny_tokenizer):
    sample = dataset(arithmetic_dir / "train.parquet", tiny_tokenizer)[3]
    question = sample.messages[0]["content"]
    assert sample.prompt_ids == rendered(tiny_tokenizer, question)
    assert (sample.row, sample.uid, sample.agent_name) == (3, "3", None)
    assert (sample.data_source, sample.extra_info["question"]) == ("arithmetic", question)
    assert 0 <= int(sample.ground_truth) <= 20


def test_plain_text_is_one_user_turn_and_optional_columns_may_be_absent(tmp_path, tiny_tokenizer):
    sample = dataset(write(tmp_path / "a.jsonl", ["Tom has 5 cups."], agent_name="solo"), tiny_tokenizer)[0]
    assert sample.messages == [{"role": "user", "content": "Tom has 5 cups."}]
    assert sample.prompt_ids == rendered(tiny_tokenizer, "Tom has 5 cups.")
    assert (sample.ground_truth, sample.extra_info, sample.agent_name) == (None, {}, "solo")


def test_empty_fields_that_a_file_format_adds_to_messages_do_not_reach_the_template(tmp_path, tiny_tokenizer):
    messages = [{"role": "user", "content": "cups", "tool_calls": None}]
    sample = dataset(write(tmp_path / "a.jsonl", [messages]), tiny_tokenizer)[0]
    assert sample.messages == [{"role": "user", "content": "cups"}]


@pytest.mark.parametrize("truncation", ["error", "left", "right", "middle"])
def test_a_prompt_of_exactly_the_limit_is_left_as_it_is(tmp_path, tiny_tokenizer, truncation):
    full = rendered(tiny_tokenizer, words(9))
    path = write(tmp_path / "a.jsonl", [words(9)])
    data = dataset(path, tiny_tokenizer, max_prompt_length=len(full), truncation=truncation)
    assert data[0].prompt_ids == full


@pytest.mark.parametrize("excess", [1, 2, 5])
def test_a_longer_prompt_is_cut_on_the_side_that_is_asked_for(tmp_path, tiny_tokenizer, excess):
    full = rendered(tiny_tokenizer, "Tom has 5 cups. Ann gives Tom 7 cups.")
    limit = len(full) - excess
    path = write(tmp_path / "a.jsonl", ["Tom has 5 cups. Ann gives Tom 7 cups."])

    def ids(truncation):
        return dataset(path, tiny_tokenizer, max_prompt_length=limit, truncation=truncation)[0].prompt_ids

    assert ids("left") == full[excess:]
    assert ids("right") == full[:limit]
    assert ids("middle") == full[: limit // 2] + full[len(full) - (limit - limit // 2) :]


def test_long_prompts_are_an_error_at_the_start_that_names_the_first_row_the_count_and_what_helps(
    tmp_path, tiny_tokenizer
):
    path = write(tmp_path / "a.jsonl", [words(2), words(9), words(3), words(12)])
    first, longest = (len(rendered(tiny_tokenizer, words(n))) for n in (9, 12))
    with pytest.raises(UserError) as caught:
        dataset(path, tiny_tokenizer, max_prompt_length=first - 1)
    for part in (
        f"{path}, row 1, column 'prompt'",
        f"{first} tokens",
        f"more than data.max_prompt_length={first - 1}",
        f"2 of 4 rows are too long, the longest has {longest} tokens",
        "Raise data.max_prompt_length",
        "data.truncation",
        "left, right or middle",
        "data.filter_overlong_prompts=True",
    ):
        assert part in str(caught.value)


def test_a_long_prompt_outside_the_chosen_rows_is_no_error(tmp_path, tiny_tokenizer):
    path = write(tmp_path / "a.jsonl", [words(2), words(3), words(40)])
    assert len(dataset(path, tiny_tokenizer, max_prompt_length=12, max_samples=2)) == 2


def test_the_key_that_limits_the_length_can_have_another_name(tmp_path, tiny_tokenizer):
    path = write(tmp_path / "a.jsonl", [words(9)])
    with pytest.raises(UserError, match=r"more than rollout\.prompt_length=4\. Raise it\.$"):
        dataset(path, tiny_tokenizer, max_prompt_length=4, length_key="rollout.prompt_length", remedy="Raise it.")


def test_filtering_drops_what_is_too_long_keeps_global_rows_and_logs_the_count(tmp_path, tiny_tokenizer, caplog):
    path = write(tmp_path / "a.jsonl", [words(n) for n in (2, 30, 3, 40, 4)])
    limit = len(rendered(tiny_tokenizer, words(4)))
    with caplog.at_level(logging.INFO, logger="hone.data.prompts"):
        data = dataset(path, tiny_tokenizer, max_prompt_length=limit, filter_overlong_prompts=True)
    assert [data[i].row for i in range(len(data))] == [0, 2, 4]
    assert f"dropped 2 of 5 prompts longer than data.max_prompt_length={limit}" in caplog.text


@pytest.mark.slow
def test_filtering_with_several_workers_keeps_the_same_rows(tmp_path, tiny_tokenizer):
    path = write(tmp_path / "a.jsonl", [words(n % 17 + 1) for n in range(40)])
    kept = [
        dataset(
            path, tiny_tokenizer, max_prompt_length=12, filter_overlong_prompts=True, filter_overlong_prompts_workers=n
        )
        for n in (1, 2)
    ]
    assert 0 < len(kept[0]) < 40
    assert np.array_equal(kept[0].kept, kept[1].kept)


def test_filtering_everything_is_an_error_that_names_the_shortest(tmp_path, tiny_tokenizer):
    path = write(tmp_path / "a.jsonl", [words(9), words(8)])
    shortest = len(rendered(tiny_tokenizer, words(8)))
    with pytest.raises(UserError, match=rf"All 2 prompts.*max_prompt_length=3 \(the shortest: {shortest}\)"):
        dataset(path, tiny_tokenizer, max_prompt_length=3, filter_overlong_prompts=True)


def test_a_limited_sample_is_the_first_rows_or_a_seeded_choice_when_shuffling(arithmetic_dir, tiny_tokenizer):
    def rows(**options):
        data = dataset(arithmetic_dir / "train.parquet", tiny_tokenizer, **options)
        return [data[i].row for i in range(len(data))]

    assert rows(max_samples=5) == [0, 1, 2, 3, 4]
    chosen = rows(max_samples=20, shuffle=True, seed=1)
    assert len(set(chosen)) == 20
    assert chosen != list(range(20))
    assert chosen == rows(max_samples=20, shuffle=True, seed=1)
    assert chosen != rows(max_samples=20, shuffle=True, seed=2)
    assert rows(max_samples=-1) == rows(max_samples=1000) == list(range(64))
    with pytest.raises(UserError, match="max_samples=0"):
        rows(max_samples=0)


@pytest.mark.parametrize("key", ["images", "videos"])
def test_rows_with_images_or_videos_are_refused_but_empty_columns_are_not(tmp_path, tiny_tokenizer, key):
    assert len(dataset(write(tmp_path / "a.jsonl", ["cups"], **{key: []}), tiny_tokenizer)) == 1
    with pytest.raises(UserError, match=rf"row 0 has {key}: multimodal input is not built"):
        dataset(write(tmp_path / "b.jsonl", ["<image> cups"], **{key: ["x.png"]}), tiny_tokenizer)


@pytest.mark.parametrize("prompt", [3, [], [{"role": "user"}], [{"role": "wizard", "content": "hi"}], ["text"]])
def test_a_prompt_that_is_no_conversation_names_its_row(tmp_path, tiny_tokenizer, prompt):
    with pytest.raises(UserError, match=r"a\.jsonl, row 1, column 'prompt'"):
        dataset(write(tmp_path / "a.jsonl", ["cups", prompt]), tiny_tokenizer)


def test_a_missing_data_source_column_names_its_key(tmp_path, tiny_tokenizer):
    with pytest.raises(UserError, match=r"no column 'source' \(data\.reward_fn_key\)"):
        dataset(write(tmp_path / "a.jsonl", ["cups"]), tiny_tokenizer, reward_fn_key="source")


def test_no_rows_and_no_chat_template_are_refused(tmp_path, tiny_model_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    path = write(tmp_path / "a.jsonl", ["cups"])
    with pytest.raises(UserError, match="no rows"):
        dataset(arithmetic_without_rows(tmp_path), tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        dataset(path, tokenizer)


def arithmetic_without_rows(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string()), "data_source": pa.array([], pa.string())}), path)
    return path


def test_prompts_that_nobody_scores_need_no_data_source(tmp_path, tiny_tokenizer):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "cups"}))
    assert dataset(path, tiny_tokenizer, reward_fn_key=None)[0].data_source == ""


ROW = {"prompt": "cups", "data_source": "arithmetic", "reward_model": {"ground_truth": "42"}}
MISTAKES = {
    "no prompt": ({"prompt": None}, r"column 'prompt' \(data\.prompt_key\)"),
    "no source": ({"data_source": None}, r"column 'data_source' \(data\.reward_fn_key\)"),
    "truth outside an object": ({"reward_model": "42"}, "column 'reward_model': expected an object"),
    "extras outside an object": ({"extra_info": ["a"]}, "column 'extra_info': expected an object"),
}


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("truncation", ["error", "left"])
@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_row_with_a_mistake_is_named_at_the_start(tmp_path, tiny_tokenizer, mistake, truncation, absent):
    change, message = MISTAKES[mistake]
    row = {**ROW, **change}
    if absent:
        row = {name: value for name, value in row.items() if value is not None}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(row))
    with pytest.raises(UserError, match=rf"a\.jsonl, row 1.*{message}"):
        dataset(path, tiny_tokenizer, truncation=truncation)
    assert len(dataset(path, tiny_tokenizer, truncation=truncation, max_samples=1)) == 1


ASKED = {"role": "user", "content": "Tom has 5 cups."}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": "Tom"}]}], "expected a text as the content"),
        ([{"role": "user", "content": 5}], "expected a text as the content of a message, found 5"),
        ([{"role": "user", "content": None}], "expected a text as the content of a message, found None"),
        ("half \ud83d", "lone surrogate.*position 5"),
        ([{"role": "user", "content": "half \ud83d"}], "lone surrogate"),
        ("", "the last message of the prompt is empty"),
        ([ASKED, {"role": "user", "content": " \n"}], "the last message of the prompt is empty"),
        ([ASKED, {"role": "assistant", "content": "5"}], "ends with a turn of the assistant"),
    ],
)
def test_a_prompt_that_cannot_be_answered_names_its_row(tmp_path, tiny_tokenizer, prompt, words):
    path = write(tmp_path / "a.jsonl", [[ASKED], prompt])
    with pytest.raises(UserError, match=rf"a\.jsonl, row 1, column 'prompt': .*{words}"):
        dataset(path, tiny_tokenizer)


def test_an_empty_system_message_is_accepted(tmp_path, tiny_tokenizer):
    dataset(write(tmp_path / "a.jsonl", [[{"role": "system", "content": ""}, ASKED]]), tiny_tokenizer)


@pytest.mark.parametrize("workers", [1, 2])
def test_tools_that_the_template_shows_are_part_of_a_prompt_and_of_its_length(tmp_path, tiny_tokenizer, workers):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.chat_template = "{{ tools | tojson if tools else '' }}" + tokenizer.chat_template
    tools = [{"type": "function", "function": {"name": "calculator"}}]
    path = write(tmp_path / "a.jsonl", ["short", words(100)])
    plain, shown = (dataset(path, tokenizer, max_prompt_length=500, tools=given) for given in (None, tools))
    assert "calculator" in tokenizer.decode(shown[0].prompt_ids)
    added = len(shown[0].prompt_ids) - len(plain[0].prompt_ids)
    assert added > 0
    limit = len(plain[1].prompt_ids)
    options = {"max_prompt_length": limit, "filter_overlong_prompts": True, "filter_overlong_prompts_workers": workers}
    assert len(dataset(path, tokenizer, **options)) == 2
    assert len(dataset(path, tokenizer, tools=tools, **options)) == 1
    with pytest.raises(UserError, match=f"the rendered prompt has {limit + added} tokens"):
        dataset(path, tokenizer, max_prompt_length=limit, tools=tools)
