"""Tests of the client against a real node, which clients_test.go starts: go test ./clients -run Python."""

import http.server
import json
import os
import socket
import threading
import time
import unittest
import urllib.request

import lowkiq

CONTROL = os.environ.get("LOWKIQ_TEST_CONTROL")


def control(what):
    """Asks clients_test.go to do something to the node."""
    with urllib.request.urlopen(f"{CONTROL}/{what}", data=b"") as answer:
        return answer.read().decode()


@unittest.skipUnless(CONTROL, "SKIPPED: there is no node; go test ./clients starts it")
class ClientTest(unittest.TestCase):
    def setUp(self):
        self.client = lowkiq.Client()
        self.addCleanup(self.client.close)

    def eventually(self, what, condition):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def numbers(self, id):
        """Returns the first occurrence of each number that the handler has got, in order."""
        reply = self.client.call("orders", id, {"do": "state"}, wait=60)
        self.assertEqual(reply.state, "done", reply)
        return list(dict.fromkeys(reply.result))

    def test_page(self):
        """The README shows this."""
        jobs, later = [{"id": "order-2"}], []
        client = lowkiq.Client()
        client.push("orders", "order-1", {"state": "paid"}, header={"tag": "vip"})
        client.push_many("orders", [{"id": "order-1", "payload": {"n": n}} for n in range(1000)])
        reply = client.call("orders", "order-1", {"state": "sent"}, wait=30)
        print(reply.state, reply.result, reply.error)
        self.assertEqual((reply.state, reply.result), ("done", {"state": "sent"}))
        client.close()
        client = lowkiq.Client()
        reply = client.call("visits", "page-1", "home", wait=30)
        if reply.state == "pending":
            reply = client.reply("visits", reply.id, reply.token)
        print(reply.state, reply.result, reply.error)
        self.assertEqual((reply.state, reply.result), ("done", 1))
        client.close()
        client = lowkiq.Client()
        files = [
            {"queue": "orders", "id": "a", "payload": 1, "name": "first"},
            {"queue": "orders", "id": "b", "payload": 2, "after": ["first"]},
        ]
        client.start_workflow("import-42", files, done={"queue": "orders", "id": "42"}, deadline=7200, open=True)
        client.add_to_workflow("import-42", [{"queue": "orders", "id": "c", "payload": 3}])
        client.close_workflow("import-42")
        print(client.workflow("import-42")["state"])
        self.eventually("the workflow is done", lambda: client.workflow("import-42")["state"] == "done")
        self.assertEqual(client.workflow("import-42")["done"], 3)
        client.close()
        client = lowkiq.Client("http://127.0.0.1:9", patience=0)
        try:
            client.push_many("orders", jobs)
        except lowkiq.Error as error:
            print(error, error.status)
            if error.safe_to_repeat:
                later.extend(error.jobs)
        self.assertEqual(later, [{"id": "order-2"}])

    def test_workflow(self):
        id, jobs = "wörk/1", [{"queue": "orders", "id": "w1", "payload": b"\x00", "perform_at": time.time() + 3600}]
        done = {"queue": "orders", "id": "end", "header": {"tag": "vip"}}
        for _ in range(2):  # the same start again is no error
            self.assertEqual(self.client.start_workflow(id, jobs, done=done, dead=done, deadline=60, open=True)["total"], 1)
        with self.assertRaisesRegex(lowkiq.Error, "another workflow has this id") as raised:
            self.client.start_workflow(id, jobs)
        self.assertEqual((raised.exception.status, raised.exception.safe_to_repeat), (409, False))
        for _ in range(2):
            self.client.add_to_workflow(id, [{"queue": "orders", "id": "w2", "perform_at": time.time() + 3600}])
            control("lose")
            self.assertFalse(self.client.close_workflow(id)["open"])
        with self.assertRaisesRegex(lowkiq.Error, "not open"):
            self.client.add_to_workflow(id, [{"queue": "orders", "id": "w3"}])
        self.eventually("it has both jobs", lambda: self.client.workflow(id)["total"] == 2)
        self.assertEqual(self.client.cancel_workflow(id)["id"], id)
        self.eventually("it is cancelled", lambda: self.client.workflow(id)["state"] == "cancelled")
        with self.assertRaises(lowkiq.Error) as raised:
            self.client.workflow("none")
        self.assertEqual(raised.exception.status, 404)
        with self.assertRaisesRegex(ValueError, "its keys must be"):
            self.client.start_workflow("none", [{"queue": "orders", "id": "a", "befor": []}])

    def test_push_merges(self):
        later = time.time() + 3600
        one = self.client.push("orders", "merged", {"n": 1, "text": "Zoë"}, perform_at=later)
        two = self.client.push("orders", "merged", {"n": 1, "text": "Zoë"}, perform_at=later)
        self.assertEqual((one["ok"], one["merged"], two["merged"]), (True, False, True))
        why = self.client.why("orders", "merged")
        self.assertEqual(why["state"], "scheduled")
        self.assertIn("due in", why["reason"])

    def test_push_carries_all(self):
        self.client.push("orders", "carried", {"do": "describe"}, score=1.5, header={"tag": "vip"})
        self.client.push("orders", "urgent", 1, perform_at=time.time() + 3600, urgent=True)
        self.assertIn("urgent", self.client.why("orders", "urgent")["reason"])
        reply = self.client.call("orders", "called", {"do": "describe"}, score=2.5, header={"tag": "vip"}, urgent=True, wait=60)
        want = {"id": "called", "attempt": 1, "callers": 1, "queue": "orders", "score": 2.5, "header": {"tag": "vip"},
                "state": None}
        self.assertEqual(reply.result, want)

    def test_thousand_in_order(self):
        jobs = [{"id": "bulk", "payload": {"do": "append", "n": n}} for n in range(1000)]
        results = self.client.push_many("orders", jobs)
        self.assertEqual(len(results), 1000)
        self.assertTrue(all(result["ok"] and result["id"] == "bulk" for result in results))
        self.assertEqual(self.numbers("bulk"), list(range(1000)))

    def test_more_than_a_part(self):
        jobs = [{"id": f"part-{n % 7}", "payload": {"do": "append", "n": n}} for n in range(2500)]
        self.assertEqual(len(self.client.push_many("orders", jobs)), 2500)
        self.assertEqual(self.numbers("part-3"), list(range(3, 2500, 7)))

    def test_restarts_between_pushes(self):
        for n in range(20):
            if n % 10 == 5:
                control("stop")
                starter = threading.Thread(target=control, args=("start",))
                starter.start()
                self.addCleanup(starter.join)
            self.client.push("orders", "restarted", {"do": "append", "n": n})
        self.assertEqual(self.numbers("restarted"), list(range(20)))

    def test_lost_answers_are_repeated(self):
        for n in range(10):
            control("lose")
            numbers = range(10 * n, 10 * n + 10)
            self.client.push_many("orders", [{"id": "lost", "payload": {"do": "append", "n": k}} for k in numbers])
        self.assertEqual(self.numbers("lost"), list(range(100)))

    def test_lost_call_is_not_repeated(self):
        control("lose")
        with self.assertRaises(lowkiq.Error) as raised:
            self.client.call("orders", "lost call", {"do": "append", "n": 1}, wait=60)
        self.assertIsNone(raised.exception.status)
        self.assertFalse(raised.exception.safe_to_repeat)
        self.eventually("the call runs", lambda: self.client.call("orders", "lost call", {"do": "state"}).result == [1])

    def test_call_is_repeated_while_nothing_listens(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
            both = lowkiq.Client(f"{closed},{os.environ['LOWKIQ_URL']}")
            self.assertEqual(both.call("orders", "both", {"do": "echo"}, wait=60).state, "done")
            with self.assertRaises(lowkiq.Error) as raised:
                lowkiq.Client(closed, patience=0).push("orders", "x", 1)
            error = raised.exception
            self.assertEqual((error.status, error.safe_to_repeat), (None, True))
            self.assertEqual([job["id"] for job in error.jobs], ["x"])
            self.assertRegex(str(error), closed + ".*not stored: 1 of 1")

    def test_wrong_token(self):
        with self.assertRaises(lowkiq.Error) as raised:
            lowkiq.Client(token="wrong").push("orders", "x", 1)
        self.assertEqual((raised.exception.status, raised.exception.safe_to_repeat), (401, False))
        with self.assertRaisesRegex(ValueError, "ASCII"):
            lowkiq.Client(token="two\nlines")

    def test_wrong_queue(self):
        for ask in (lambda: self.client.push("wrok", "x", 1), lambda: self.client.call("wrok", "x", 1),
                    lambda: self.client.why("wrok", "x"), lambda: self.client.history("wrok", "x")):
            with self.assertRaisesRegex(lowkiq.Error, 'unknown queue "wrok"') as raised:
                ask()
            self.assertEqual((raised.exception.status, raised.exception.safe_to_repeat), (404, False))

    def test_timeout(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            began = time.monotonic()
            with self.assertRaises(lowkiq.Error) as raised:
                lowkiq.Client(url, timeout=0.2, patience=0).push("orders", "x", 1)
            self.assertTrue(raised.exception.safe_to_repeat)
            with self.assertRaises(lowkiq.Error) as raised:
                lowkiq.Client(url, timeout=0.2).call("orders", "x", 1, wait=0.1)
            self.assertFalse(raised.exception.safe_to_repeat)
            self.assertLess(time.monotonic() - began, 60)

    def test_a_push_is_one_request(self):
        ids = []

        class Node(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                id = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["id"]
                ids.append((self.client_address, id))
                body = json.dumps({"results": [{"id": id, "ok": True}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            self.addCleanup(thread.join)
            self.addCleanup(server.shutdown)
            client = lowkiq.Client(f"http://127.0.0.1:{server.server_port}")
            self.addCleanup(client.close)
            for id in "abc":
                client.push("orders", id, 1)
            self.doCleanups()
        self.assertEqual([id for _, id in ids], ["a", "b", "c"])
        self.assertEqual(len({address for address, _ in ids}), 1)

    def test_dripping_answer(self):
        ended = threading.Event()

        def drip(server):
            connection = server.accept()[0]
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not ended.wait(0.02):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=drip, args=(server,))
            thread.start()
            self.addCleanup(thread.join)
            self.addCleanup(ended.set)
            with self.assertRaisesRegex(lowkiq.Error, "timed out"):
                lowkiq.Client(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.3, patience=0).why("orders", "x")

    def test_refused_jobs(self):
        jobs = [{"id": "a", "payload": 1}, {"id": "b", "payload": "x" * (1 << 20)}, {"id": "c", "payload": 3}]
        with self.assertRaisesRegex(lowkiq.Error, "payload is too large") as raised:
            self.client.push_many("orders", jobs)
        error = raised.exception
        self.assertEqual(([job["id"] for job in error.jobs], error.safe_to_repeat), (["b"], False))
        self.assertIn("too large", error.reasons[0])
        with self.assertRaisesRegex(lowkiq.Error, "at least 1 byte|1 to 512"):
            self.client.push("orders", "")

    def test_what_is_no_job_is_not_sent(self):
        for job, why in (({"payload": 1}, "its keys must be id"), ({"id": "a", "body": 1}, "its keys must be"),
                         ({"id": 7}, "must be a str"), ({"id": "a", "payload": float("nan")}, "JSON"),
                         ({"id": "a", "payload": {"$base64": "eA=="}}, "stands for bytes"),
                         ({"id": "a", "payload": "\ud800"}, "surrogates"), ({"id": "a", "payload": object()}, "object")):
            with self.assertRaisesRegex((ValueError, TypeError), why):
                self.client.push_many("orders", [{"id": "unsent", "payload": 1}, job])
        self.assertEqual(self.client.why("orders", "unsent")["state"], "absent")

    def test_payloads_come_as_they_were(self):
        for payload in (b"\x00\xff", b"", "Zoë \u2028 \U0001f600 \"\\\n", [1, 2.5, None, True, {"k": []}], {}, "", None, 0,
                        "x" * 200_000):
            want = "" if payload == b"" else payload
            for queue in ("orders", "posted"):
                with self.subTest(queue=queue, payload=str(payload)[:40]):
                    reply = self.client.call(queue, "same", payload, wait=60)
                    self.assertEqual((reply.state, reply.result), ("done", want))

    def test_ids(self):
        for id in ("Zoë/1 ?#%", ".", "..", b"\xff", "\u2028"):
            for queue in ("orders", "posted"):
                with self.subTest(queue=queue, id=id):
                    reply = self.client.call(queue, id, {"do": "note"}, wait=60)
                    self.assertEqual((reply.id, reply.state, reply.result), (id, "done", 1))
                    self.assertEqual(self.client.reply(queue, id, reply.token).result, 1)
                    runs = self.client.history(queue, id)
                    self.assertEqual([run["verdict"] for run in runs[:1]], ["done"])
                    self.assertEqual(self.client.why(queue, id)["state"], "absent")

    def test_ends(self):
        for queue in ("orders", "posted"):
            for do, state, result, error in (("print", "done", "printed", ""),
                                             ("raise", "buried", None, "ValueError: told to fail, Zoë"),
                                             ("bury", "buried", None, "no such account"), ("postpone", "done", None, ""),
                                             ("throttle", "done", None, ""), ("bytes", "done", b"\x00\xff", "")):
                with self.subTest(queue=queue, do=do):
                    reply = self.client.call(queue, f"acme:{do}", {"do": do}, wait=60)
                    self.assertEqual((reply.state, reply.result, reply.error), (state, result, error))
            reply = self.client.call(queue, "acme:object", {"do": "object"}, wait=60)
            self.assertEqual(reply.state, "buried")
            self.assertIn("not JSON serializable", reply.error)
            self.assertEqual(self.client.call(queue, "acme:bytes", {"do": "state"}, wait=60).result, b"\xfe")
            self.client.call(queue, "acme:bytes", {"do": "forget"}, wait=60)
            self.assertIsNone(self.client.call(queue, "acme:bytes", {"do": "state"}, wait=60).result)

    def test_batches(self):
        """A batch of many ids: the answer is about each of them."""
        jobs = [{"id": f"b{n}", "payload": {"do": "raise" if n % 5 == 0 else "append", "n": n}} for n in range(50)]
        self.client.push_many("batches", jobs)
        self.eventually("the batch is done", lambda: self.client.why("batches", "b49")["state"] == "absent")
        self.assertEqual(self.client.call("batches", "b7", {"do": "state"}, wait=60).result, [7])
        for n in range(0, 50, 5):
            self.eventually("it is buried", lambda: self.client.why("batches", f"b{n}")["state"] == "morgue")

    def test_pending(self):
        reply = self.client.call("orders", "pending", 1, wait=0.05, keep=60, perform_at=time.time() + 3600)
        self.assertEqual((reply.state, reply.result), ("pending", None))
        self.assertEqual(self.client.reply("orders", "pending", reply.token).state, "pending")
        with self.assertRaises(lowkiq.Error) as raised:
            self.client.reply("orders", "pending", "A" * 22)
        self.assertEqual(raised.exception.status, 404)
        with self.assertRaisesRegex(lowkiq.Error, "wait"):
            self.client.call("orders", "pending", 1, wait=301)

    def test_tls(self):
        url = os.environ["LOWKIQ_TEST_TLS_URL"]
        self.assertTrue(lowkiq.Client(url, ca=os.environ["LOWKIQ_TEST_CA"]).push("orders", "tls", 1)["ok"])
        with self.assertRaises(lowkiq.Error) as raised:
            lowkiq.Client(url).push("orders", "tls", 1)
        self.assertFalse(raised.exception.safe_to_repeat)

    def test_threads_and_forks_share_a_client(self):
        self.client.push("orders", "shared", {"do": "append", "n": 0})
        jobs = [("orders", "shared", {"do": "append", "n": n}) for n in range(1, 9)]
        threads = [threading.Thread(target=self.client.push, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        child = os.fork()
        if child == 0:
            try:
                self.client.push("orders", "shared", {"do": "append", "n": 9})
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        self.client.push("orders", "shared", {"do": "append", "n": 10})
        self.assertEqual(sorted(self.numbers("shared")), list(range(11)))


if __name__ == "__main__":
    unittest.main()
