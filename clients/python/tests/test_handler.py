"""Tests of handlers without a node."""

import io
import json
import os
import subprocess
import sys
import unittest
from datetime import timedelta

import lowkiq

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(lowkiq.__file__)))
BATCH = {"queue": "orders", "shard": 3, "fence": 7, "flight": 9, "jobs": [
    {"id": "a", "retry_count": 1, "callers": 2, "state": {"count": 41}, "payloads": [
        {"score": 1, "payload": {"n": 1}, "header": {"tag": "vip"}}, {"score": 2, "payload": {"$base64": "/w=="}}]},
    {"id_base64": "/w==", "retry_count": -1, "payloads": [{"score": 1, "payload": ""}]},
]}


def answer(function, message=BATCH):
    notes = []
    handler = lowkiq.handler(function)
    return json.loads(handler._answer(json.dumps(message).encode(), lambda job, note: notes.append(note))), notes


class HandlerTest(unittest.TestCase):
    def test_job(self):
        jobs = []
        got, _ = answer(jobs.append)
        self.assertEqual(got, {"ok": True, "flight": 9})
        a, other = jobs
        self.assertEqual((a.id, a.attempt, a.callers, a.state), ("a", 3, 2, {"count": 41}))
        self.assertEqual((a.queue, a.shard, a.fence), ("orders", 3, 7))
        self.assertEqual([(p.data, p.score, p.header) for p in a.payloads], [({"n": 1}, 1, {"tag": "vip"}), (b"\xff", 2, {})])
        self.assertEqual((other.id, other.attempt, other.callers, other.state), (b"\xff", 1, 0, None))

    def test_results_and_states(self):
        def handle(job):
            job.result = {"id": str(job.id)}
            job.state = None if job.id == "a" else b"\xff"

        got, _ = answer(handle)
        self.assertEqual(got, {"answers": {"a": {"result": {"id": "a"}, "state": None}},
                               "answers_base64": {"/w==": {"result": {"id": "b'\\xff'"}, "state": {"$base64": "/w=="}}},
                               "ok": True, "flight": 9})

    def test_follow_ups(self):
        def handle(job):
            if job.id == "a":
                job.follow_up("mail", "u7", {"n": 1}, perform_at=1763600000, header={"tag": "vip"})
                job.follow_up("mail", b"\xff")

        got, _ = answer(handle)
        self.assertEqual(got, {"answers": {"a": {"then": [
            {"queue": "mail", "id": "u7", "payload": {"n": 1}, "perform_in": 1763600000, "header": {"tag": "vip"}},
            {"queue": "mail", "id_base64": "/w==", "payload": ""}]}}, "ok": True, "flight": 9})

    def test_one_fails(self):
        def handle(job):
            if job.id == "a":
                job.result = "does not count"
                raise KeyError("x")
            raise lowkiq.Bury()

        with self.assertLogsOnStderr("KeyError"):
            got, _ = answer(handle)
        self.assertEqual(got, {"failed": {"a": "KeyError: 'x'"}, "bury_base64": {"/w==": "no reason was given"}, "flight": 9})

    def test_postponed(self):
        def postpone(job):
            raise lowkiq.Postpone(0.2, "the shop is away")

        def throttle(job):
            raise lowkiq.Throttle(30, "acme:")

        def forever(job):
            raise lowkiq.Postpone(float("inf"))

        self.assertEqual(answer(postpone)[0], {"ok": False, "retry_after": 1, "error": "the shop is away"})
        self.assertEqual(answer(throttle)[0], {"ok": False, "retry_after": 30, "limit": "acme:"})
        self.assertEqual(answer(forever)[0], {"ok": False, "retry_after": 86400})

    def test_wrong_ends_are_failures(self):
        class Mute(Exception):
            def __str__(self):
                raise ValueError

        for make in (lambda: lowkiq.Postpone(None), lambda: lowkiq.Postpone(timedelta(seconds=5)),
                     lambda: lowkiq.Throttle(1, b"acme:"), Mute):
            def handle(job):
                raise make()

            with self.assertLogsOnStderr("Traceback"):
                self.assertIn("a", answer(handle)[0]["failed"])

    def test_notes(self):
        def handle(job):
            if job.id == "a":
                job.note(0.5, "half", state={"row": 1})
                job.note(log="more")
                self.assertEqual(job.state, {"row": 1})

        got, notes = answer(handle)
        self.assertEqual(got, {"ok": True, "flight": 9})
        self.assertEqual(notes, [{"progress": 0.5, "log": "half", "state": {"row": 1}}, {"log": "more"}])

    def test_an_ended_job_takes_no_notes(self):
        program = """
import threading, lowkiq
threads, go = [], threading.Event()

@lowkiq.handler
def handle(job):
    def note():
        go.wait()
        try:
            job.note(0.5)
        except RuntimeError as error:
            threads.append(str(error))
    if not threads:
        threads.append(threading.Thread(target=note))
        threads[0].start()
    else:
        go.set()
        threads[0].join()
        job.result = threads[1]
handle.run()
"""
        batch = {**BATCH, "jobs": BATCH["jobs"][:1]}
        out = subprocess.run([sys.executable, "-c", program], input=2 * (json.dumps(batch) + "\n"), check=True, timeout=60,
                             env={**os.environ, "PYTHONPATH": ROOT}, stdout=subprocess.PIPE, universal_newlines=True).stdout
        told = {"a": {"result": "the job has ended, and takes no notes"}}
        self.assertEqual([json.loads(line) for line in out.splitlines()],
                         [{"ok": True, "flight": 9}, {"answers": told, "ok": True, "flight": 9}])

    def test_values_must_be_json(self):
        for value in (object(), float("inf"), {"$base64": "x"}, "\ud800"):
            def handle(job):
                job.result = value

            with self.assertLogsOnStderr("Error"):
                self.assertIn("a", answer(handle)[0]["failed"])

    def test_events(self):
        event = {"event": {"kind": "recovered", "queue": "orders", "shard": 3, "recovered": 12, "crashes": 0, "from": "n2/1"}}
        self.assertEqual(answer(print, event)[0], {"ok": True})
        handler, got = lowkiq.handler(print), []
        handler.on_event(got.append)
        self.assertEqual(handler._answer(json.dumps(event).encode(), None), b'{"ok":true}')
        self.assertEqual(got, [event["event"]])

    def test_it_is_still_a_function(self):
        self.assertEqual(lowkiq.handler(lambda job: job + 1)(1), 2)

    def assertLogsOnStderr(self, text):
        test = self

        class Logs:
            def __enter__(self):
                import sys
                self.kept, sys.stderr = sys.stderr, io.StringIO()

            def __exit__(self, *_):
                import sys
                got, sys.stderr = sys.stderr.getvalue(), self.kept
                test.assertIn(text, got)

        return Logs()


class WSGITest(unittest.TestCase):
    def ask(self, authorization="Bearer secret", body=None, **environ):
        body = json.dumps(BATCH).encode() if body is None else body
        got = []
        app = lowkiq.handler(lambda job: None).wsgi("secret", max_bytes=1000)
        answer = app({"REQUEST_METHOD": "POST", "HTTP_AUTHORIZATION": authorization, "CONTENT_LENGTH": str(len(body)),
                      "wsgi.input": io.BytesIO(body), **environ}, lambda status, headers: got.append(status))
        return got[0][:3], json.loads(b"".join(answer))

    def test_statuses(self):
        self.assertEqual(self.ask(), ("200", {"ok": True, "flight": 9}))
        self.assertEqual(self.ask("Basic bG93a2lxOnNlY3JldA==")[0], "200")  # lowkiq:secret
        for wrong in ("", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic bG93a2lx", "Basic !", "Digest secret",
                      "Bearer s\xe9cret"):
            self.assertEqual(self.ask(wrong)[0], "401", wrong)
        self.assertEqual(self.ask(REQUEST_METHOD="GET")[0], "405")
        for wrong in ("", "-1", "\xb2", "9" * 5000):
            self.assertEqual(self.ask(CONTENT_LENGTH=wrong)[0], "411", wrong)
        self.assertEqual(self.ask(CONTENT_LENGTH="1001")[0], "413")
        for body in (b"{", b"[]", b'{"jobs":[{}]}', b"\xff"):
            self.assertEqual(self.ask(body=body)[0], "400", body)

    def test_there_is_a_token(self):
        with self.assertRaisesRegex(ValueError, "must not be empty"):
            lowkiq.handler(print).wsgi("")


if __name__ == "__main__":
    unittest.main()
