#!/usr/bin/env python3
"""A lowkiq handler that keeps a state per id, and answers calls with a result.

    queues:
      visits:
        shards: 16
        state: 720h     # so long after its last write; without this key a queue keeps no states
        handler: {exec: [python3, counter.py], processes: 2}

It counts the payloads of each id. The count is the state of the id. It comes with the id's next job, and is stored in one
step with the end of the job that changed it, or not at all. So it is exact even if a process dies and a job runs again, as
long as the state is all that the handler changes. The payload "reset" begins anew.
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../clients/python"))  # if lowkiq is not installed

import lowkiq  # noqa: E402


@lowkiq.handler
def count(job):
    visits = job.state["count"] if job.state else 0
    for payload in job.payloads:
        visits = 0 if payload.data == "reset" else visits + 1
    job.result = visits
    job.state = {"count": visits} if visits else None


if __name__ == "__main__":
    count.run()
