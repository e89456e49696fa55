"""patch_eagle on the authors' EaModel over twenty MT-Bench prompts, 64 tokens each, greedy in float32.

EAGLE-2 with the embedded target and its trained layer, EAGLE-3 with a random head on a random target, which
reads the prompts' bytes. Minutes: the first prompt set runs a real model six times.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from upstream_eagle import NEVER, comparing_trees, generate, is_prefix, load_exported, make_model

from svip_adapters import SVIP, patch_eagle

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif("EAGLE_HOME" not in os.environ, reason="EAGLE_HOME names no checkout"),
]
NEW, PROMPTS = 64, 20
OPTIONS = {"max_new_tokens": NEW, "max_length": 1024}


def _questions():
    file = Path(os.environ["EAGLE_HOME"]) / "eagle" / "data" / "mt_bench" / "question.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row["turns"][0] for row in rows[:: len(rows) // PROMPTS]][:PROMPTS]


def _trained(folder):
    from svip_adapters.evaluation.hosts import smollm2
    from svip_adapters.evaluation.hosts.base import chat_ids
    from svip_adapters.evaluation.train.export_eagle import export_eagle

    export_eagle(smollm2.load_target("float32"), smollm2.model_dir(), folder)
    model = load_exported(folder, total_token=30, depth=5, top_k=8)
    tokenizer = smollm2.load_tokenizer()
    chats = [[{"role": "user", "content": text}] for text in _questions()]
    return model, [torch.tensor([chat_ids(tokenizer, chat)]) for chat in chats]


@pytest.fixture(scope="module", params=["eagle2", "eagle3"])
def case(request, tmp_path_factory):
    """(model, prompts, plain answers), the unpatched host's answers checked against those."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "eagle2":
        model, prompts = _trained(folder)
    else:
        model = make_model("eagle3", folder)
        prompts = [torch.tensor([list(text.encode()[:200])]) for text in _questions()]
    plain = []
    for prompt in prompts:
        ids = model.naivegenerate(prompt, temperature=0.0, **OPTIONS)
        plain.append(ids[0, prompt.shape[1] :].tolist())
    assert all(is_prefix(generate(model, p, **OPTIONS), ids) for p, ids in zip(prompts, plain, strict=True))
    return model, prompts, plain


@pytest.mark.parametrize("threshold", [NEVER, 0.9, 0.6, 0.3])
def test_twenty_of_twenty_prompts_are_identical(case, threshold):
    model, prompts, plain = case
    theirs = model.ea_layer.topK_genrate
    same = []
    with patch_eagle(model, policy=SVIP(threshold=threshold)) as patch:
        for prompt, wanted in zip(prompts, plain, strict=True):
            if threshold == NEVER:
                with comparing_trees(model.ea_layer, theirs) as calls:
                    found = generate(model, prompt, **OPTIONS)
                assert all(calls)
            else:
                found = generate(model, prompt, **OPTIONS)
            # Past the last token, or the end of the sequence, upstream keeps what else its round gained.
            same.append(len(found) >= min(NEW, len(wanted)) and is_prefix(found, wanted))
    print(f"{threshold}: {sum(same)} of {len(same)}; {patch.stats}")
    assert all(same)
    assert len(same) == PROMPTS
