"""vLLM's own way in: entry points, additional_config, versions, and what is refused with what to set."""

import gc
import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest

from svip_adapters import HostVersionError, Outcome, PatchStats, PolicyError, UnsupportedHostError
from svip_adapters.adapters import _vllm_metrics
from svip_adapters.adapters import vllm as adapter
from svip_adapters.adapters._vllm_metrics import add_stats

pytestmark = pytest.mark.vllm
ENTRY = {"name": "svip", "threshold": 0.4}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    from vllm_engines import save_pair

    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def llm(pair):
    """An engine that drafts, without a policy."""
    from vllm_engines import start

    return start(*pair)


@pytest.fixture
def logged():
    from vllm_engines import logged

    with logged() as records:
        yield records


@pytest.fixture
def runner(llm):
    from vllm_engines import runner

    return runner(llm)


def install(config, runner, entry):
    """As if a worker with this configuration had got its runner."""
    given = SimpleNamespace(**{**vars(config), "additional_config": {"length_policy": entry}})
    adapter._install(SimpleNamespace(worker=SimpleNamespace(model_runner=runner)), given)


def config(llm, **changes):
    """The engine's configuration with other values in its parts: ``part__field=value``."""
    given = llm.llm_engine.vllm_config
    parts = {
        name: getattr(given, name) for name in ("speculative_config", "parallel_config", "scheduler_config")
    }
    for name, value in changes.items():
        part, _, field = name.partition("__")
        old = vars(parts[part]) if field else {}
        parts[part] = SimpleNamespace(**{**old, field: value}) if field else value
    return SimpleNamespace(**parts)


def test_vllm_finds_the_plugin():
    entries = importlib.metadata.entry_points(group="vllm.general_plugins")
    (entry,) = [entry for entry in entries if entry.name == "svip_adapters"]
    assert entry.load() is adapter.register


def test_registering_is_idempotent_and_silent():
    code = (
        "from svip_adapters.adapters.vllm import register; register();"
        "from vllm.v1.worker.worker_base import WorkerWrapperBase as W; once = W.init_device; register();"
        "from vllm.v1.metrics.loggers import StatLoggerManager as S; metrics = S.__init__; register();"
        "assert W.init_device is once and once.__name__ == 'init_device' and S.__init__ is metrics"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "length policy" not in done.stdout + done.stderr


def test_a_vllm_without_the_seam_still_starts(logged, monkeypatch):
    from vllm.v1.worker import worker_base

    monkeypatch.delattr(worker_base, "WorkerWrapperBase")
    adapter.register()
    (record,) = logged
    assert "a length_policy would do nothing" in record.getMessage()


def test_an_engine_without_the_entry_is_untouched(llm, runner):
    assert not hasattr(runner, "_svip_patch")
    assert "propose" not in vars(runner.drafter)


def test_the_entry_puts_the_policy_on(pair, logged):
    from vllm_engines import answer, prompts, runner, start

    llm = start(*pair, additional_config={"length_policy": ENTRY})
    patch = runner(llm)._svip_patch
    assert patch.policy.threshold == 0.4
    answer(llm, prompts(4))
    assert patch.stats.early_stops
    assert any("Draft length policy on: SVIP(threshold=0.4" in record.getMessage() for record in logged)
    del llm, patch
    gc.collect()


def test_an_entry_that_means_nothing_stops_the_start(llm, runner):
    with pytest.raises(PolicyError, match="Did you mean svip"):
        install(llm.llm_engine.vllm_config, runner, {"name": "svp"})


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0.0"])
def test_an_unknown_version_starts_without_the_policy(llm, runner, logged, monkeypatch, version):
    import vllm

    monkeypatch.setattr(vllm, "__version__", version)
    install(llm.llm_engine.vllm_config, runner, ENTRY)
    assert not hasattr(runner, "_svip_patch")
    (record,) = logged
    assert record.levelname == "WARNING"
    assert "policy SVIP(threshold=0.4, " in record.getMessage()
    assert " is OFF, " in record.getMessage()
    assert f"expected vllm>=0.32,<0.34, found vllm {version}" in record.getMessage()
    with pytest.raises(HostVersionError, match="found vllm"):
        install(llm.llm_engine.vllm_config, runner, {**ENTRY, "strict": True})
    with pytest.raises(HostVersionError, match="found vllm"):
        adapter.patch_vllm(llm, 0.3)


def test_a_changed_signature_is_like_an_unknown_version(llm, runner, logged, monkeypatch):
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    monkeypatch.setattr(SpecDecodeBaseProposer, "propose", lambda self, tokens: None)
    install(llm.llm_engine.vllm_config, runner, ENTRY)
    assert "expected" in logged[0].getMessage()
    assert not hasattr(runner, "_svip_patch")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_config": None}, "expected a speculative_config beside length_policy, found none"),
        ({"scheduler_config__async_scheduling": True}, "found async scheduling; pass --no-async-scheduling"),
        (
            {"speculative_config__method": "ngram"},
            "one of the methods draft_model, eagle, eagle3, found ngram",
        ),
        ({"speculative_config__parallel_drafting": True}, "drafting in parallel"),
        ({"speculative_config__use_heterogeneous_vocab": True}, "found use_heterogeneous_vocab"),
        ({"speculative_config__use_local_argmax_reduction": True}, "found use_local_argmax_reduction"),
        ({"parallel_config__pipeline_parallel_size": 2}, "expected pipeline_parallel_size 1, found 2"),
        (
            {
                "parallel_config": SimpleNamespace(
                    tensor_parallel_size=2, distributed_executor_backend="external_launcher"
                )
            },
            "found external_launcher",
        ),
        ({"parallel_config__data_parallel_size": 4}, "expected data_parallel_size 1, found 4"),
    ],
)
def test_an_engine_that_cannot_carry_a_policy_is_refused(llm, runner, changes, message):
    with pytest.raises(UnsupportedHostError, match=message):
        install(config(llm, **changes), runner, ENTRY)
    assert not hasattr(runner, "_svip_patch")


def test_a_runner_that_lacks_what_is_read_is_like_an_unknown_version(llm, runner, logged, monkeypatch):
    monkeypatch.delattr(runner, "discard_request_mask")
    install(llm.llm_engine.vllm_config, runner, ENTRY)
    assert "with discard_request_mask, found none" in logged[0].getMessage()
    assert not hasattr(runner, "_svip_patch")


def test_model_runner_v2_is_refused(llm):
    with pytest.raises(
        UnsupportedHostError, match="set VLLM_USE_V2_MODEL_RUNNER=0 and --no-async-scheduling"
    ):
        install(llm.llm_engine.vllm_config, SimpleNamespace(drafter=None), ENTRY)


def test_an_engine_in_another_process_is_refused(llm):
    away = SimpleNamespace(llm_engine=SimpleNamespace(engine_core=object()))
    with pytest.raises(UnsupportedHostError, match="VLLM_ENABLE_V1_MULTIPROCESSING=0"):
        adapter.patch_vllm(away, 0.3)


def manager():
    return SimpleNamespace(stat_loggers=[], engine_indexes=[0])


def test_metrics_are_draft_lengths(llm):
    from prometheus_client import REGISTRY
    from vllm.v1.metrics.stats import SchedulerStats
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    given = llm.llm_engine.vllm_config
    on = SimpleNamespace(**{**vars(given), "additional_config": {"length_policy": ENTRY}})
    stats = SpecDecodingStats.new(5)
    for length in (1, 1, 3, 5):
        stats.observe_draft(length, 1)
    for _ in range(2):  # a second engine takes the first one's names over
        add_stats(found := manager(), on)
        (log,) = found.stat_loggers
        log.record(SchedulerStats(spec_decoding_stats=stats), None, mm_cache_stats=None, engine_idx=0)
        log.record(None, None)
        log.log()
    labels = {"model_name": given.model_config.served_model_name, "engine": "0"}
    assert REGISTRY.get_sample_value("svip:short_drafts_total", labels) == 3
    assert REGISTRY.get_sample_value("svip:draft_length_count", labels) == 4
    assert REGISTRY.get_sample_value("svip:draft_length_sum", labels) == 10


def test_metrics_never_stop_a_server(llm, logged):
    given = llm.llm_engine.vllm_config
    on = SimpleNamespace(**{**vars(given), "additional_config": {"length_policy": ENTRY}})
    add_stats(found := manager(), on)
    for _ in range(2):
        found.stat_loggers[0].record(SimpleNamespace(spec_decoding_stats=object()), None)
    add_stats(SimpleNamespace(engine_indexes=[0]), on)
    assert [record.levelname for record in logged] == ["WARNING", "WARNING"]
    add_stats(found := manager(), given)
    assert not found.stat_loggers


def test_the_log_has_a_line_an_interval(logged, monkeypatch):
    from svip_adapters.adapters import _vllm_host

    stats = PatchStats()
    totals = _vllm_metrics.TotalsLog(stats, _vllm_host.logger())
    stats.add_round(Outcome(drafted=2, accepted=1), draft_steps=2, early_stop=True)
    stats.add_round(Outcome(drafted=5, accepted=1), draft_steps=5, early_stop=False)
    totals.tick()
    assert not logged
    monkeypatch.setattr(_vllm_metrics, "LOG_SECONDS", 0)
    totals.tick()
    totals.tick()
    (record,) = logged
    assert record.getMessage() == (
        "Draft length policy: 2 rounds of requests, 3.50 tokens drafted in one, 50% of them stopped early, "
        "29% of the tokens accepted"
    )
