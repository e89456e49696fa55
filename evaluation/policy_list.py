"""``--policies``: what a run measures; each rule is built once, so that a wrong one is found early."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable

from .errors import BenchError

__all__ = ["REFERENCES", "measured", "own_rules"]

REFERENCES = ("plain", "host")


def measured(text: str, baseline: str) -> list[str]:
    """What a run measures: ``plain``, the baseline should it be missing, then the list; doubles dropped.

    Args:
        text: rules and references separated by commas; a piece ``name=value`` belongs to the rule before it.
        baseline: one rule or reference.

    Raises:
        BenchError: an empty list.
        PolicyError: an unknown rule, or arguments it does not take.
    """
    from svip_adapters.policies import parse_policy, split_policies

    policies = split_policies(text)
    if not policies:
        raise BenchError(
            f"expected at least one policy, found {text!r}; name some, e.g. host,svip:threshold=0.3."
        )
    if baseline not in policies:
        policies.insert(0, baseline)
    for policy in policies:
        if policy not in REFERENCES:
            parse_policy(policy)
    return list(dict.fromkeys(["plain", *policies]))


def own_rules(policies: Iterable[str]) -> dict[str, str]:
    """{policy: digest of its source} of the rules that are a user's own: an edited one is another rule."""
    from svip_adapters.policies import POLICIES, parse_policy

    found: dict[str, str] = {}
    for policy in policies:
        name = policy.partition(":")[0]
        if ":" not in policy or (name in POLICIES and name not in ("any", "all")):
            continue
        rule = parse_policy(policy)
        for part in getattr(rule, "rules", (rule,)):
            if not type(part).__module__.startswith("svip_adapters."):
                source = inspect.getsource(inspect.getmodule(type(part)) or type(part))
                found[policy] = found.get(policy, "") + hashlib.sha256(source.encode()).hexdigest()[:12]
    return found
