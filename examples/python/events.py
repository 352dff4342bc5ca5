#!/usr/bin/env python3
"""A lowkiq handler that is told of events, too; Python 3.8 or later, standard library only.

    queues:
      orders:
        handler: {exec: [python3, events.py], events: [exhausted, buried, recovered]}

An event comes as a line of its own, between two batches, and is answered as one:

    {"event": {"kind": "exhausted", "queue": "orders", "shard": 3, "jobs": [{"id": "a", "error": "..."}]}}
    {"ok": true}

It comes at most once. Here each is a line of the file EVENTS.
"""

import json
import os
import sys

EVENTS = os.environ.get("EVENTS", "events")


def handle(batch):
    return {"failed": {job["id"]: "told to fail" for job in batch["jobs"] if any(p["payload"] == "fail" for p in job["payloads"])}}


def told(event):
    about = [f"{job.get('id')}: {job['error']}" for job in event.get("jobs", [])] or [f"{event['recovered']} jobs of {event['from']}"]
    with open(EVENTS, "a", encoding="utf-8") as file:
        file.write(f"{event['kind']} {event['queue']}/{event['shard']} {', '.join(about)}\n")
    return {"ok": True}


def main():
    for line in sys.stdin.buffer:
        message = json.loads(line)
        answer = told(message["event"]) if "event" in message else handle(message)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()  # without it the node would wait for an answer in our buffer


if __name__ == "__main__":
    main()
