"""Patches come off as they went on; versions and signatures are checked before anything is touched."""

import pytest

from svip_adapters import SVIP, HostVersionError, Outcome, Patch, PatchError, PatchStats, UnsupportedHostError
from svip_adapters.patching import fingerprint, require_parameters, require_version


class Host:
    """Stands in for a model."""

    level = 1

    def draft(self):
        return "host"


def test_patch_and_revert_leave_no_trace():
    """Instance attributes are put back, inherited ones show again, undo functions run in reverse order."""
    host, order = Host(), []
    host.own = "mine"
    before = dict(vars(host))
    patch = Patch(host, SVIP())
    patch.on_revert(lambda: order.append("first registered"))
    patch.set(host, "draft", lambda: "patched")
    patch.set(host, "own", "theirs")
    patch.set(Host, "level", 2)
    patch.on_revert(lambda: order.append("last registered"))
    assert (host.draft(), host.own, Host.level, patch.active) == ("patched", "theirs", 2, True)
    patch.revert()
    assert (host.draft(), Host.level, patch.active) == ("host", 1, False)
    assert vars(host) == before
    assert order == ["last registered", "first registered"]
    patch.revert()
    assert order == ["last registered", "first registered"]


def test_patching_twice_is_refused_until_reverted():
    host = Host()
    with Patch(host, SVIP(threshold=0.2)) as patch:
        with pytest.raises(PatchError, match=r"Host is patched already, by SVIP\(threshold=0.2"):
            Patch(host, SVIP())
        assert patch.active
    with Patch(host, SVIP()):
        pass
    assert vars(host) == {}


def test_the_block_reverts_on_an_error():
    host = Host()
    patch = Patch(host, SVIP())
    patch.set(host, "draft", None)
    with pytest.raises(ZeroDivisionError), patch:
        _ = 1 / 0
    assert host.draft() == "host"


def test_something_patched_on_top_is_not_lost():
    host = Host()
    patch = Patch(host, SVIP())
    patch.set(host, "draft", "ours")
    host.draft = "theirs"
    with pytest.raises(PatchError, match="draft was replaced after this patch"):
        patch.revert()
    assert host.draft == "theirs"
    host.draft = "ours"
    patch.revert()
    assert vars(host) == {}


def test_stats_count_rounds():
    stats = PatchStats()
    stats.add_round(Outcome(drafted=5, accepted=2), draft_steps=5, early_stop=False)
    stats.add_round(Outcome(drafted=60, accepted=3, depth=6), draft_steps=6, early_stop=True)
    stats.add_round(Outcome(drafted=0, accepted=0), draft_steps=0, early_stop=False)
    assert (stats.rounds, stats.drafted, stats.accepted, stats.wasted) == (3, 65, 5, 60)
    assert (stats.draft_steps, stats.early_stops) == (11, 1)
    assert stats.lengths == {5: 1, 6: 1, 0: 1}
    stats.reset()
    assert stats == PatchStats()


def test_patch_repr_says_what_is_on():
    patch = Patch(Host(), SVIP())
    patch.stats.rounds = 3
    assert repr(patch) == f"<Patch on: {SVIP()!r}, 3 rounds>"
    patch.revert()
    assert repr(patch).startswith("<Patch reverted")


def test_require_version(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", {"host": "4.57.1rc1"}.__getitem__)
    assert require_version("host>=4.57,<6") == "4.57.1rc1"
    with pytest.raises(HostVersionError, match=r"expected host>=5, found host 4\.57\.1rc1"):
        require_version("host>=5")


def test_require_version_of_a_missing_host():
    with pytest.raises(
        HostVersionError, match="found none installed; install it with: pip install 'no-such-host>=1'"
    ):
        require_version("no-such-host>=1")
    assert issubclass(HostVersionError, ImportError)


def original(input_ids, scores, *, flag=None, **extra):
    # A comment.
    return input_ids


def test_require_parameters():
    require_parameters(original, "input_ids", "scores")
    require_parameters(original, "input_ids", "scores", "flag")
    with pytest.raises(
        UnsupportedHostError, match=r"expected original\(scores\), found \(input_ids, scores, flag\)"
    ):
        require_parameters(original, "scores")
    with pytest.raises(UnsupportedHostError, match="nothing was patched"):
        require_parameters(original, "input_ids", "scores", "flag", "more")


def test_fingerprint_ignores_comments_and_layout():
    def make(source):
        import linecache

        name = f"<{len(source)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        space = {}
        exec(compile(source, name, "exec"), space)
        return fingerprint(space["f"])

    plain = make("def f(x):\n    return x + 1\n")
    assert plain == make("def f(x):  # why\n    return (x +\n            1)\n")
    assert plain != make("def f(x):\n    return x + 2\n")
    assert len(plain) == 12
    assert fingerprint(Host.draft) == fingerprint(Host.draft)
