"""GliDe generation on current transformers: draft a chain, widen it by CaPE, verify it, keep a path.

With the seam of the authors' code, so that ``patch_glide`` treats both alike: ``medusa_generate``,
``medusa_forward``, and the functions of this module that they call. Greedy, and sampling, which the authors'
code lacks: what is proposed is not drawn at random, so verification is exact for any tree (``tree_verify``).
The two methods call those functions themselves: the adapter stands in for what *their* code names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from svip_adapters.adapters._tree_arrays import Tree

from .glide_layer import GlideLayer
from .glide_tree import ALONE, expand
from .llama_attention import KeysValues
from .tree_target import Round, TreeTarget, until
from .tree_verify import accept, first_token

__all__ = ["DRAFTED", "GlideModel"]

DRAFTED = 4  # tokens a round, by the authors' setting


class GlideModel(nn.Module):
    """The drafter of one target, one sequence at a time.

    Args:
        layer: made for the target.
        target: a LlamaForCausalLM.
    """

    def __init__(self, layer: GlideLayer, target: Any) -> None:
        super().__init__()
        self.layer, self.config = layer, layer.config
        self.head = layer.head(target)
        self.eos_token_id: int | None = target.generation_config.eos_token_id
        self.past_key_values: KeysValues | None = None

    def medusa_generate(
        self,
        input_ids: Tensor,
        large_model: Any,
        *,
        temperature: float = 1.0,
        max_steps: int = 512,
        prob_to_top: Sequence[int] = ALONE,
        do_speculative_sample: bool = False,
    ) -> dict[str, Any]:
        """Generate at most ``max_steps`` tokens, up to and with the end-of-sequence token.

        Args:
            input_ids: (1, P) prompt. large_model: the target.
            temperature: of sampling, and of the draft's confidence.
            prob_to_top: see ``expand``; all 1 is GliDe without CaPE.
            do_speculative_sample: sample; otherwise greedy.

        Returns:
            ``new``, a list of ids, and ``rounds``; the first is the forward over the prompt.
        """
        with torch.inference_mode():
            heat, target = temperature if do_speculative_sample else 0.0, TreeTarget(large_model)
            self.past_key_values = None
            token = first_token(target.head(target.read(input_ids)[0, -1:]), heat)
            new, rounds = [token], [Round(gained=1)]
            while len(new) < max_steps and new[-1] != self.eos_token_id:
                ids = torch.cat((input_ids, input_ids.new_tensor([new])), dim=1)
                tree = self.medusa_forward(target, ids, temperature=temperature, prob_to_top=prob_to_top)
                nodes, paths = torch.cat((ids[0, -1:], tree.tokens)), tree.paths.to(ids.device)
                candidates, tokens = generate_candidates_joint_llama(nodes, paths)
                hidden = target.verify(tokens, tree.mask.float()[None, None], tree.depths)
                path, token = accept(nodes.tolist(), tree.paths, target.head(hidden[0]), heat)
                kept = update_inference_inputs_joint_llama(
                    input_ids=ids,
                    candidates=candidates,
                    best_candidate=_row(tree.paths, path),
                    accept_length=len(path) - 1,
                    retrieve_indices=paths,
                    large_past_key_values=target,
                )
                found = [*kept[0, ids.shape[1] :].tolist(), token]
                gained = until(found, self.eos_token_id, max_steps - len(new))
                new += gained
                accepted = min(len(gained), len(path) - 1)
                rounds.append(Round(len(gained), len(tree.tokens), tree.depth, accepted))
        return {"new": new, "rounds": rounds}

    def medusa_forward(
        self, large_model: TreeTarget, input_ids: Tensor, *, temperature: float, prob_to_top: Sequence[int]
    ) -> Tree:
        """One draft after ``input_ids`` (1, L), whose last token the target's cache does not hold yet."""
        output = greedy_search(
            self,
            input_ids,
            stopping_criteria=lambda ids, scores: len(scores) >= DRAFTED,
            large_key_values=large_model.last_keys,
        )
        logits = torch.cat(output["scores"])
        return expand(logits, temperature=temperature, prob_to_top=prob_to_top)


def greedy_search(
    self: GlideModel,
    input_ids: Tensor,
    *,
    stopping_criteria: Callable[[Tensor, tuple[Tensor, ...]], bool],
    large_key_values: KeysValues,
) -> dict[str, Any]:
    """Draft likeliest tokens after ``input_ids`` (1, L) until told to stop, or the end of the sequence.

    Returns:
        ``sequences`` (1, L + drafted) and ``scores``, (1, V) logits of each drafted token.
    """
    past, length = self.past_key_values, input_ids.shape[1]
    scores: tuple[Tensor, ...] = ()
    while True:
        read = 0 if past is None else past[0].shape[2]
        estimates, past = self.layer(input_ids[:, read:], large_key_values, past)
        scores += (self.head(estimates[:, -1]),)
        input_ids = torch.cat((input_ids, scores[-1].argmax(dim=-1, keepdim=True)), dim=1)
        ended = int(input_ids[0, -1]) == self.eos_token_id
        if stopping_criteria(input_ids, scores) or ended:
            break
    self.past_key_values = past[0][:, :, :length], past[1][:, :, :length]
    return {"sequences": input_ids, "scores": scores}


def generate_candidates_joint_llama(
    tree_candidates: Tensor, retrieve_indices: Tensor
) -> tuple[Tensor, Tensor]:
    """(n + 1,) tokens, (leaves, depth + 1) nodes -> tokens of the paths, filled up with -1; (1, n + 1)."""
    paths = tree_candidates[retrieve_indices.clamp(min=0)].masked_fill(retrieve_indices < 0, -1)
    return paths, tree_candidates[None]


def update_inference_inputs_joint_llama(
    input_ids: Tensor,
    candidates: Tensor,
    best_candidate: int,
    accept_length: int,
    retrieve_indices: Tensor,
    large_past_key_values: TreeTarget,
) -> Tensor:
    """Keep an accepted path in the target's cache; (1, L + accepted) ids."""
    path = retrieve_indices[best_candidate, : accept_length + 1].tolist()
    large_past_key_values.keep(path, int(retrieve_indices.max()) + 1)
    return torch.cat((input_ids, candidates[best_candidate, None, 1 : accept_length + 1]), dim=1)


def _row(paths: Tensor, path: list[int]) -> int:
    """The row of (leaves, depth + 1) nodes that begins with a path from the root."""
    wanted = torch.tensor(path)
    return int((paths[:, : len(path)] == wanted).all(dim=1).nonzero()[0])
