"""The handler of the tests. A payload says what to do: {"do": "echo"}."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import lowkiq  # noqa: E402

postponed = set()


@lowkiq.handler
def handle(job):
    for payload in job.payloads:
        data = payload.data
        do = data["do"] if isinstance(data, dict) and "do" in data else "echo"
        if do == "echo":
            job.result = data
        elif do == "describe":
            job.result = {"id": job.id, "attempt": job.attempt, "callers": job.callers, "queue": job.queue,
                          "score": payload.score, "header": payload.header, "state": job.state}
        elif do == "print":
            print("a stray print")
            sys.stdout.flush()
            os.write(1, b"a stray write\n")
            subprocess.run(["sh", "-c", "echo a stray child; cat"], check=True)  # cat would wait for batches
            job.result = "printed"
        elif do == "raise":
            raise ValueError("told to fail, Zoë")
        elif do == "bury":
            raise lowkiq.Bury("no such account")
        elif do == "postpone" and job.id not in postponed:
            postponed.add(job.id)
            raise lowkiq.Postpone(1, "not yet")
        elif do == "throttle" and job.id not in postponed:
            postponed.add(job.id)
            raise lowkiq.Throttle(1, "acme:")
        elif do == "append":
            job.state = (job.state or []) + [data["n"]]
        elif do == "state":
            job.result = job.state
        elif do == "forget":
            job.state = None
        elif do == "note":
            job.note(0.5, "half of it")
            job.result = job.attempt
        elif do == "object":
            job.result = object()
        elif do == "bytes":
            job.result = b"\x00\xff"
            job.state = b"\xfe"


if __name__ == "__main__":
    handle.run()
