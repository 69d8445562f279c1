"""Hidden states of a ragged batch of tokens, computed packed (no padding) or as a padded rectangle."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hone.models.attention import Layout, PackedLayout, use_layouts
from hone.models.last_layer import distinct_tokens, prune_last_layer
from hone.models.recorded import own_states, recorded_states
from hone.models.shared_prompts import SharedPromptLayout
from hone.models.ulysses import SequenceRanks, SlicedLayout


def hidden_states(
    model: PreTrainedModel, input_ids: Tensor, lengths: Sequence[int], index: Tensor | None = None, *, packed: bool
) -> Tensor:
    """Last hidden states [tokens, H] of sequences laid end to end in `input_ids` [tokens], or their rows `index`.

    Packed and padded give the same numbers; packed computes none for padding. The padded way goes through the model's
    own attention implementation and serves models that do not call theirs through transformers' registry.
    """
    if packed:
        use_layouts(model)
        return run_layout(model, input_ids, PackedLayout(lengths, input_ids.device), index)
    ids, mask, places = _rectangle(input_ids, lengths)
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    output = model.base_model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    places = places if index is None else places.index_select(0, index)
    return output.last_hidden_state.flatten(0, 1).index_select(0, places)


def shared_hidden_states(
    model: PreTrainedModel,
    input_ids: Tensor,
    lengths: Sequence[int],
    prompt_lengths: Sequence[int],
    families: Sequence[int],
    index: Tensor,
) -> Tensor:
    """The rows `index` of `hidden_states`, packed, with every distinct prompt computed once (`SharedPromptLayout`)."""
    use_layouts(model)
    layout = SharedPromptLayout(lengths, prompt_lengths, families, input_ids.device)
    places = layout.places.index_select(0, index)
    return run_layout(model, input_ids.index_select(0, layout.tokens), layout, places)


def sliced_hidden_states(
    model: PreTrainedModel,
    input_ids: Tensor,
    lengths: Sequence[int],
    index: Tensor,
    ranks: SequenceRanks,
    prompts: tuple[Sequence[int], Sequence[int]] | None = None,
) -> tuple[Tensor, Tensor]:
    """The rows `index` of `hidden_states`, packed, that this one of the ranks computes, and which of them those are.

    prompts: (prompt_lengths, families) where every distinct prompt is computed once
    """
    use_layouts(model)
    layout: Layout = PackedLayout(lengths, input_ids.device)
    if prompts is not None:
        layout = SharedPromptLayout(lengths, *prompts, input_ids.device)
        input_ids, index = input_ids.index_select(0, layout.tokens), layout.places.index_select(0, index)
    sliced = SlicedLayout(layout, ranks)
    mine = sliced.owned(index)
    return run_layout(model, sliced.own(input_ids), sliced, index.index_select(0, mine) - sliced.begin), mine


def run_layout(model: PreTrainedModel, input_ids: Tensor, layout: Layout, index: Tensor | None = None) -> Tensor:
    """Last hidden states [tokens, H], or their rows `index` [n]; the model's attention must be set to layouts."""
    prune_last_layer(model)
    read = None if index is None else distinct_tokens(index, len(input_ids))
    hidden = recorded_states(model, input_ids[None], layout, read)
    if hidden is None:
        hidden = own_states(model.base_model, input_ids[None], layout.position_ids, layout, read)
    hidden = hidden[0]
    return hidden if index is None else hidden.index_select(0, index)


def _rectangle(input_ids: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ids and mask [rows, longest], and where each token stands in them laid flat; the padding id is 0 and
    is never seen by a real token."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    places = mask.flatten().nonzero().squeeze(1).to(input_ids.device)
    ids = torch.zeros(mask.numel(), dtype=input_ids.dtype, device=input_ids.device)
    ids[places] = input_ids
    return ids.view(mask.shape), mask.long().to(input_ids.device), places
