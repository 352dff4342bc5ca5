#!/usr/bin/env python3
"""A lowkiq handler that also gets events.

    queues:
      orders:
        handler: {exec: [python3, events.py], events: [exhausted, buried, recovered]}

An event comes between two batches, at most once. Here each becomes a line of the file EVENTS.
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../clients/python"))  # if lowkiq is not installed

import lowkiq  # noqa: E402

EVENTS = os.environ.get("EVENTS", "events")


@lowkiq.handler
def handle(job):
    if any(payload.data == "fail" for payload in job.payloads):
        raise ValueError("told to fail")


@handle.on_event
def told(event):
    if event["kind"] == "recovered":
        about = f"{event['recovered']} jobs of {event['from']}"
    else:
        about = ", ".join(f"{job.get('id')}: {job['error']}" for job in event["jobs"])
    with open(EVENTS, "a", encoding="utf-8") as file:
        file.write(f"{event['kind']} {event['queue']}/{event['shard']} {about}\n")


if __name__ == "__main__":
    handle.run()
