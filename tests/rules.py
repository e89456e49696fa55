"""Every built-in rule by its command-line name, with arguments where it needs or likes some."""

from svip_adapters.policies import POLICIES, SVIP, Bandit, Fixed, Heuristic


class SteadyBandit(Bandit):
    """One with costs given, which cannot be written on a command line."""

    def __init__(self):
        super().__init__(Fixed(1), SVIP(), Heuristic(), draft_cost=0.2, verify_cost=0.03)


_ARGUMENTS = {
    # With costs given: measured ones are others each time.
    "rate_optimal": "rate_optimal:draft_cost=0.2,verify_cost=0.03",
    "bandit": "rules:SteadyBandit",
    "all": "all:svip+confidence:0.6",
    "any": "any:svip+fixed:4",
    "confidence": "confidence:0.6",
    "cumulative": "cumulative:0.3",
    "fixed": "fixed:5",
    "table": "table:1=3,200=1,400=6,by=context_length",
}
RULES = [_ARGUMENTS.get(name, name) for name in POLICIES]
RULES += ["svip:stops_before=True", "adaedl:stops_before=True"]
ENTROPY_RULES = [rule for rule in RULES if "svip" in rule or "adaedl" in rule]
