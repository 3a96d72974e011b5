"""What the black-box tests are written with: a broker process, a raw connection, record batches, waiting.

Files: `broker.py` starts, kills and watches the process; `wire.py` is a small client that encodes every request
by hand, exact to the version; `batch.py` builds, bends and reads record batches; `wait.py` waits for conditions, never
for time; `threads.py` does jobs side by side; `mounts.py` lends small file systems.
"""
