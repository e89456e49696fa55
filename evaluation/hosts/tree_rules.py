"""Policies of a benchmark run on a host with EAGLE's seam: a rule, and options of the tree behind an @."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from svip_adapters.adapters.eagle import patch_eagle
from svip_adapters.policies import parse_policy
from svip_adapters.policy import LengthPolicy

from ..errors import BenchError
from ..policy_list import host_options, rule_of

__all__ = ["TreeRules"]

SHAPE: dict[str, type] = {"depth": int, "top_k": int, "total_tokens": int}
PRUNING: dict[str, type] = {"max_depth": int, "min_probability": float, "level_rule": str}


class TreeRules:
    """Puts policies on one model; a rule object lives for the whole run, as it does in a server.

    ``host@depth=3,total_tokens=20`` sets attributes of the draft layer; a rule also takes the options of
    ``patch_eagle``, as in ``svip:threshold=0.5@max_depth=9,min_probability=0.02``.

    Args:
        model: with ``ea_layer``, as ``patch_eagle`` takes it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._rules: dict[str, LengthPolicy] = {}

    def check(self, policy: str) -> None:
        """Raises BenchError or PolicyError for options that make no sense."""
        known = {"plain": {}, "host": SHAPE}.get(rule_of(policy), SHAPE | PRUNING)
        rule, found = host_options(policy, known)
        for name in SHAPE.keys() & found:
            if found[name] < (name != "depth"):
                raise BenchError(f"expected {name} of at least {int(name != 'depth')}, found {policy!r}.")
        if rule != "plain":
            with self.applied(policy):
                pass

    def forget(self) -> None:
        """Begin anew with rules that keep what they learn from one sequence to the next."""
        self._rules.clear()

    @contextlib.contextmanager
    def applied(self, policy: str) -> Iterator[None]:
        """Within the block the model drafts under ``policy``, which is not ``plain``."""
        rule, found = host_options(policy, SHAPE | PRUNING)
        layer = vars(self._model.ea_layer)
        before = {name: layer[name] for name in SHAPE}
        layer.update({name: value for name, value in found.items() if name in SHAPE})
        try:
            if rule == "host":
                yield
                return
            if policy not in self._rules:  # not the rule: with other options it learns from other rounds
                self._rules[policy] = parse_policy(rule)
            pruning = {name: value for name, value in found.items() if name in PRUNING}
            with patch_eagle(self._model, policy=self._rules[policy], **pruning):
                yield
        finally:
            layer.update(before)
