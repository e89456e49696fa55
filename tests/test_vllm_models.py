"""The embedded models on vLLM: the same counts as Hugging Face's adapter, and the trained EAGLE head."""

import pytest
import torch
from embedded_prompts import chat_ids

from svip_adapters import LengthPolicy, parse_policy, patch_transformers, patch_vllm
from svip_adapters.evaluation.hosts import smollm2

pytestmark = pytest.mark.vllm
NEW = 24


class Watched(LengthPolicy):
    """Hands everything on to ``inner`` and keeps (drafted, accepted) of each round, by sequence."""

    stateless = False

    def __init__(self, inner):
        self.inner, self.max_length, self.stops_before = inner, inner.max_length, inner.stops_before
        self.rounds = []

    def __deepcopy__(self, memo):
        return self

    def begin(self):
        self.rounds.append([])
        self.inner.begin()

    def plan(self, context):
        return self.inner.plan(context)

    def stop(self, step):
        return self.inner.stop(step)

    def verified(self, outcome):
        self.rounds[-1].append((outcome.drafted, outcome.accepted))
        self.inner.verified(outcome)


@pytest.fixture(scope="module")
def target():
    return smollm2.load_target()


@pytest.fixture(scope="module")
def pair(target, tmp_path_factory):
    """(llm, draft): an engine of the embedded pair, one request at a time, and its draft in transformers."""
    from transformers import AutoModelForCausalLM
    from vllm_engines import start

    folder = tmp_path_factory.mktemp("draft")
    smollm2.export_draft(folder, target)
    llm = start(smollm2.model_dir(), folder, 6, max_model_len=512, max_num_seqs=1)
    return llm, AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def with_transformers(target, draft, asked, rule):
    """Answers after the first token, and the rounds. vLLM drafts from the token after the prompt on."""
    watched = Watched(parse_policy(rule))
    answers = []
    with patch_transformers(draft, policy=watched):
        for prompt, first in asked:
            ids = torch.tensor([[*prompt, first]])
            options = {"max_new_tokens": NEW - 1, "do_sample": False, "attention_mask": torch.ones_like(ids)}
            answers.append(target.generate(ids, assistant_model=draft, **options)[0, ids.shape[1] :].tolist())
    return answers, watched.rounds


@pytest.mark.parametrize("rule", ["svip:threshold=0.4,max_length=6", "heuristic:max_length=6"])
def test_counts_are_those_of_transformers(target, pair, rule):
    from vllm_engines import answer

    llm, draft = pair
    prompts = [{"prompt_token_ids": ids} for ids in chat_ids(4)]
    watched = Watched(parse_policy(rule))
    with patch_vllm(llm, policy=watched):
        answers = answer(llm, prompts, max_tokens=NEW)
    asked = [(p["prompt_token_ids"], ids[0]) for p, ids in zip(prompts, answers, strict=True)]
    others, rounds = with_transformers(target, draft, asked, rule)
    assert [ids[1:] for ids in answers] == others
    assert watched.rounds == rounds
    assert sum(map(len, rounds)) > 30
    assert sum(accepted for each in rounds for _, accepted in each) > 15


def test_the_trained_eagle_head(target, tmp_path):
    from vllm_engines import answer, start

    from svip_adapters.evaluation.train.export_eagle import export_eagle

    export_eagle(target, smollm2.model_dir(), tmp_path)
    prompts = [{"prompt_token_ids": ids} for ids in chat_ids(3)]
    head = {"method": "eagle", "model": str(tmp_path / "head")}
    llm = start(smollm2.model_dir(), tmp_path / "head", 4, speculative_config=head, max_model_len=512)
    expected = [
        target.generate(torch.tensor([p["prompt_token_ids"]]), max_new_tokens=NEW, do_sample=False)[
            0
        ].tolist()
        for p in prompts
    ]
    for rule in ("fixed:4", "svip:threshold=0.5"):
        with patch_vllm(llm, policy=parse_policy(rule)) as patch:
            answers = answer(llm, prompts, max_tokens=NEW)
        assert [[*p["prompt_token_ids"], *ids] for p, ids in zip(prompts, answers, strict=True)] == expected
        assert patch.stats.accepted > 0.3 * patch.stats.rounds
