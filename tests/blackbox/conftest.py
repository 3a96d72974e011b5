import fcntl
import os
import tempfile

import pytest

from harness.broker import FOREIGN, Camus, Client, Foreign


def pytest_report_header(config):
    return f"broker under test: {FOREIGN or os.environ.get('CAMUS_BIN', 'target/release/camus')}"


def pytest_collection_modifyitems(config, items):
    for item in items:
        if FOREIGN and item.get_closest_marker("camus_only"):
            item.add_marker(pytest.mark.skip(reason="needs Camus itself"))
        if FOREIGN and item.get_closest_marker("restarts") and "BLACKBOX_KILL" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="BLACKBOX_KILL is not set"))


def pytest_generate_tests(metafunc):
    if "io" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("both_io") and not FOREIGN
        default = os.environ.get("CAMUS_TEST_IO", "uring")
        metafunc.parametrize("io", ["uring", "blocking"] if both else [default], scope="function")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Tests marked `alone` (and on a foreign broker those that restart it) take turns among parallel workers."""
    restarts = FOREIGN and item.get_closest_marker("restarts")
    with open(os.path.join(tempfile.gettempdir(), f"camus-blackbox-{os.getuid()}.lock"), "a") as lock:
        if FOREIGN:
            fcntl.flock(lock, fcntl.LOCK_EX if restarts else fcntl.LOCK_SH)
        elif item.get_closest_marker("alone"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" and report.failed:
        for broker in getattr(item, "brokers", []):
            report.sections.append((f"broker on {broker.data_dir}", broker.said()))
    return report


@pytest.fixture
def serve(request, tmp_path, io):
    """Makes brokers that are killed at the end of the test: `serve(cores=2, settings={...})`. They are started."""
    request.node.brokers = made = []

    def make(name="data", start=True, **options):
        if FOREIGN:
            return Foreign()
        options.setdefault("io", io)
        broker = Camus(options.pop("data_dir", tmp_path / name), logs=tmp_path, **options)
        made.append(broker)
        return broker.start() if start else broker

    yield make
    for broker in made:
        died = broker.process is not None and broker.process.poll() is not None
        status = broker.process.returncode if died else None
        broker.kill_9()
        assert not died, f"the broker died by itself with status {status}:\n{broker.said()}"


@pytest.fixture
def broker(serve):
    return serve()


@pytest.fixture
def client(broker):
    it = Client(broker)
    yield it
    it.forget()
