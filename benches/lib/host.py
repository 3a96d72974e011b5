"""The machine that a figure was measured on: its load, who else was busy, its disk, its caches."""

import ctypes
import mmap
import os
import platform
import resource
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
#: Parts of /proc/stat's first line that are somebody's work. (Softirqs run for whoever sends; they are counted apart.)
USER, NICE, SYSTEM, STEAL = 0, 1, 2, 7
KERNEL_THREADS = 2  # the pid of kthreadd, parent of all


def load_average():
    return round(os.getloadavg()[0], 2)


def describe(directory):
    """What stands above every table."""
    return {
        "cpus": os.cpu_count(),
        "cpu": cpu_name(),
        "kernel": platform.release(),
        "memory_bytes": memory_bytes(),
        "file_system": mount_of(directory),
        "disk": disk_of(directory),
        "python": platform.python_version(),
    }


def memory_bytes():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:")) * 1024


def cpu_name():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def mount_of(directory):
    """`ext4 (rw,relatime)` of the file system that the directory is on."""
    at, best = os.path.realpath(directory), ("", "?", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options = line.split()[:4]
        inside = at == point or at.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind, options)
    return f"{best[1]} ({best[2]})"


def disk_of(directory):
    """Name, scheduler, write cache and FUA of the block device, as far as the kernel tells."""
    device = os.stat(directory).st_dev
    try:
        here = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except OSError:
        return {"name": None}
    queue = next((p / "queue" for p in [here, here.parent] if (p / "queue").is_dir()), None)

    def of(name):
        try:
            return (queue / name).read_text().strip()
        except (OSError, TypeError):
            return None

    return {
        "name": here.name,
        "scheduler": of("scheduler"),
        "write_cache": of("write_cache"),
        "fua": of("fua"),
        "rotational": of("rotational"),
    }


def device_flushes(directory):
    """Flushes that the whole disk under it has ended since the boot; None where the kernel does not count them."""
    device = os.stat(directory).st_dev
    try:
        here = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
        disk = next(p for p in [here, here.parent] if (p / "queue").is_dir())
        return parse_flushes((disk / "stat").read_text())
    except (OSError, StopIteration):
        return None


def parse_flushes(text):
    """The kernel's Documentation/block/stat.rst: the sixteenth number, since 5.5."""
    fields = text.split()
    return int(fields[15]) if len(fields) > 15 else None


def free_bytes(directory):
    of = os.statvfs(directory)
    return of.f_bavail * of.f_frsize


# who was busy


@dataclass
class Process:
    parent: int
    name: str
    #: Its own CPU time and that of the children it has waited for, s.
    cpu_s: float


def parse_process(text):
    """One /proc/PID/stat."""
    name = text[text.index("(") + 1 : text.rindex(")")]
    rest = text[text.rindex(")") + 2 :].split()
    return Process(int(rest[1]), name, sum(int(n) for n in rest[11:15]) / TICKS)


def processes(proc="/proc"):
    found = {}
    for entry in os.scandir(proc):
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = parse_process(Path(entry.path, "stat").read_text())
            except (OSError, ValueError):
                pass  # it has just ended
    return found


def parse_total(text):
    """(user + nice + system, steal) of all CPUs since the boot, s; from /proc/stat."""
    numbers = [int(n) / TICKS for n in text.splitlines()[0].split()[1:]]
    return numbers[USER] + numbers[NICE] + numbers[SYSTEM], numbers[STEAL]


def family(found, roots):
    """The pids of these processes and of all their descendants."""
    ours, before = set(roots), -1
    while len(ours) != before:
        before = len(ours)
        ours |= {pid for pid, process in found.items() if process.parent in ours}
    return ours


def is_kernels(found, pid):
    return pid == KERNEL_THREADS or found[pid].parent == KERNEL_THREADS


@dataclass
class Busy:
    """What others did while we measured, in CPU seconds."""

    seconds: float
    #: Other processes, by their own account: the children they waited for are in it.
    processes_s: float
    #: What /proc/stat counted beyond us and the kernel's threads. Sampled: finds what lives outside our view.
    stat_s: float
    #: The hypervisor gave our CPUs to somebody else.
    steal_s: float
    #: Threads of the kernel: write-back and the journal, ours as likely as not.
    kernel_s: float
    names: list = field(default_factory=list)

    def share(self):
        """What others on this machine used, of one core."""
        return max(self.processes_s, self.stat_s) / max(self.seconds, 1e-9)

    def steal_share(self):
        """What the hypervisor kept from us, of one core: nobody here can do anything about it."""
        return self.steal_s / max(self.seconds, 1e-9)


class Watch:
    """Two looks at the machine; between them, what others did."""

    #: /proc/stat is sampled at each timer tick and counts interrupts in the time of whom they hit, so it may differ
    #: from what processes account for by this share of ours without anybody else being there.
    STAT_ERROR = 0.10

    def __init__(self, roots, proc="/proc", clock=time.monotonic):
        """`roots`: a function that returns the pids of this script and of what it started."""
        self.roots, self.proc, self.clock = roots, proc, clock
        self.begin()

    def look(self):
        found = processes(self.proc)
        total, steal = parse_total(Path(self.proc, "stat").read_text())
        return self.clock(), found, family(found, self.roots()), total, steal

    def begin(self):
        self.before = self.look()

    def end(self):
        at0, then, ours0, total0, steal0 = self.before
        at1, now, ours1, total1, steal1 = self.look()
        ours = ours0 | ours1

        def heir(pid):
            """Who has the account of one that ended: its parent, which waited for it, or the parent's."""
            seen = set()
            while pid not in now and pid in then and pid not in seen:
                seen.add(pid)
                pid = then[pid].parent
            return pid

        spent_by = {pid: process.cpu_s for pid, process in now.items()}
        for pid, process in then.items():
            # What it had used before is in the account of its heir by now, and was not used between the looks.
            at = heir(pid)
            spent_by[at] = spent_by.get(at, 0.0) - process.cpu_s

        def spent(which):
            """By process."""
            return {pid: s for pid, s in spent_by.items() if which(pid)}

        def kernels(pid):
            return pid in now and is_kernels(now, pid)

        us = spent(lambda pid: pid in ours)
        kernel = spent(lambda pid: pid not in ours and kernels(pid))
        others = spent(lambda pid: pid not in ours and not kernels(pid))
        mine = sum(us.values())
        gone = sum(kernel.values())
        left = (total1 - total0) - mine * (1 + self.STAT_ERROR) - max(gone, 0.0)
        top = sorted(((s, pid) for pid, s in others.items() if s > 0.05 and pid in now), reverse=True)[:5]
        return Busy(
            seconds=at1 - at0,
            processes_s=round(max(sum(others.values()), 0.0), 3),
            stat_s=round(max(left, 0.0), 3),
            steal_s=round(max(steal1 - steal0, 0.0), 3),
            kernel_s=round(max(gone, 0.0), 3),
            names=[f"{now[pid].name} {s:.1f} s" for s, pid in top],
        )


# caches and the disk's read floor


def forget(directory):
    """Asks the kernel to forget the files' pages; all of its caches where we may. How it was done."""
    os.sync()
    for path in files(directory):
        try:
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        return "drop_caches"
    except OSError:
        return "posix_fadvise"


def files(directory):
    """The largest first."""
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            try:
                found.append((os.stat(path).st_blocks * 512, path))
            except OSError:
                pass
    return [path for _, path in sorted(found, reverse=True)]


READ_BYTES = 1 << 20


def sequential_read(directory, limit_bytes, depth=4):
    """MB/s (10^6) of plain sequential reads of 1 MiB with O_DIRECT over the largest files, `depth` at a time.

    None where the file system has no O_DIRECT."""
    places, total = [], 0
    for path in files(directory):
        size = os.stat(path).st_size
        for offset in range(0, size - size % READ_BYTES, READ_BYTES):
            if total >= limit_bytes:
                break
            places.append((path, offset))
            total += READ_BYTES
    if not places:
        return None
    opened, lock, nexts, failed = {}, threading.Lock(), iter(places), []
    try:
        for path in {path for path, _ in places}:
            opened[path] = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        for fd in opened.values():
            os.close(fd)
        return None

    def read():
        buffer = mmap.mmap(-1, READ_BYTES)  # aligned to a page, as O_DIRECT wants it
        while True:
            with lock:
                place = next(nexts, None)
            if place is None:
                return
            try:
                os.preadv(opened[place[0]], [buffer], place[1])
            except OSError as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(depth)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    for fd in opened.values():
        os.close(fd)
    return None if failed else round(total / 1e6 / seconds, 1)


# processes that we started


def rss_bytes(pid):
    return status_bytes(pid, "VmRSS:")


def rss_max_bytes(pid):
    return status_bytes(pid, "VmHWM:")


def status_bytes(pid, key):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return None


def cpu_seconds(pid):
    """User and system time of a process, s; finer than ticks, from the threads' schedstat where there is one."""
    nanos = 0
    try:
        for task in os.scandir(f"/proc/{pid}/task"):
            nanos += int(Path(task.path, "schedstat").read_text().split()[0])
        return nanos / 1e9
    except (OSError, IndexError):
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(rest[11]) + int(rest[12])) / TICKS


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG, SIGKILL = 1, 9


def die_with_parent():
    """For `preexec_fn`: no broker outlives this script, however it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL)


def for_a_broker():
    """For `preexec_fn`: dies with us, and may open as many files as we may allow (10,000 partitions want them)."""
    die_with_parent()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
