"""The rules, one a file, and their names."""

from svip_adapters.policies.adaedl import AdaEDL
from svip_adapters.policies.bandit import Bandit
from svip_adapters.policies.combine import AllOf, AnyOf
from svip_adapters.policies.confidence import Confidence
from svip_adapters.policies.cumulative import Cumulative
from svip_adapters.policies.fitted_svip import FittedSVIP
from svip_adapters.policies.fixed import Fixed
from svip_adapters.policies.heuristic import Heuristic
from svip_adapters.policies.rate_optimal import RateOptimal
from svip_adapters.policies.spec import POLICIES, parse_policy, split_policies
from svip_adapters.policies.svip import SVIP
from svip_adapters.policies.table import Table

__all__ = [
    "POLICIES",
    "SVIP",
    "AdaEDL",
    "AllOf",
    "AnyOf",
    "Bandit",
    "Confidence",
    "Cumulative",
    "FittedSVIP",
    "Fixed",
    "Heuristic",
    "RateOptimal",
    "Table",
    "parse_policy",
    "split_policies",
]
