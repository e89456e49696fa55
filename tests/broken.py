"""A policy that misbehaves once, and everything it can do: every host must name it and stay usable."""

import torch

from svip_adapters import LengthPolicy, PolicyError


class Broken(LengthPolicy):
    """Answers what it is told to, or raises it, in one of its methods; then behaves."""

    def __init__(self, method, answer):
        self.method, self.answer = method, answer

    def _answer(self, method, default):
        if method != self.method:
            return default
        self.method = None
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def begin(self):
        self._answer("begin", None)

    def plan(self, context):
        return self._answer("plan", 4)

    def stop(self, step):
        return self._answer("stop", step.entropy < 0) if step.depth == 1 else step.entropy < 0

    def verified(self, outcome):
        self._answer("verified", None)


FAULTS = [
    ("stop", True, PolicyError, r"expected torch.bool of shape \(\d,\) on cpu, found True"),
    ("stop", torch.zeros(2, dtype=torch.bool), PolicyError, r"found torch.bool of shape \(2,\)"),
    ("stop", torch.zeros(1), PolicyError, "found torch.float32"),
    ("stop", torch.zeros(1, dtype=torch.bool, device="meta"), PolicyError, "on meta"),
    ("plan", -1, PolicyError, "found -1"),
    ("plan", 2.5, PolicyError, "found 2.5"),
    ("plan", None, PolicyError, "found None"),
    *(
        (method, RuntimeError("mine"), RuntimeError, "mine")
        for method in ("begin", "plan", "stop", "verified")
    ),
    *((method, KeyboardInterrupt(), KeyboardInterrupt, None) for method in ("plan", "stop")),
]
