"""One patched draft, and one sequence of transformers' assisted generation, under a policy."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from svip_adapters.errors import UnsupportedHostError
from svip_adapters.patching import Patch
from svip_adapters.policy import Outcome, RoundContext

from ._bridge import ChainRound, NotCopied, plan_length


class Bridge(NotCopied):
    """What a patched draft carries: its ``generate``, its forward hook and the round that is open."""

    def __init__(self, model: Any, patch: Patch) -> None:
        self.policy = patch.policy
        self.stats = patch.stats
        self._generate = model.generate
        self._round: ChainRound | None = None
        self._logits: Tensor | None = None

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The draft's ``generate``; inside a round with the policy as one more stopping criterion."""
        if self._round is not None:
            kwargs["stopping_criteria"] = [*(kwargs.get("stopping_criteria") or ()), self._ask]
        elif getattr(kwargs.get("generation_config"), "is_assistant", False):
            raise UnsupportedHostError(
                "expected transformers' own assisted generation to call this patched draft, found a call "
                "from elsewhere (a custom_generate recipe, or a candidate generator built by hand), which "
                "would draft without its policy. Use target.generate(..., assistant_model=draft), or "
                "revert the patch."
            )
        return self._generate(*args, **kwargs)

    def keep_logits(self, module: Any, args: Any, output: Any) -> None:
        """Forward hook: keep the last position's raw logits; criteria are shown processed scores."""
        if self._round is not None:
            self._logits = output.logits[:, -1]

    @contextmanager
    def drafting(self, current: ChainRound) -> Iterator[None]:
        """Hold ``current`` open: only inside is the policy asked."""
        if self._round is not None:
            raise UnsupportedHostError(
                "expected one generate() at a time to draft with a patched model, found a second one while "
                "the first is drafting. Run them one after the other, or load and patch one draft for each "
                "thread."
            )
        self._round = current
        try:
            yield
        finally:
            self._round = self._logits = None

    def _ask(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        logits, self._logits = self._logits, None
        if self._round is None or logits is None:
            raise UnsupportedHostError(
                "expected the draft's forward to run before each draw, found a draw without one. Patch the "
                "model whose forward computes the logits, not a wrapper around it."
            )
        return self._round.ask(logits, input_ids[:, -1].to(logits.device)).to(input_ids.device)


class Sequence:
    """One ``target.generate`` call: takes over the two public methods of its candidate generator.

    Args:
        bridge: the patched draft's.
        generator: an ``AssistedCandidateGenerator``; it lives for this call only.
        config: the target's ``GenerationConfig``, resolved: gives the length limit and the EOS ids.
        prompt: (1, length) ids.
    """

    def __init__(self, bridge: Bridge, generator: Any, config: Any, prompt: Tensor) -> None:
        self._bridge = bridge
        self._generator = weakref.ref(generator)  # no cycle: the draft's cache must go when the call ends
        self._max_length: int = config.max_length
        self._eos: Any = config.eos_token_id if config.eos_token_id is not None else ()
        self._eos = (self._eos,) if isinstance(self._eos, int) else self._eos
        # After a prompt that ends in EOS, 4.57 takes a round without a draft for the end: draft one token.
        old = not hasattr(generator, "assistant_generation_config")
        self._must_draft_at = prompt.shape[1] if old and int(prompt[0, -1]) in self._eos else -1
        # Between different tokenizers the host reads in one token a round, those of a round left out not.
        self._always_drafts = hasattr(generator, "assistant_tokenizer")
        generator.get_candidates = self.get_candidates
        generator.update_candidate_strategy = self.update_candidate_strategy
        generator.generation_config.assistant_confidence_threshold = 0.0
        # The "heuristic" schedule writes this to the draft's config in the end: let that change nothing.
        generator.num_assistant_tokens = generator.assistant_model.generation_config.num_assistant_tokens
        bridge.policy.begin()

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Draft one round: (1, length + drafted) ids and (1, drafted, V) scores, None without a draft."""
        length = input_ids.shape[1]
        self._length, self._candidates, self._steps, self._early = length, input_ids, 0, False
        context = RoundContext(context_length=length, remaining=max(0, self._max_length - length - 1))
        limit = 0
        if context.remaining:
            must = self._always_drafts or length == self._must_draft_at
            limit = max(plan_length(self._bridge.policy, context), int(must))
        if limit == 0:
            return input_ids, None
        current = ChainRound(self._bridge.policy, limit)
        generator: Any = self._generator()
        _lengthen_first_masks(generator, length)
        with _host_rules_off(generator, limit), self._bridge.drafting(current):
            ids, scores = type(generator).get_candidates(generator, input_ids, **kwargs)
        if current.error is not None:
            raise current.error
        return self._close(current, ids, scores)

    def _close(self, current: ChainRound, ids: Tensor, scores: Tensor | None) -> tuple[Tensor, Tensor | None]:
        self._steps = current.steps
        if current.stop is not None and current.drawn is not None and bool(current.stop):
            before = self._bridge.policy.stops_before
            self._early = before or int(current.drawn) not in self._eos
            if before and (current.steps > 1 or self._length != self._must_draft_at):
                ids, scores = ids[:, :-1], None if scores is None else scores[:, :-1]
        self._candidates = ids
        return ids, scores if ids.shape[1] > self._length else None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Report a verified round. Not from ``num_matches``: an accepted EOS is not counted there."""
        drafted = self._candidates.shape[1] - self._length
        gained = input_ids.shape[1] - self._length
        accepted = gained - 1
        # What the target puts in place of a rejected token differs from it, so an equal token was accepted.
        if gained <= drafted and int(input_ids[0, -1]) == int(self._candidates[0, self._length + accepted]):
            accepted += 1
        outcome = Outcome(drafted=drafted, accepted=accepted)
        self._bridge.stats.add_round(outcome, draft_steps=self._steps, early_stop=self._early)
        if drafted:
            self._bridge.policy.verified(outcome)


def _lengthen_first_masks(generator: Any, length: int) -> None:
    """Fit the draft's masks to ``length`` tokens where rounds without a draft went before the first one.

    The host does so from its second draft on; it always drafts in the first round.
    """
    arguments = generator.assistant_kwargs
    if arguments.get("cache", arguments.get("past_key_values")) is not None:
        return
    from transformers.generation import candidate_generator as host

    encoder_decoder = generator.assistant_model.config.is_encoder_decoder
    arguments = host._prepare_attention_mask(arguments, length, encoder_decoder)
    if hasattr(host, "_prepare_position_ids"):  # since 5.x
        arguments = host._prepare_position_ids(arguments, length, encoder_decoder)
    generator.assistant_kwargs = host._prepare_token_type_ids(arguments, length)


@contextmanager
def _host_rules_off(generator: Any, limit: int) -> Iterator[None]:
    """For one draft: our limit for the host's, and its confidence gate and the re-fit of that gate off."""
    # Since 5.x the generator re-fits a copy of its own; 4.57 does so on the draft's config.
    refit = getattr(generator, "assistant_generation_config", generator.assistant_model.generation_config)
    kept = generator.num_assistant_tokens, refit.assistant_confidence_threshold
    generator.num_assistant_tokens, refit.assistant_confidence_threshold = limit, 0.0
    try:
        yield
    finally:
        generator.num_assistant_tokens, refit.assistant_confidence_threshold = kept
