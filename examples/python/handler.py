#!/usr/bin/env python3
"""A lowkiq handler in Python 3.8 or later, standard library only.

    queues:
      history:
        shards: 16
        handler: {exec: [python3, handler.py], processes: 2}

The node starts this program once and keeps it running. Each line on stdin is one
batch, each line on stdout is the answer to it:

    {"ok": true}                          every job of the batch is done
    {"failed": {"a": "no such account"}}  these ids failed and are retried, the others are done
    {"bury": {"a": "no such account"}}    these ids are never retried and go to the morgue; may stand beside "failed"
    {"ok": false, "error": "..."}         the whole batch failed
    {"ok": false, "retry_after": 30}      not now: the whole batch comes again in 30 s, no retry is spent; with "limit": "acme:"
                                          nothing of that group begins meanwhile (the queue's rule groups)

counter.py beside this file answers more: a result for who has called, and a state for the id's next job.

stdout belongs to the answers: print() for debugging would be taken for one. Write to
stderr, the node logs it.

The node may have to run a job again (at least once), so handle() is idempotent: here
the file of an id is a set of the payloads seen, written to a temporary file and moved
into place. If your store can compare numbers, let it also refuse a batch whose
"fence" is lower than the last one it saw for that shard: then even a process that was
frozen and comes back late can do no harm.

When the node gives a batch up (handler_timeout, shutdown), it kills this process and
everything it started.
"""

import base64
import json
import os
import sys
import urllib.parse

STATE = os.environ.get("HANDLER_STATE", "state")


def decode(payload):
    """A payload is JSON; bytes that are no JSON arrive as {"$base64": "..."}."""
    if isinstance(payload, dict) and list(payload) == ["$base64"]:
        return base64.b64decode(payload["$base64"])
    return payload


def handle(job, batch):
    """Does the work for one id. An exception is this id's failure, and is retried.

    job["payloads"] are all payloads that waited for the id, lowest score first.
    """
    if "id" not in job:
        raise ValueError("the id is not UTF-8, see id_base64")
    path = os.path.join(STATE, urllib.parse.quote(job["id"], safe=""))
    try:
        with open(path, encoding="utf-8") as file:
            seen = file.read().splitlines()
    except FileNotFoundError:
        seen = []
    for item in job["payloads"]:
        payload = decode(item["payload"])
        if payload == "fail":
            raise ValueError("told to fail")
        text = payload.hex() if isinstance(payload, bytes) else json.dumps(payload)
        if text not in seen:  # a job that runs again changes nothing
            seen.append(text)
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in seen))
    os.replace(path + ".tmp", path)


def answer(batch):
    failed = {}
    for job in batch["jobs"]:
        try:
            handle(job, batch)
        except Exception as error:  # one bad job must not fail its neighbours
            print(f"{job.get('id')}: {error!r}", file=sys.stderr, flush=True)
            if "id" not in job:
                return {"ok": False, "error": str(error)}
            failed[job["id"]] = f"{type(error).__name__}: {error}"
    return {"failed": failed} if failed else {"ok": True}


def main():
    os.makedirs(STATE, exist_ok=True)
    # Lines of UTF-8, whatever the locale says.
    for line in sys.stdin.buffer:
        result = json.dumps(answer(json.loads(line)))
        sys.stdout.write(result + "\n")
        sys.stdout.flush()  # without it the node would wait for an answer in our buffer


if __name__ == "__main__":
    main()
