"""Threads that do not fail in silence."""

import threading


def side_by_side(jobs):
    """Runs each job in a thread of its own and passes on the first failure."""
    failures = []

    def guarded(job):
        try:
            job()
        except BaseException as error:  # noqa: BLE001: passed on below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
