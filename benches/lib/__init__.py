"""What the scripts beside this folder share. Python 3.11, standard library only.

host.py    the machine: load, who else was busy, disks, caches
brokers.py a broker as a process: Camus, Kafka stock, Kafka with an fsync an append
wire.py    the few Kafka requests that need no client: is it there, make a topic, append one record
rows.py    the table of docs/benchmarks.md as data: what is run, what is read from it, which bar it meets
actions.py the rows that are more than one call of `camus bench`
runner.py  turn by turn, repeated, runs with another process busy set aside
tables.py  medians, spread, verdicts, Markdown
soak.py    the soak gate's load, watcher and judgement
"""
