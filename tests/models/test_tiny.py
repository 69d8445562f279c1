import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.data.arithmetic import sample_distinct
from hone.errors import UserError
from hone.models.tiny import build_model, make_tiny_model, train_tokenizer
from tests.tiny import corpus_texts

SIZES = {"hidden": 128, "layers": 2, "heads": 4, "kv_heads": 2, "mlp": 384}


def test_the_folder_loads_as_an_ordinary_model_with_end_and_pad_tokens_set(tiny_model_dir, tiny_tokenizer):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert 400_000 < sum(p.numel() for p in model.parameters()) < 500_000
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.vocab_size == len(tiny_tokenizer) <= 512
    assert (tiny_tokenizer.eos_token, tiny_tokenizer.pad_token) == ("<|end|>", "<|pad|>")
    for config in (model.config, model.generation_config):
        assert config.eos_token_id == tiny_tokenizer.eos_token_id
        assert config.pad_token_id == tiny_tokenizer.pad_token_id != config.eos_token_id


def test_the_chat_template_marks_roles_and_opens_the_assistants_turn(tiny_tokenizer):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    opened = tiny_tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert opened == "<|system|>s<|end|><|user|>u<|end|><|assistant|>"
    closed = [*messages, {"role": "assistant", "content": "a"}]
    assert tiny_tokenizer.apply_chat_template(closed, tokenize=False) == opened + "a<|end|>"


def test_words_of_the_corpus_are_one_token_and_digits_stand_apart(tiny_tokenizer):
    for problem in sample_distinct(200, seed=3):
        words = problem.question.replace(".", "").replace("?", "").split()[1:]
        assert all(len(tiny_tokenizer.tokenize(" " + word)) == 1 for word in words if not word.isdigit())
    assert tiny_tokenizer.tokenize("13+120=") == ["1", "3", "+", "1", "2", "0", "="]


@pytest.mark.parametrize("text", ["5+8=13 13-2=11 #### 11", "Grüße, 世界! \n\t 3.5", "  a  b ,c ."])
def test_any_text_survives_encoding_and_decoding(tiny_tokenizer, text):
    assert tiny_tokenizer.decode(tiny_tokenizer(text)["input_ids"]) == text


def test_special_tokens_are_left_out_when_asked(tiny_tokenizer):
    ids = tiny_tokenizer("<|assistant|>#### 5<|end|><|pad|>")["input_ids"]
    assert len(ids) == 3 + len(tiny_tokenizer("#### 5")["input_ids"])
    assert tiny_tokenizer.decode(ids, skip_special_tokens=True) == "#### 5"


def test_weights_follow_the_seed_and_leave_the_global_random_state_alone():
    tokenizer = train_tokenizer(corpus_texts(50))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (build_model(tokenizer, **SIZES, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert abs(first["model.embed_tokens.weight"].std() - 0.05) < 0.002


def test_a_small_vocabulary_is_never_exceeded(tmp_path):
    directory = make_tiny_model(tmp_path / "m", texts=corpus_texts(50), vocab=300, hidden=32, layers=1, mlp=32)
    assert len(AutoTokenizer.from_pretrained(directory)) == 300


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(UserError, match="--vocab=200 is too small"):
        train_tokenizer(["a"], vocab=200)
    tokenizer = train_tokenizer(corpus_texts(20))
    for wrong in ({"hidden": 130}, {"kv_heads": 3}, {"hidden": 12}):
        with pytest.raises(UserError, match="do not fit"):
            build_model(tokenizer, **{**SIZES, **wrong}, seed=0)
