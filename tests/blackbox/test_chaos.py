"""A short run of each chaos script."""

import subprocess
import sys

import pytest

from harness.broker import ROOT


@pytest.mark.restarts
@pytest.mark.alone
@pytest.mark.timeout(240)
@pytest.mark.parametrize("more", [[], ["--cores", "2", "--io", "blocking"]], ids=["uring", "two-cores-blocking"])
@pytest.mark.camus_only
def test_kill_9_under_load_from_librdkafka_loses_and_doubles_nothing(tmp_path, more):
    """Lost otherwise: acknowledged records of real clients that live through the broker's crashes."""
    script = ROOT / "tests/chaos/kill9.py"
    done = subprocess.run(
        [sys.executable, script, "--kills", "5", "--each", "1", "--data-dir", tmp_path, *more],
        capture_output=True,
        text=True,
        timeout=230,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "verdict: nothing lost" in done.stdout
