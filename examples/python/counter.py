#!/usr/bin/env python3
"""A lowkiq handler that keeps a state per id, and answers calls with a result.

    queues:
      visits:
        shards: 16
        state: 720h     # so long after its last write; without this key a queue keeps no states
        handler: {exec: [python3, counter.py], processes: 2}

It counts the payloads of each id. The count is the state of the id: it comes with the id's next job,
and is stored in one step with the end of the job that changed it, or not at all. So it is exact,
also when a process dies and a job runs again, as long as the state is all that the handler changes.

A result is for those who pushed by a call and wait for it. Without any it is dropped.

    {"ok": true, "answers": {"page-1": {"result": 3, "state": {"count": 3}}}}

"state": null deletes the state; without "state" it stays as it is. What is said of ids that "failed"
or "bury" names, which may stand beside it in the place of "ok", does not count.
"""

import json
import sys


def handle(job):
    """Returns what is said of one id. The payload "reset" begins anew."""
    count = job.get("state", {"count": 0})["count"]
    for item in job["payloads"]:
        count = 0 if item["payload"] == "reset" else count + 1
    return {"result": count, "state": {"count": count} if count else None}


def main():
    for line in sys.stdin.buffer:
        answer = {"ok": True, "answers": {}, "answers_base64": {}}
        for job in json.loads(line)["jobs"]:
            if "id" in job:
                answer["answers"][job["id"]] = handle(job)
            else:  # an id that is not UTF-8
                answer["answers_base64"][job["id_base64"]] = handle(job)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
