#!/usr/bin/env python3
"""A lowkiq handler of long jobs, which go on where they stopped.

    queues:
      imports:
        shards: 16
        state: 24h      # without this key a queue keeps no states
        handler: {exec: [python3, resume.py], processes: 2}

A job is a file of so many rows, {"rows": 500}. Every hundred rows it says in a line how far it is, and
keeps that as the state of its id:

    {"note": {"file-1": {"progress": 0.4, "log": "200 rows", "state": {"row": 200}}}}

The next attempt, after a failure, a kill or the death of the node, is given that state and goes on there. The
rows since the last note come again: a row that is imported twice must do no harm.

{"rows": 500, "die_at": 250} lets the process die there the first time, to see it go on.
"""

import json
import os
import sys


def import_row(file, row):
    """Does the work of one row."""


def handle(job):
    """Returns what is said of one id once all of its rows are done."""
    first = row = job.get("state", {"row": 0})["row"]
    order = job["payloads"][-1]["payload"]
    while row < order["rows"]:
        if first == 0 and row == order.get("die_at"):
            os._exit(1)
        import_row(job["id"], row)
        row += 1
        if row % 100 == 0:
            note = {"progress": row / order["rows"], "log": f"{row} rows", "state": {"row": row}}
            print(json.dumps({"note": {job["id"]: note}}), flush=True)
    return {"result": {"from": first, "to": row}, "state": None}  # the next order begins anew


def main():
    for line in sys.stdin.buffer:
        answers = {job["id"]: handle(job) for job in json.loads(line)["jobs"]}
        print(json.dumps({"ok": True, "answers": answers}), flush=True)


if __name__ == "__main__":
    main()
