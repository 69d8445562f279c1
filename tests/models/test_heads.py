"""Log-probs and entropy from hidden states: the model's own logits, in chunks or all at once."""

import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, GraniteConfig, GraniteForCausalLM

from hone.models import chosen
from hone.models.heads import LogitHead, LogitMemory, logit_chunk, token_logprobs
from hone.training.peak_memory import PeakMemory
from tests.models_of_families import SHAPE, VOCAB, random_ids, tiny
from tests.shows import shows

PLAIN_SHAPE = {k: v for k, v in SHAPE.items() if k != "head_dim"}


def gemma2():
    return tiny("gemma2")


def cohere():
    return CohereForCausalLM(CohereConfig(**PLAIN_SHAPE, logit_scale=0.3))


def granite():
    return GraniteForCausalLM(GraniteConfig(**PLAIN_SHAPE, logits_scaling=3.0, embedding_multiplier=2.0))


@pytest.mark.parametrize("build", [gemma2, cohere, granite, lambda: tiny("llama"), lambda: tiny("qwen3")])
def test_the_head_gives_the_models_own_logits(build):
    torch.manual_seed(0)
    model = build().eval()
    ids = random_ids([9])[None]
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        expected = model(ids, use_cache=False).logits[0]
        torch.testing.assert_close(LogitHead.of(model).logits(hidden), expected, rtol=1e-5, atol=1e-6)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(ValueError, match="not a causal language model"):
        LogitHead.of(tiny("qwen3").base_model)


def inputs(seed: int, tokens: int = 23):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 16, generator=g, requires_grad=True)
    weight = torch.randn(VOCAB, 16, generator=g, requires_grad=True)
    bias = torch.randn(VOCAB, generator=g, requires_grad=True)
    labels = torch.randint(0, VOCAB, (tokens,), generator=g)
    return hidden, weight, bias, labels, torch.randn(2, tokens, generator=g)


def written_out(hidden, weight, bias, labels, temperature, softcap):
    """[2, tokens]: log-probs and entropy of softmax(softcap tanh(0.7 (W h + b) / softcap) / temperature)."""
    logits = 0.7 * (hidden @ weight.T + bias)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    p = (logits / temperature).softmax(-1)
    return torch.stack([p[torch.arange(len(labels)), labels].log(), -(p * p.log()).sum(-1)])


def check(seed: int, *, temperature: float, softcap: float | None, memory: LogitMemory, compiled: bool = False) -> None:
    hidden, weight, bias, labels, upstream = inputs(seed)
    head = LogitHead(weight, bias, multiplier=0.7, softcap=softcap)
    options = {"temperature": temperature, "memory": memory, "compiled": compiled}
    found = torch.stack(token_logprobs(hidden, head, labels, entropy=True, **options))
    expected = written_out(hidden, weight, bias, labels, temperature, softcap)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    leaves = (hidden, weight, bias)
    gradients = [torch.autograd.grad((upstream * x).sum(), leaves, retain_graph=True) for x in (found, expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    alone, none = token_logprobs(hidden, head, labels, **options)
    assert none is None
    torch.testing.assert_close(alone, expected[0], rtol=1e-5, atol=1e-5)
    watched, entropy = token_logprobs(hidden, head, labels, entropy=True, entropy_grad=False, **options)
    assert not entropy.requires_grad
    for value in (alone, watched):  # neither gets a gradient from the entropy
        gradients = [
            torch.autograd.grad((upstream[0] * x).sum(), (hidden, weight, bias), retain_graph=True)
            for x in (value, expected[0])
        ]
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [None, 1, 7, 23, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_values_and_gradients_equal_the_formula_whatever_the_chunk(temperature, chunk, softcap):
    for seed in range(3):
        check(seed, temperature=temperature, softcap=softcap, memory=LogitMemory(chunk))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 7])
def test_the_compiled_computation_equals_the_formula(chunk):
    check(0, temperature=0.7, softcap=2.0, memory=LogitMemory(chunk), compiled=True)


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("entropy_chunk", [None, 1, 5, 100])
@pytest.mark.parametrize("recompute_entropy", [False, True])
def test_values_and_gradients_equal_the_formula_however_the_entropy_is_computed(
    chunk, entropy_chunk, recompute_entropy
):
    check(0, temperature=0.7, softcap=2.0, memory=LogitMemory(chunk, entropy_chunk, recompute_entropy))


@pytest.mark.parametrize("rows", [0.5, 3, 1000])
@pytest.mark.parametrize("recompute_entropy", [False, True])
def test_values_and_gradients_equal_the_formula_whatever_the_cache(rows, recompute_entropy, monkeypatch):
    monkeypatch.setattr(chosen, "IN_CACHE", int(rows * VOCAB))
    check(0, temperature=0.7, softcap=None, memory=LogitMemory(None, None, recompute_entropy))


def test_an_impossible_token_beside_the_labels_leaves_gradients_finite():
    hidden, weight, bias, labels, _ = inputs(0)
    labels = labels % 5
    with torch.no_grad():
        bias[7] = -torch.inf
    for entropy in (False, True):
        logprobs, _ = token_logprobs(hidden, LogitHead(weight, bias), labels, entropy=entropy)
        assert all(g.isfinite().all() for g in torch.autograd.grad(logprobs.sum(), (hidden, weight)))


def kept(memory: LogitMemory, *, entropy_grad: bool = True) -> list[int]:
    """Sizes of the tensors that a pass keeps for its backward pass."""
    hidden, weight, bias, labels, _ = inputs(0)
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        token_logprobs(hidden, LogitHead(weight, bias), labels, entropy=True, entropy_grad=entropy_grad, memory=memory)
    return sorted(storage.nbytes() // 4 for storage in storages.values())


def test_chunks_keep_no_logits_for_the_backward_pass():
    weight = VOCAB * 16
    assert max(kept(LogitMemory())) >= 23 * VOCAB
    assert max(kept(LogitMemory(chunk=4))) <= weight


@shows("actor_rollout_ref.actor.entropy_checkpointing")
def test_an_entropy_that_is_recomputed_keeps_the_log_probs_alone():
    def large(**options):
        return sum(n >= 23 * VOCAB for n in kept(LogitMemory(**options)))

    assert large() == 2, "log-probs and probabilities"
    assert large(recompute_entropy=True) == 1


@shows("actor_rollout_ref.actor.entropy_from_logits_with_chunking")
def test_an_entropy_in_chunks_makes_smaller_tensors():
    tokens, vocabulary = 64, 4096
    hidden, weight, labels = torch.randn(tokens, 8), torch.randn(vocabulary, 8), torch.zeros(tokens, dtype=torch.long)

    def peak(entropy_chunk):
        with torch.no_grad(), PeakMemory() as memory:
            token_logprobs(hidden, LogitHead(weight), labels, entropy=True, memory=LogitMemory(None, entropy_chunk))
        return memory.peak / (tokens * vocabulary * 4)

    # Logits and log-probs, beside the probabilities of all tokens or of 8.
    assert peak(8) < peak(None) - 0.7


@pytest.mark.slow
@shows("actor_rollout_ref.model.use_fused_kernels")
def test_a_large_vocabulary_takes_a_twentieth_of_the_memory():
    tokens, vocabulary = 4096, 151_936
    hidden = torch.randn(tokens, 16, requires_grad=True)
    weight = torch.randn(vocabulary, 16, requires_grad=True)
    labels = torch.randint(0, vocabulary, (tokens,))

    def peak(chunk):
        with PeakMemory() as memory:
            logprobs, _ = token_logprobs(hidden, LogitHead(weight), labels, memory=LogitMemory(chunk))
            torch.autograd.grad(logprobs.sum(), (hidden, weight))
        return memory.peak

    assert peak(logit_chunk(vocabulary)) < 0.05 * peak(None)
