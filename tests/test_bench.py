"""The driver on a host without models: order, history, records, and runs that are killed and go on."""

import json
import random

import pytest

from svip_adapters.evaluation.bench import Bench, Settings
from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.hosts.base import Generation, Host
from svip_adapters.evaluation.prompts import Prompt
from svip_adapters.evaluation.records import answer_file

POLICIES = ("plain", "host", "svip:threshold=0.3,scale=0.2", "fixed:2")
PROMPTS = [Prompt(i, ("math", "stem")[i % 2], (f"one {i}", f"two {i}")) for i in range(5)]


class FakeHost(Host):
    """Answers are a function of prompt and seed; rounds are made up; ``fail_at`` raises in that call."""

    name, target_name, draft_name, dtype, device = "fake", "big", "small", "float32", "cpu"

    def __init__(self, fail_at=None, wrong=None, **other):
        self.calls, self.fail_at, self.wrong = [], fail_at, wrong
        vars(self).update(other)

    def versions(self):
        return {"fake": "1.0", "weights": "abc"}

    def encode(self, messages):
        return [ord(c) for m in messages for c in m["role"][0] + m["content"]]

    def decode(self, ids):
        return " ".join(map(str, ids))

    def generate(self, prompt, *, policy, max_new_tokens, temperature, seed):
        self.calls.append((policy, tuple(prompt), max_new_tokens, seed))
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt
        rng = random.Random(f"{prompt}{seed if temperature else 0}")
        ids = [rng.randrange(100) for _ in range(max_new_tokens)]
        if policy == self.wrong:
            ids[3] += 100
        chain = policy != "plain"
        gained = [2] * (len(ids) // 2) if chain else [1] * len(ids)
        return Generation(
            ids=ids,
            seconds=0.5 if chain else 1.0,
            accept_lengths=gained,
            draft_lengths=[3 * chain] * len(gained),
            accepted=len(ids) - len(gained),
            draft_steps=3 * chain * len(gained),
            target_forwards=len(gained),
            nodes_verified=3 * chain * len(gained),
        )

    def probe(self, prompt, ids):
        return [(0.5, True)] * len(ids)

    def gap(self, prompt, ids, position, accept_lengths, draft_lengths):
        return 1e-6 if accept_lengths[0] == 1 else 2e-6


def settings(**changes):
    default = {
        "prompt_set": "builtin",
        "policies": POLICIES,
        "baseline": "host",
        "max_new_tokens": 8,
        "temperature": 0.0,
        "seed": 0,
        "threads": 1,
    }
    return Settings(**default | changes)


def start(out, host=None, prompts=PROMPTS, **changes):
    return Bench(host or FakeHost(), prompts, settings(**changes), out)


def timed(host):
    """Calls that are not the warm-up."""
    return host.calls[len(POLICIES) :]


def lines(out, policy):
    return (out / "answers" / answer_file(policy)).read_text().splitlines()


def test_every_policy_runs_back_to_back_and_each_goes_first(tmp_path):
    host = FakeHost()
    start(tmp_path, host).run()
    calls, n = timed(host), len(POLICIES)
    groups = [calls[i : i + n] for i in range(0, len(calls), n)]
    assert len(groups) == 10
    for group in groups:
        assert {policy for policy, *_ in group} == set(POLICIES)
        assert (
            len({rest for _, *rest in ((p, *map(str, r)) for p, *r in group) for rest in [tuple(rest)]}) == 1
        )
    assert {group[0][0] for group in groups[::2]} == set(POLICIES)


def test_the_second_turn_sees_plains_answer_for_every_policy(tmp_path):
    host = FakeHost(wrong="fixed:2")
    start(tmp_path, host).run()
    record = json.loads(lines(tmp_path, "plain")[0])
    history = [("user", "one 0"), ("assistant", host.decode(record["ids"][0])), ("user", "two 0")]
    wanted = tuple(host.encode([{"role": role, "content": text} for role, text in history]))
    assert [prompt for _, prompt, *_ in timed(host)[4:8]] == [wanted] * 4


def test_a_record_is_a_fastchat_answer_and_more(tmp_path):
    start(tmp_path).run()
    for policy in POLICIES:
        records = [json.loads(line) for line in lines(tmp_path, policy)]
        assert [record["question_id"] for record in records] == [0, 1, 2, 3, 4]
        first = records[0]
        assert {"answer_id", "model_id", "choices", "tstamp"} <= set(first)
        assert first["choices"][0]["turns"] == [" ".join(map(str, ids)) for ids in first["ids"]]
        assert first["new_tokens"] == [8, 8] == first["choices"][0]["new_tokens"]
        assert sum(first["choices"][0]["accept_lengths"]) == 16
        assert (first["policy"], first["category"]) == (policy, "math")
        assert ("probe" in first) == (policy == "plain")
    assert [len(turn) for turn in json.loads(lines(tmp_path, "plain")[0])["probe"]] == [8, 8]


def test_the_summary_has_exactly_the_schema(tmp_path):
    summary = start(tmp_path).run()
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    keys = "schema host target draft dtype device versions seed temperature baseline cells"
    assert list(summary) == keys.split()
    assert summary["schema"] == 1
    assert len(summary["cells"]) == 3 * len(POLICIES)
    cells = {(c["task"], c["policy"]): c for c in summary["cells"]}
    assert cells["overall", "fixed:2"]["speedup_vs_plain"]["value"] == pytest.approx(2.0)
    assert cells["overall", "plain"]["speedup"]["value"] == pytest.approx(0.5)
    assert cells["overall", "fixed:2"]["identical"] == 5


def test_a_difference_is_recorded_where_it_starts(tmp_path):
    summary = start(tmp_path, FakeHost(wrong="fixed:2")).run()
    record = json.loads(lines(tmp_path, "fixed:2")[2])
    assert record["difference"] == {"turn": 0, "position": 3, "gap": 2e-6, "gap_plain": 1e-6}
    assert json.loads(lines(tmp_path, "host")[2])["difference"] is None
    identical = {c["policy"]: c["identical"] for c in summary["cells"] if c["task"] == "overall"}
    assert identical == {"plain": 5, "host": 5, POLICIES[2]: 5, "fixed:2": 0}


def test_sampled_answers_share_seeds_and_are_not_compared(tmp_path):
    host = FakeHost(wrong="fixed:2")
    summary = start(tmp_path, host, temperature=1.0).run()
    assert "difference" not in json.loads(lines(tmp_path, "fixed:2")[0])
    assert {c["identical"] for c in summary["cells"]} == {None}
    assert len({seed for *_, seed in timed(host)}) == 10


def counts(summary):
    return [{k: v for k, v in c.items() if not k.startswith("speedup")} for c in summary["cells"]]


@pytest.mark.parametrize("fail_at", [1, 5, 12, 13, 20, 43])
def test_a_killed_run_goes_on_and_loses_nothing(tmp_path, fail_at):
    whole = start(tmp_path / "whole").run()
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "cut", FakeHost(fail_at=fail_at)).run()
    finished = max(0, (fail_at - 1 - len(POLICIES)) // (2 * len(POLICIES)))
    before = [lines(tmp_path / "cut", p) for p in POLICIES] if finished else [[]] * 4
    second = start(tmp_path / "cut")
    assert len(second.todo) == 5 - finished
    assert second.turns_left == 2 * 4 * (5 - finished)
    assert counts(second.run()) == counts(whole)
    for policy, kept in zip(POLICIES, before, strict=True):
        assert lines(tmp_path / "cut", policy)[: len(kept)] == kept


@pytest.mark.parametrize("cut", [1, 40, None])
def test_a_torn_line_is_dropped_and_its_prompt_run_again_for_all(tmp_path, cut):
    """Killed while writing: one policy's line is whole, the next one's torn, the others are missing."""
    whole = start(tmp_path).run()
    for k, policy in enumerate(POLICIES[1:]):
        text = "".join(f"{line}\n" for line in lines(tmp_path, policy)[:-1])
        torn = lines(tmp_path, policy)[-1][:cut] if k == 0 else ""
        (tmp_path / "answers" / answer_file(policy)).write_text(text + torn)
    host = FakeHost()
    again = start(tmp_path, host)
    assert [prompt.id for _, prompt in again.todo] == [4]
    assert counts(again.run()) == counts(whole)
    assert len(timed(host)) == 2 * len(POLICIES)
    assert all(len(lines(tmp_path, policy)) == 5 for policy in POLICIES)


def test_a_finished_run_generates_nothing_more(tmp_path):
    first = start(tmp_path).run()
    host = FakeHost()
    assert start(tmp_path, host).run() == first
    assert host.calls == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"host": FakeHost(dtype="bfloat16")}, "dtype was float32, is bfloat16"),
        ({"prompts": PROMPTS[:2]}, "prompts.count was 5, is 2"),
        ({"prompts": [*PROMPTS[:4], Prompt(4, "math", ("other",))]}, "prompts.digest was"),
        ({"prompt_set": "mt_bench"}, "prompts.set was builtin, is mt_bench"),
        ({"max_new_tokens": 9}, "max_new_tokens was 8, is 9"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"policies": POLICIES[:3]}, "policies was"),
        ({"temperature": 0.5}, "temperature was 0.0, is 0.5"),
    ],
)
def test_another_configuration_in_the_same_folder_is_refused(tmp_path, change, message):
    start(tmp_path).run()
    kept = lines(tmp_path, "plain")
    with pytest.raises(BenchError, match=rf"{message}.*another --out"):
        start(tmp_path, **change)
    assert lines(tmp_path, "plain") == kept


def test_another_baseline_only_changes_the_summary(tmp_path):
    start(tmp_path).run()
    host = FakeHost()
    summary = start(tmp_path, host, baseline="plain").run()
    assert host.calls == []
    assert summary["baseline"] == "plain"


@pytest.mark.parametrize("broken", ["run.json", "answers/plain.jsonl"])
def test_files_of_someone_else_are_refused(tmp_path, broken):
    start(tmp_path).run()
    (tmp_path / broken).write_text("[1, 2]\n")
    with pytest.raises(BenchError, match=broken.split("/")[-1]):
        start(tmp_path)


def test_an_output_path_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(BenchError, match="choose another --out"):
        start(tmp_path / "out")


def test_answer_files_are_readable_and_never_shared():
    assert answer_file("svip:threshold=0.3,scale=0.2") == "svip_threshold=0.3,scale=0.2.jsonl"
    names = ["a:b", "a_b", "a/b", "a.b", "A:b", "any:svip+fixed:5", "any:svip+fixed_5", "mod:Class:x=1"]
    assert len({answer_file(name) for name in names}) == len(names)
    assert all("/" not in answer_file(name) and ":" not in answer_file(name) for name in names)
