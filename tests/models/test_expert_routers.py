import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from hone.errors import UserError
from hone.models.load import ModelSource, load_causal_lm
from tests.models_of_families import SHAPE, tiny
from tests.shows import shows

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def qwen3_moe():
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **EXPERTS))


def mixtral():
    return MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=4))


@shows("actor_rollout_ref.model.override_config.moe_config.freeze_moe_router")
@pytest.mark.parametrize("build", [qwen3_moe, mixtral])
def test_a_frozen_router_gets_no_gradient_and_all_else_does(tmp_path, build):
    torch.manual_seed(0)
    build().save_pretrained(tmp_path)
    ids = torch.arange(2, 34)[None]
    frozen = {}
    for freeze in (False, True):
        model = load_causal_lm(ModelSource(str(tmp_path), freeze_router=freeze))
        model(ids, labels=ids).loss.backward()
        frozen[freeze] = {name for name, p in model.named_parameters() if p.grad is None}
    assert frozen[False] == set()
    assert len(frozen[True]) == SHAPE["num_hidden_layers"]
    assert all(".gate." in name or ".router." in name for name in frozen[True])


def test_a_model_without_experts_is_refused(tmp_path):
    tiny("qwen3").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="freeze_moe_router: Qwen3ForCausalLM has no router"):
        load_causal_lm(ModelSource(str(tmp_path), freeze_router=True))
