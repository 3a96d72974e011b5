#!/usr/bin/env python3
"""Stands in for the binary in the tests beside it: `bench MODE`, `bench plot` and `topic`, with figures of its own."""

import json
import sys
from pathlib import Path

FLOOR = {"method": "fake", "sequential_mb_per_s": 200.0, "write_4k_us": {"p50": 100.0, "p99": 300.0}}
US = {"count": 1000, "p50": 150.0, "p90": 200.0, "p99": 450.0, "p999": 900.0, "max": 1000.0, "mean": 160.0}


def bench(mode, words):
    flags = dict(zip(words[::2], words[1::2], strict=False))
    if "--topic" in flags and flags["--topic"] == "fails":
        sys.exit("error[CAM-0801]: it was told to fail")
    found = {
        "mode": mode,
        "settings": flags,
        "requests": 1000,
        "requests_per_s": 500.0,
        "mb_per_s": 180.0,
        "errors": {},
        "latency_us": US,
        "produce_latency_us": {**US, "p50": 100.0, "p99": 400.0},
        "timeline": [{"second": s, "requests": 500, "p50": 150.0, "p99": 400.0 + s, "max": 1000.0} for s in range(12)],
        "distribution": [[50.0, 150.0], [99.0, 450.0]],
        "cpu": {"broker_us_per_request": 20.0, "client_us_per_request": 10.0, "broker_s_per_gb": 1.0},
        "device": {"flushes_per_request": 1.0, "bytes_per_acked_byte": 4.0},
        "floor": {"before": FLOOR, "after": {**FLOOR, "write_4k_us": {"p50": 120.0, "p99": 300.0}}},
    }
    Path(flags["--json"]).write_text(json.dumps(found))


def main():
    words = sys.argv[1:]
    if words[:2] == ["bench", "plot"]:
        Path(words[2]).write_text("<svg>" + " ".join(Path(word).stem for word in words[3:]) + "</svg>")
    elif words[0] == "bench":
        bench(words[1], [word for word in words[2:] if word not in ("--no-fill", "--keep-topic")])


if __name__ == "__main__":
    main()
