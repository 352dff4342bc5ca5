#!/usr/bin/env python3
"""A lowkiq HTTP endpoint in Python 3.8 or later, standard library only.

    queues:
      orders:
        shards: 16
        handler: {http: "http://127.0.0.1:9000/orders", timeout: 30s}

    python3 server.py [port]

The node posts one batch per request, a JSON object, also described by the headers
Lowkiq-Queue, Lowkiq-Shard, Lowkiq-Fence and Lowkiq-Flight. A 2xx response means that
every job is done, unless the body names those that failed:

    {"failed": {"a": "try me later"}, "bury": {"b": "no such account, never retry"}}

It may also have a result for those who pushed a job by a call and wait for its end, and a state,
which comes back with the id's next job if the queue has the key "state" (see ../python/counter.py):

    {"ok": true, "answers": {"a": {"result": 3, "state": {"count": 3}}}}

429 or 503 puts the batch back without spending a retry, for as long as Retry-After says: answer
so when you are busy. With Lowkiq-Limit: acme: nothing of that group begins meanwhile. Any other response is a failure, and the batch is retried later.

A batch may arrive twice (at least once), and a request that the node gave up may
still be at work here when the next one comes. So compare the fence: it only grows,
and a batch of a shard with a lower fence than the last one seen is refused.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
fences = {}  # (queue, shard) -> highest fence seen; a real service keeps it in its database
orders = {}  # id -> payloads seen


def handle(job):
    """Does the work for one id; an exception is its failure. Returns how many payloads it has had."""
    if "id" not in job:
        raise ValueError("the id is not UTF-8, see id_base64")
    for item in job["payloads"]:
        if item["payload"] == "fail":
            raise ValueError("told to fail")
        with lock:
            seen = orders.setdefault(job["id"], [])
            if item["payload"] not in seen:  # a job that runs again changes nothing
                seen.append(item["payload"])
    return len(seen)


def stale(batch):
    shard = (batch["queue"], batch["shard"])
    with lock:
        fences[shard] = max(batch["fence"], fences.get(shard, 0))
        return batch["fence"] < fences[shard]


def answer(batch):
    failed, answers = {}, {}
    for job in batch["jobs"]:
        try:
            answers[job.get("id")] = {"result": handle(job)}  # dropped if nobody has called
        except Exception as error:  # one bad job must not fail its neighbours
            if "id" not in job:
                return {"ok": False, "error": str(error)}
            failed[job["id"]] = f"{type(error).__name__}: {error}"
    return {"failed": failed, "answers": answers} if failed else {"ok": True, "answers": answers}


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps the connection, one per batch that runs
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/orders":
            return self.respond(404, {"error": "try /orders"})
        try:
            batch = json.loads(body)
        except ValueError as error:
            return self.respond(400, {"error": f"not JSON: {error}"})
        if stale(batch):
            return self.respond(409, {"error": "this shard has a newer owner"})
        return self.respond(200, answer(batch))

    def respond(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_request(self, code="-", size="-"):
        if str(code) != "200":
            super().log_request(code, size)


def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    server = ThreadingHTTPServer(("127.0.0.1", port), Endpoint)
    print(f"listening on http://127.0.0.1:{server.server_port}/orders", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
