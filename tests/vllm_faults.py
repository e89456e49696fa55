"""Policies that a server is given by name: one that fails while it serves, and one that answers wrongly."""

import torch

from svip_adapters import LengthPolicy


class Raises(LengthPolicy):
    """At the hundredth step."""

    def __init__(self):
        self.steps = 0

    def stop(self, step):
        self.steps += 1
        if self.steps == 100:
            raise RuntimeError("mine")
        return step.entropy > 1


class WrongShape(Raises):
    """One answer for all rows."""

    def stop(self, step):
        return torch.zeros(1, dtype=torch.bool)
