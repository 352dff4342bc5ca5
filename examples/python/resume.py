#!/usr/bin/env python3
"""A lowkiq handler of long jobs, which go on where they stopped.

    queues:
      imports:
        shards: 16
        state: 24h      # without this key a queue keeps no states
        handler: {exec: [python3, resume.py], processes: 2}

A job is a file of so many rows, {"rows": 500}. Every hundred rows the handler notes how far it is, and keeps that as the
state of the id. The next attempt, after a failure, a kill or the death of the node, gets that state and goes on there. The
rows since the last note come again, so a row that is imported twice must do no harm.

{"rows": 500, "die_at": 250} lets the process die there the first time, to see it go on.
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../clients/python"))  # if lowkiq is not installed

import lowkiq  # noqa: E402


def import_row(file, row):
    """Does the work of one row."""


@lowkiq.handler
def import_file(job):
    order = job.payloads[-1].data
    first = row = job.state["row"] if job.state else 0
    while row < order["rows"]:
        if first == 0 and row == order.get("die_at"):
            os._exit(1)
        import_row(job.id, row)
        row += 1
        if row % 100 == 0:
            job.note(row / order["rows"], f"{row} rows", state={"row": row})
    job.result = {"from": first, "to": row}
    job.state = None  # the next file of this name begins with its first row


if __name__ == "__main__":
    import_file.run()
