"""Two processes an engine: both leave the draft's loop at one step, whatever their policies would say."""

import random
from pathlib import Path

import pytest

from svip_adapters import LengthPolicy

pytestmark = pytest.mark.vllm


class Disagrees(LengthPolicy):
    """Another answer in each process and at each step; after a while it fails."""

    def __init__(self):
        self.random = random.Random()  # seeded by the system
        self.steps = 0

    def stop(self, step):
        self.steps += 1
        if self.steps == 60:
            raise RuntimeError("mine")
        return step.entropy > (3 if self.random.random() < 0.5 else -1)


def drafting(worker):
    """(whether the policy is on, rounds, forwards of the draft) in one process."""
    runner = worker.model_runner
    patch = getattr(runner, "_svip_patch", None)
    return None if patch is None else (patch.stats.rounds, patch.stats.draft_steps)


def test_tensor_parallel(tmp_path, monkeypatch):
    from vllm_engines import answer, prompts, save_pair, start

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # to ask the processes what they count
    target, draft = save_pair(tmp_path)
    plain = start(target)
    expected = answer(plain, prompts(8))
    del plain
    llm = start(
        target,
        draft,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        additional_config={"length_policy": {"name": "test_vllm_parallel:Disagrees", "strict": True}},
    )
    assert answer(llm, prompts(8)[:2]) == expected[:2]
    (rounds, steps), (unseen, others) = llm.collective_rpc(drafting)
    assert rounds > unseen == 0  # the second process plans nothing
    assert steps == others > rounds / 2
    for _ in range(3):
        assert answer(llm, prompts(8)) == expected
    assert llm.collective_rpc(drafting) == [None, None]  # it has failed in the first, and is off in both
