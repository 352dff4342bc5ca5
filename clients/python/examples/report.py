"""Makes reports. A node starts this program."""

import lowkiq


@lowkiq.handler
def handle(job):
    for payload in job.payloads:
        if payload.data["kind"] != "sales":
            raise lowkiq.Bury(f"there are no reports of the kind {payload.data['kind']}")
        print("making", payload.data)
        job.result = {"report": job.id, "attempt": job.attempt}


if __name__ == "__main__":
    handle.run()
