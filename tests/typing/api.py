"""Code as a user writes it: ``mypy --strict`` must accept every line, and it runs."""

from torch import Tensor

from svip_adapters import (
    SVIP,
    AllOf,
    AnyOf,
    DraftStep,
    Fixed,
    Heuristic,
    LengthPolicy,
    Outcome,
    Patch,
    PatchStats,
    PolicyError,
    RoundContext,
    Table,
    __version__,
    parse_policy,
)
from svip_adapters.policies import POLICIES, split_policies
from svip_adapters.testing import RecordingPolicy, ScriptedPolicy, check_policy


class Model:
    """What a host patches."""


class Patient(LengthPolicy):
    """A rule of one's own, with every hook."""

    max_length = 12
    stateless = False

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.misses = 0

    def begin(self) -> None:
        self.misses = 0

    def plan(self, context: RoundContext) -> int:
        return 0 if context.batch_size > 8 else self.max_length - min(self.misses, 11)

    def stop(self, step: DraftStep) -> Tensor:
        return (step.top1_prob < self.floor) | (step.margin < 0.1) | (step.entropy > 2.0)

    def verified(self, outcome: Outcome) -> None:
        self.misses = 0 if outcome.all_accepted else self.misses + outcome.depth - outcome.accepted


check_policy(Patient(0.3))
check_policy(lambda: Patient(0.3), device="cpu")
rule: LengthPolicy = AnyOf(Patient(0.3), AllOf(Fixed(3), SVIP(threshold=0.2, scale=1.0, stops_before=False)))
threshold: float = SVIP().threshold
kept: dict[str, type[LengthPolicy]] = POLICIES
rules: list[LengthPolicy] = [parse_policy(text) for text in split_policies("svip:threshold=0.3,fixed:5")]
table: Table = Table({1: 5, 8: 3}, by="batch_size")
recorder = RecordingPolicy(ScriptedPolicy([3, 1], by="plan"))
depths: list[int] = [recorded.depth for recorded in recorder.steps]
version: str = __version__

with Patch(Model(), Heuristic(start=3)) as patch:
    stats: PatchStats = patch.stats
    wasted: int = stats.wasted
    histogram: dict[int, int] = dict(stats.lengths)

try:
    Fixed(-1)
except PolicyError as error:
    print(error)
