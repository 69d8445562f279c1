"""What a model folder becomes: a policy, a critic whose head starts at zero, or one clear error."""

import json
import shutil

import pytest
import torch

from hone.errors import UserError
from hone.models.forward import hidden_states
from hone.models.load import (
    ModelSource,
    available_attention,
    load_causal_lm,
    load_tokenizer,
    load_value_model,
    value_head,
)
from hone.models.precision import autocast, pick_compute_dtype
from tests.models_of_families import FAMILIES, random_ids, tiny

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny("qwen3").save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_with_default_attention_and_computes_the_same(family, tmp_path):
    model = tiny(family)
    model.save_pretrained(tmp_path)
    wanted = available_attention("flash_attention_2", CPU)
    ids, lengths = random_ids([8, 3]), [8, 3]
    with torch.no_grad():
        expected = torch.cat([model.base_model(p[None]).last_hidden_state[0] for p in ids.split(lengths)])
        for packed in (True, False):
            loaded = load_causal_lm(ModelSource(str(tmp_path), attn_implementation=wanted, packed=packed)).eval()
            found = hidden_states(loaded, ids, lengths, packed=packed)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_dtype_is_the_one_asked_for_whatever_the_file_holds(folder):
    assert load_causal_lm(ModelSource(folder, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert load_causal_lm(ModelSource(folder)).dtype == torch.float32


def test_a_critic_from_a_policys_folder_starts_at_value_zero_with_the_policys_backbone(folder):
    critic = load_value_model(ModelSource(folder))
    assert not value_head(critic).weight.any()
    policy = tiny("qwen3").base_model.state_dict()
    assert policy.keys() == critic.base_model.state_dict().keys()
    assert all(torch.equal(tensor, policy[name]) for name, tensor in critic.base_model.state_dict().items())


def test_a_saved_critics_head_is_loaded_back(folder, tmp_path):
    critic = load_value_model(ModelSource(folder))
    torch.nn.init.normal_(value_head(critic).weight)
    critic.save_pretrained(tmp_path)
    again = load_value_model(ModelSource(str(tmp_path)))
    assert torch.equal(value_head(again).weight, value_head(critic).weight)


def test_a_model_without_a_value_head_is_refused():
    with pytest.raises(UserError, match="no linear head with one output"):
        value_head(tiny("qwen3"))


def test_override_config_changes_the_model(folder):
    model = load_causal_lm(ModelSource(folder, config_overrides={"rms_norm_eps": 0.5}))
    assert model.config.rms_norm_eps == 0.5
    ids = random_ids([6])
    changed, plain = (hidden_states(m, ids, [6], packed=True) for m in (model, tiny("qwen3")))
    assert (changed - plain).abs().max() > 1e-2


def test_an_unknown_key_of_override_config_is_named(folder):
    with pytest.raises(UserError, match="override_config: Qwen3Config has no 'rms_norm_epsilon'"):
        load_causal_lm(ModelSource(folder, config_overrides={"rms_norm_epsilon": 0.5}))


@pytest.mark.parametrize("load", [load_causal_lm, load_value_model])
def test_a_folder_that_holds_no_model_is_named(load, tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UserError, match="no model could be loaded from") as caught:
            load(ModelSource(str(path)))
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_of_an_unknown_type_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never_heard_of"}))
    with pytest.raises(UserError, match="no model could be loaded from"):
        load_causal_lm(ModelSource(str(tmp_path)))


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match="no tokenizer could be loaded from"):
        load_tokenizer(str(tmp_path))


def test_flash_attention_without_a_gpu_becomes_torchs_exact_attention(monkeypatch):
    assert available_attention("flash_attention_2", CPU) == "sdpa"
    assert available_attention("eager", CPU) == "eager"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert available_attention("flash_attention_2", GPU) == "sdpa"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert available_attention("flash_attention_2", GPU) == "flash_attention_2"


def test_bf16_on_a_cpu_is_computed_in_fp32_unless_the_user_chose_it():
    dtype, notice = pick_compute_dtype("bf16", CPU, chosen_by_user=False)
    assert dtype == torch.float32 and notice
    assert pick_compute_dtype("bf16", CPU, chosen_by_user=True) == (torch.bfloat16, None)
    assert pick_compute_dtype("bfloat16", GPU, chosen_by_user=False) == (torch.bfloat16, None)
    assert pick_compute_dtype("fp32", CPU, chosen_by_user=False) == (torch.float32, None)


def test_mixed_precision_keeps_fp32_parameters_and_computes_products_in_bf16():
    layer = torch.nn.Linear(4, 4)
    with autocast(CPU, torch.float32, torch.bfloat16):
        assert layer(torch.ones(1, 4)).dtype == torch.bfloat16
    with autocast(CPU, torch.float32, torch.float32):
        assert layer(torch.ones(1, 4)).dtype == torch.float32
    assert layer.weight.dtype == torch.float32


@pytest.fixture
def copied(tmp_path, tiny_model_dir):
    return shutil.copytree(tiny_model_dir, tmp_path / "model")


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_folder_without_tokenizer_files_is_refused(copied):
    for file in copied.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match=f"no tokenizer could be loaded from '{copied}': its files .* are missing"):
        load_tokenizer(str(copied))


@pytest.mark.parametrize("size", [0, 100_000])
def test_damaged_weights_name_the_folder(copied, size):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(UserError, match=rf"no model could be loaded from '{copied}': .*is damaged or cut short"):
        load_causal_lm(ModelSource(str(copied)))


@pytest.mark.parametrize("load", [load_causal_lm, load_value_model])
def test_a_configuration_of_other_sizes_than_the_weights_is_refused(copied, load):
    change_config(copied, hidden_size=256)
    with pytest.raises(UserError, match=rf"'{copied}': its config\.json .* differ in the sizes of \d+ tensors.*256"):
        load(ModelSource(str(copied)))


@pytest.mark.parametrize("load", [load_causal_lm, load_value_model])
def test_weights_that_are_missing_are_not_made_up(copied, load):
    change_config(copied, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    with pytest.raises(UserError, match=rf"'{copied}': its files lack \d+ tensors.*model\.layers\.2"):
        load(ModelSource(str(copied)))
