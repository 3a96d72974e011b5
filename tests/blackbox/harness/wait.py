"""Waiting for conditions."""

import time


def until(condition, seconds=20.0, what="the condition", every=0.05):
    """Calls `condition` until it returns something true and returns that. An AssertionError or OSError counts as
    false."""
    end, last = time.monotonic() + seconds, None
    while True:
        try:
            last = condition()
            if last:
                return last
        except (AssertionError, OSError) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not hold within {seconds} s; last: {last!r}")
        time.sleep(every)
