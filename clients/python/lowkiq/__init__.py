"""Pushes jobs to lowkiq and handles them. Python 3.8 or later, standard library only.

A :class:`Client` pushes jobs to a node over HTTP, waits for their results and asks what became of them.
:func:`handler` makes a handler of a function, for a child process of a node or for a WSGI server.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import http.client
import json
import math
import os
import re
import socket
import ssl
import sys
import threading
import time
import traceback
import urllib.parse
from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

__version__ = "0.1.0"
__all__ = ["Client", "Error", "Reply", "handler", "Handler", "Job", "Payload", "Bury", "Postpone", "Throttle"]

ID = Union[str, bytes]  # bytes if they are not UTF-8
Header = Dict[str, str]

# A part of a bulk has at most so many jobs and bytes. A node stores a shard's share of it in a single step, so that the
# jobs that were not stored can be repeated without a change of order.
_PART_JOBS = 1000
_PART_BYTES = 1 << 20
_ANSWER_BYTES = 64 << 20  # the longest answer of a node that is read


class Error(Exception):
    """A request that a node refused or did not answer."""

    status: Optional[int]  #: of the answer, None without an answer
    safe_to_repeat: bool  #: whether the same request may succeed later, and does no harm if it comes twice
    jobs: List[Dict[str, Any]]  #: of a push: the jobs that are not stored, or may not be, in order
    reasons: List[str]  #: why, for each of jobs

    def __init__(self, message: str, status: Optional[int] = None, safe_to_repeat: bool = False, retry_after: float = 0) -> None:
        super().__init__(message)
        self.status = status
        self.safe_to_repeat = safe_to_repeat
        self.jobs = []
        self.reasons = []
        self._retry_after = retry_after


class Reply:
    """How a call has ended."""

    __slots__ = ("id", "state", "result", "error", "token")

    id: ID
    state: str  #: done, pending, buried, deleted or expired
    result: Any  #: of the handler: JSON, bytes, or None
    error: str  #: why the job was buried
    token: str  #: with which Client.reply asks again

    def __init__(self, answer: Mapping[str, Any], token: str) -> None:
        self.id = _read_id(answer)
        self.state = answer["state"]
        self.result = _decode(answer.get("result"))
        self.error = answer.get("error", "")
        self.token = token

    def __repr__(self) -> str:
        return f"Reply(id={self.id!r}, state={self.state!r}, result={self.result!r}, error={self.error!r})"


class Client:
    """Sends requests to a node. Threads and forked processes may share it; each has a connection of its own.

    url is the address of a node, or of several with commas between. By default these variables count, as for the commands of
    lowkiq-node: LOWKIQ_URL, LOWKIQ_TOKEN or the file LOWKIQ_TOKEN_FILE, and the files LOWKIQ_CA, LOWKIQ_CERT and LOWKIQ_KEY
    for https. timeout bounds a request. patience bounds the time for which a request is repeated while no node answers.
    Both are seconds.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, ca: Optional[str] = None,
                 cert: Optional[str] = None, key: Optional[str] = None, timeout: float = 10, patience: float = 30) -> None:
        url = url or os.environ.get("LOWKIQ_URL") or "http://127.0.0.1:7948"
        self._nodes = [_parse_url(one.strip()) for one in url.split(",")]
        self._turn = 0  # index of the node that answered last
        self._token = token or os.environ.get("LOWKIQ_TOKEN")
        self._token_file = None if self._token else os.environ.get("LOWKIQ_TOKEN_FILE")
        if not timeout > 0 or not patience >= 0:
            raise ValueError(f"timeout is {timeout} and patience {patience}; they must be more than 0, and at least 0")
        self._timeout = timeout
        self._patience = patience
        self._tls = None
        if any(node.scheme == "https" for node in self._nodes):
            self._tls = ssl.create_default_context(cafile=ca or os.environ.get("LOWKIQ_CA") or None)
            cert, key = cert or os.environ.get("LOWKIQ_CERT"), key or os.environ.get("LOWKIQ_KEY")
            if cert:
                self._tls.load_cert_chain(cert, key or None)
        self._local = threading.local()
        self._read_token()  # a bad token or file is an error now

    def push(self, queue: str, id: ID, payload: Any = b"", *, score: Optional[float] = None,
             perform_at: Union[datetime, float, None] = None, header: Optional[Mapping[str, str]] = None,
             urgent: bool = False) -> Dict[str, Any]:
        """Pushes a job. Returns when Redis has it: {"id": ..., "ok": True, "merged": False}.

        payload is JSON, or bytes. merged means that an equal payload was already waiting. While no node answers, the push is
        repeated. A payload whose answer was lost may therefore come to its handler twice. urgent puts the id before all
        ids of its shard that are not urgent.
        """
        job = {"id": id, "payload": payload, "score": score, "perform_at": perform_at, "header": header, "urgent": urgent}
        return self.push_many(queue, [job])[0]

    def push_many(self, queue: str, jobs: Iterable[Mapping[str, Any]]) -> List[Dict[str, Any]]:
        """Pushes jobs in order: dicts with the arguments of push. Returns the answers in the same order.

        Nothing is sent unless all jobs can be sent. A refused job does not stop the others. The Error at the end has the jobs
        that are not stored.
        """
        path = _queue_path(queue, "jobs")
        all_jobs = list(jobs)
        lines = [_job_line(job) for job in all_jobs]
        results: List[Optional[Dict[str, Any]]] = [None] * len(lines)
        for part in _parts(lines):
            try:
                self._push_part(path, lines, part, results)
            except Error as error:
                _raise_unstored(error, all_jobs, results)
        refused = next((result for result in results if result and not result["ok"]), None)
        if refused:
            _raise_unstored(Error(refused["error"], 200), all_jobs, results)
        return [result for result in results if result]

    def _push_part(self, path: str, lines: List[bytes], left: List[int], results: List[Optional[Dict[str, Any]]]) -> None:
        """Pushes a part until all of it is stored or refused. The next part must not overtake it."""
        wait = _Patience(self._patience)
        while left:
            try:
                answers = self._ask("POST", path, b"\n".join(lines[i] for i in left)).get("results")
                if not isinstance(answers, list) or len(answers) != len(left):
                    raise Error(f"{path}: not the answer of a lowkiq node to {len(left)} jobs", 200)
                failed = Error("", 200)
                for i, answer in zip(left, answers):
                    if answer["ok"] or not answer.get("retry"):
                        results[i] = answer
                    else:
                        failed = Error(answer["error"], 200, True)
                remaining = [i for i in left if results[i] is None]
                if len(remaining) < len(left):
                    wait = _Patience(self._patience)
                left = remaining
                if left:
                    raise failed
            except Error as error:
                wait.after(error)

    def call(self, queue: str, id: ID, payload: Any = b"", *, wait: float = 60, keep: Optional[float] = None,
             score: Optional[float] = None, perform_at: Union[datetime, float, None] = None,
             header: Optional[Mapping[str, str]] = None, urgent: bool = False) -> Reply:
        """Pushes a job and waits for its end, for at most wait seconds (0.001 to 300). A reply may still be pending then.

        Two calls are two runs. So a call is repeated only if no node can have stored it.
        """
        line = _job_line({"id": id, "payload": payload, "score": score, "perform_at": perform_at, "header": header,
                          "urgent": urgent})
        query = {"wait": f"{round(wait * 1000)}ms"}
        if keep is not None:
            query["keep"] = f"{round(keep * 1000)}ms"
        path = _queue_path(queue, "jobs") + "?" + urllib.parse.urlencode(query)
        answers = self._repeat(lambda: self._ask("POST", path, line, once=True, longer=wait)).get("results")
        if not isinstance(answers, list) or len(answers) != 1:
            raise Error(f"{path}: not the answer of a lowkiq node to a call", 200)
        answer = answers[0]
        if not answer["ok"]:
            raise Error(answer["error"], 200)
        reply = Reply(answer, answer["token"])
        return self.reply(queue, id, reply.token) if answer.get("result_kept") else reply

    def reply(self, queue: str, id: ID, token: str) -> Reply:
        """Asks again for the reply of a call."""
        path = _queue_path(queue, "replies", _segment(id), _segment(token))
        return Reply(self._repeat(lambda: self._ask("GET", path)), token)

    def history(self, queue: str, id: ID, limit: int = 100) -> List[Dict[str, Any]]:
        """Returns the runs of an id that the queue's journal has, the last run first, as the API gives them."""
        path = _queue_path(queue, "jobs", _segment(id), f"history?limit={limit:d}")
        runs: List[Dict[str, Any]] = self._repeat(lambda: self._ask("GET", path))["runs"]
        return runs

    def why(self, queue: str, id: ID) -> Dict[str, Any]:
        """Returns where an id is ("state"), and in a sentence why no handler has it ("reason")."""
        path = "/api/v1/why?" + urllib.parse.urlencode({"queue": queue, "id": id})
        return self._repeat(lambda: self._ask("GET", path))

    def start_workflow(self, id: str, jobs: Iterable[Mapping[str, Any]] = (), *, done: Optional[Mapping[str, Any]] = None,
                       dead: Optional[Mapping[str, Any]] = None, deadline: Optional[float] = None,
                       open: bool = False) -> Dict[str, Any]:
        """Starts a workflow, all of it or nothing. Returns its status: {"id": ..., "state": "stored", "total": 3, ...}.

        jobs are dicts with a queue and the arguments of push except urgent. They may have a name, and "after" with names of
        jobs that must be done before. done is pushed once when all jobs are done, and dead when they cannot go on or after
        deadline seconds. open means that jobs may be added until close_workflow. The same start again does nothing. Another
        workflow under the id is an Error with status 409.
        """
        body: Dict[str, Any] = {"jobs": [_workflow_job(job) for job in jobs]}
        if done:
            body["done"] = _workflow_job(done)
        if dead:
            body["dead"] = _workflow_job(dead)
        if deadline is not None:
            body["deadline"] = f"{round(deadline * 1000)}ms"
        if open:
            body["open"] = True
        return self._ask_workflow("PUT", id, "", _json(body))

    def add_to_workflow(self, id: str, jobs: Iterable[Mapping[str, Any]]) -> Dict[str, Any]:
        """Adds jobs to an open workflow, all or none. The same jobs again do nothing. Returns its status."""
        return self._ask_workflow("POST", id, "/jobs", _json({"jobs": [_workflow_job(job) for job in jobs]}))

    def close_workflow(self, id: str) -> Dict[str, Any]:
        """Says that no more jobs will be added to a workflow. Returns its status."""
        return self._ask_workflow("POST", id, "/close", b"")

    def workflow(self, id: str) -> Dict[str, Any]:
        """Returns the status of a workflow: its "state", and numbers of its jobs."""
        return self._ask_workflow("GET", id)

    def cancel_workflow(self, id: str) -> Dict[str, Any]:
        """Ends a workflow without a push. Its jobs are left alone, and those that wait for others are dropped."""
        return self._ask_workflow("DELETE", id)

    def _ask_workflow(self, method: str, id: str, rest: str = "", body: Optional[bytes] = None) -> Dict[str, Any]:
        return self._repeat(lambda: self._ask(method, "/api/v1/workflows/" + _segment(id) + rest, body))

    def close(self) -> None:
        """Closes the connection of this thread."""
        pid, _, connection = getattr(self._local, "kept", (0, None, None))
        self._local.kept = (0, None, None)
        if connection and pid == os.getpid():
            connection.close()

    def _repeat(self, ask: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        wait = _Patience(self._patience)
        while True:
            try:
                return ask()
            except Error as error:
                wait.after(error)

    def _ask(self, method: str, path: str, body: Optional[bytes] = None, *, once: bool = False, longer: float = 0,
             headers: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
        """Sends a request and returns the answer. once means that it does harm if it comes twice."""
        deadline = time.monotonic() + self._timeout + longer
        all_headers = {"Content-Type": "application/x-ndjson", **(headers or {})}
        token = self._read_token()
        if token:
            all_headers["Authorization"] = "Bearer " + token
        if once:
            self.close()  # on a new connection it is certain whether the request was sent
        sent = False
        try:
            node, connection = self._connect()
            connection.sock.settimeout(self._timeout + longer)
            sent = True
            connection.request(method, node.path.rstrip("/") + path, body, all_headers)
            answer = connection.getresponse()
            text = _read_body(answer, connection, deadline)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            where = self._nodes[self._turn % len(self._nodes)].geturl().rstrip("/")
            self._turn += 1
            safe = not (once and sent) and not isinstance(error, ssl.SSLCertVerificationError)
            raise Error(f"{method} {where}{path}: {error or type(error).__name__}", None, safe) from error
        except BaseException:  # such as that of a signal
            self.close()
            raise
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if 200 <= answer.status < 300 and isinstance(value, dict):
            return value
        problem = isinstance(value, dict) and isinstance(value.get("detail"), str)
        detail = value["detail"] if problem else f"{method} {path}: {answer.status}, which is not the answer of a lowkiq node"
        # A node answers so if it has stored nothing. Others that answer so may stand before a node that has.
        passing = answer.status in (429, 503) if problem else answer.status in (408, 429, 502, 503, 504) and not once
        after = answer.getheader("Retry-After") or ""
        raise Error(detail, answer.status, passing, float(after) if after.isdigit() else 0)

    def _connect(self) -> Tuple[urllib.parse.SplitResult, http.client.HTTPConnection]:
        kept: Tuple[int, Any, Any] = getattr(self._local, "kept", (0, None, None))
        if kept[0] == os.getpid() and kept[2] and kept[2].sock:
            return kept[1], kept[2]
        node = self._nodes[self._turn % len(self._nodes)]
        host = node.hostname or ""
        connection = http.client.HTTPConnection(host, node.port, timeout=self._timeout)
        if node.scheme == "https":
            connection = http.client.HTTPSConnection(host, node.port, timeout=self._timeout, context=self._tls)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._local.kept = (os.getpid(), node, connection)
        return node, connection

    def _read_token(self) -> Optional[str]:
        token = self._token
        if self._token_file:
            with open(self._token_file, encoding="utf-8") as file:
                token = file.read().strip()
        if token and not re.fullmatch("[!-~]+", token):
            raise ValueError("the token must be ASCII without spaces and line breaks")
        return token


class _Patience:
    """Bounds the time for which a request is repeated."""

    def __init__(self, limit: float) -> None:
        self._end = time.monotonic() + limit
        self._pause = 0.05

    def after(self, error: Error) -> None:
        """Sleeps before the next attempt, or raises the error."""
        pause = max(self._pause, min(error._retry_after, 5))
        if not error.safe_to_repeat or time.monotonic() + pause > self._end:
            raise error
        time.sleep(pause)
        self._pause = min(2 * self._pause, 1)


def _parse_url(url: str) -> urllib.parse.SplitResult:
    node = urllib.parse.urlsplit(url if "://" in url else "http://" + url)
    if node.scheme not in ("http", "https") or not node.hostname or node.username or node.query or node.fragment:
        raise ValueError(f"url is {url!r}; it must be http://host:port or https://host:port")
    return node


def _queue_path(queue: str, *segments: str) -> str:
    return "/".join(("/api/v1/queues", _segment(queue), *segments))


def _segment(text: ID) -> str:
    """Escapes a segment of a path. Servers would resolve dots."""
    escaped = urllib.parse.quote(text, safe="")
    return escaped.replace(".", "%2E") if escaped in (".", "..") else escaped


def _read_body(answer: http.client.HTTPResponse, connection: http.client.HTTPConnection, deadline: float) -> bytes:
    """Reads the body of an answer until the deadline."""
    if (answer.length or 0) > _ANSWER_BYTES:
        raise http.client.HTTPException(f"the answer has {answer.length} bytes, at most {_ANSWER_BYTES} are read")
    body = bytearray()
    while True:
        if connection.sock:  # None if the node closes the connection after this answer
            connection.sock.settimeout(max(deadline - time.monotonic(), 0.001))
        chunk = answer.read1(1 << 16)
        body += chunk
        if not chunk:
            break
        if len(body) > _ANSWER_BYTES:
            raise http.client.HTTPException(f"the answer is longer than {_ANSWER_BYTES} bytes")
    if answer.length:
        raise http.client.IncompleteRead(bytes(body), answer.length)
    answer.close()  # read1 of Python 3.11.7 does not, and the next request would be sent without a look at its answer
    return bytes(body)


def _job_line(job: Mapping[str, Any]) -> bytes:
    return _json(_job(job))


def _workflow_job(job: Mapping[str, Any]) -> Dict[str, Any]:
    own = {key: job[key] for key in ("queue", "name", "after") if job.get(key) is not None}
    return {**_job({key: value for key, value in job.items() if key not in ("queue", "name", "after")}), **own}


def _job(job: Mapping[str, Any]) -> Dict[str, Any]:
    if "id" not in job or set(job) - {"id", "payload", "score", "perform_at", "header", "urgent"}:
        keys = "id, and payload, score, perform_at, header and urgent if they are needed"
        raise ValueError(f"job {job!r:.200}: its keys must be {keys}")
    line: Dict[str, Any] = _write_id(job["id"])
    line["payload"] = _encode(job.get("payload", b""))
    if job.get("score") is not None:
        line["score"] = job["score"]
    at = job.get("perform_at")
    if at is not None:
        line["perform_in"] = at.timestamp() if isinstance(at, datetime) else at
    if job.get("header"):
        line["header"] = dict(job["header"])
    if job.get("urgent"):
        line["urgent"] = True
    return line


def _parts(lines: List[bytes]) -> Iterable[List[int]]:
    part: List[int] = []
    size = 0
    for i, line in enumerate(lines):
        if part and (len(part) == _PART_JOBS or size + len(line) > _PART_BYTES):
            yield part
            part, size = [], 0
        part.append(i)
        size += len(line)
    if part:
        yield part


def _raise_unstored(error: Error, jobs: List[Mapping[str, Any]], results: List[Optional[Dict[str, Any]]]) -> None:
    """Raises an error that has the jobs that are not stored."""
    left = [i for i, result in enumerate(results) if result is None or not result["ok"]]
    told = Error(f"{error}; not stored: {len(left)} of {len(jobs)} jobs (see jobs)", error.status, error.safe_to_repeat)
    told.jobs = [dict(jobs[i]) for i in left]
    told.reasons = [str(error) if results[i] is None else results[i]["error"] for i in left]  # type: ignore[index]
    raise told from error


def _json(value: Any) -> bytes:
    """Writes JSON as other languages do, so that equal payloads of different producers merge."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def _encode(value: Any) -> Any:
    """Returns the JSON value of a payload, a result or a state. Bytes become {"$base64": ...}."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value)
        return {"$base64": base64.b64encode(value).decode()} if value else ""
    if isinstance(value, dict) and list(value) == ["$base64"]:
        raise ValueError('an object with the only key "$base64" stands for bytes; give bytes instead')
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict) and list(value) == ["$base64"]:
        return base64.b64decode(value["$base64"])
    return value


def _write_id(id: ID) -> Dict[str, Any]:
    if isinstance(id, bytes):
        try:
            return {"id": id.decode("utf-8")}
        except UnicodeDecodeError:
            return {"id_base64": base64.b64encode(id).decode()}
    if not isinstance(id, str):
        raise TypeError(f"the id is {id!r:.100}; it must be a str, or bytes")
    return {"id": id}


def _read_id(value: Mapping[str, Any]) -> ID:
    return value["id"] if "id" in value else base64.b64decode(value["id_base64"])


class Bury(Exception):
    """Raised by a handler: the job can never succeed, and goes to the morgue with this reason."""


class Postpone(Exception):
    """Raised by a handler: not now. The whole batch comes again after so many seconds, without a retry."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason)
        self.seconds = float(seconds)


class Throttle(Postpone):
    """A Postpone that also keeps other ids of the group from handlers, such as "acme:". "" stands for those of the batch."""

    def __init__(self, seconds: float, group: str = "") -> None:
        super().__init__(seconds)
        self.group = _text(group)


class Payload:
    """A payload of a job: data (JSON, or bytes), score and header."""

    __slots__ = ("data", "score", "header")

    def __init__(self, item: Mapping[str, Any]) -> None:
        self.data: Any = _decode(item["payload"])
        self.score: float = item["score"]
        self.header: Header = item.get("header", {})


class Job:
    """An id with its waiting payloads, lowest score first."""

    def __init__(self, batch: Mapping[str, Any], job: Mapping[str, Any], note: Callable[[Job, Dict[str, Any]], None]) -> None:
        self.id: ID = _read_id(job)
        self.payloads: List[Payload] = [Payload(item) for item in job["payloads"]]
        self.attempt: int = job["retry_count"] + 2  #: 1 for the first attempt
        self.callers: int = job.get("callers", 0)  #: who wait for the result
        self.queue: str = batch["queue"]
        self.shard: int = batch["shard"]
        self.fence: int = batch["fence"]  #: only grows for a shard; a lower fence belongs to an owner that has lost the shard
        self.flight: int = batch["flight"]
        self._state: Any = _decode(job.get("state"))
        self._answer: Dict[str, Any] = {}
        self._note = note

    @property
    def state(self) -> Any:
        """What the last job of the id has kept: JSON, or bytes. None if there is nothing.

        Assign it to change it: Redis has the new state once the job is done. None deletes it.
        """
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._answer["state"] = _written(value)
        self._state = value

    @property
    def result(self) -> Any:
        """Assign it to answer the callers: JSON, or bytes."""
        return _decode(self._answer.get("result"))

    @result.setter
    def result(self, value: Any) -> None:
        self._answer["result"] = _written(value)

    def follow_up(self, queue: str, id: ID, payload: Any = b"", *, score: Optional[float] = None,
                  perform_at: Union[datetime, float, None] = None, header: Optional[Mapping[str, str]] = None) -> None:
        """Adds a push to any registered queue, which Redis stores with the end of the job or not at all."""
        push = {"id": id, "payload": payload, "score": score, "perform_at": perform_at, "header": header}
        self._answer.setdefault("then", []).append({"queue": queue, **json.loads(_job_line(push))})

    def note(self, progress: Optional[float] = None, log: Optional[str] = None, state: Any = None) -> None:
        """Reports how far the job is, as a share from 0 to 1 and a line. With a state the next attempt continues there."""
        note: Dict[str, Any] = {}
        if progress is not None:
            note["progress"] = progress
        if log is not None:
            note["log"] = log
        if state is not None:
            note["state"] = _written(state)
            self._state = state
        self._note(self, note)


def _written(value: Any) -> Any:
    """Returns a copy of a value, or an error if it is not JSON."""
    return json.loads(_json(_encode(value)))


class Handler:
    """A function that handles jobs, below a node or behind a WSGI server. Calling it calls the function."""

    def __init__(self, function: Callable[[Job], Any]) -> None:
        self._function = function
        self._event: Optional[Callable[[Dict[str, Any]], Any]] = None
        self.__doc__ = function.__doc__

    def __call__(self, job: Job) -> Any:
        return self._function(job)

    def on_event(self, function: Callable[[Dict[str, Any]], Any]) -> Callable[[Dict[str, Any]], Any]:
        """Takes the function that gets the events for which handler.events of the node's configuration asks."""
        self._event = function
        return function

    def run(self) -> None:
        """Handles batches of the node that has started this process, until the node ends it.

        The node reads answers from stdout. So run keeps stdout to itself, and what this process and its children print goes
        to stderr, which the node logs. Children read an empty stdin.
        """
        if os.isatty(0):
            hint = "lowkiq: a node starts this program, by handler: {exec: [...]}; now it reads batches from the terminal"
            print(hint, file=sys.stderr)
        answers, batches, nothing = os.dup(1), os.dup(0), os.open(os.devnull, os.O_RDONLY)
        os.dup2(2, 1)
        os.dup2(nothing, 0)
        os.close(nothing)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(line_buffering=True)
        pid, lock = os.getpid(), threading.Lock()  # threads of the function may note
        ended = 0  # number of batches

        def write(line: bytes, batch: Optional[int] = None) -> None:
            if os.getpid() != pid:
                raise RuntimeError("a forked child of the handler must not answer or note")
            rest = memoryview(line + b"\n")
            with lock:
                if batch is not None and batch < ended:  # the node would take it for a note of the next batch
                    raise RuntimeError("the job has ended, and takes no notes")
                while rest:
                    rest = rest[os.write(answers, rest):]

        def note(batch: int, job: Job, value: Dict[str, Any]) -> None:
            write(_json({"note_base64" if isinstance(job.id, bytes) else "note": {_key(job.id): value}}), batch)

        with os.fdopen(batches, "rb") as lines:
            for line in lines:
                answer = self._answer(line, functools.partial(note, ended))
                ended += 1
                write(answer)

    def wsgi(self, token: str, *, client: Optional[Client] = None, max_bytes: int = 64 << 20) -> Callable[..., Iterable[bytes]]:
        """Returns a WSGI application that handles batches which a node posts.

        A request must carry the token: as the password of the URL of handler.http, or as a bearer token. Notes go to a node
        by client (default: Client()). max_bytes bounds a batch.
        """
        if not token:
            raise ValueError("the token must not be empty: whoever can post to the application can make it handle jobs")
        notes = _Notes(client)
        authenticate = ("WWW-Authenticate", "Bearer")

        def application(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            def respond(status: str, value: bytes, *headers: Tuple[str, str]) -> Iterable[bytes]:
                start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(value))), *headers])
                return [value]

            def refuse(status: str, reason: str, *headers: Tuple[str, str]) -> Iterable[bytes]:
                return respond(status, _json({"error": reason}), *headers)

            if not _has_token(environ.get("HTTP_AUTHORIZATION", ""), token):
                return refuse("401 Unauthorized", "the request does not have this handler's token", authenticate)
            if environ["REQUEST_METHOD"] != "POST":
                return refuse("405 Method Not Allowed", "a node posts batches", ("Allow", "POST"))
            length = environ.get("CONTENT_LENGTH") or ""
            if not re.fullmatch("[0-9]{1,18}", length):
                return refuse("411 Length Required", "the request must have a Content-Length")
            if int(length) > max_bytes:
                return refuse("413 Payload Too Large", f"the batch has {length} bytes, at most {max_bytes} are allowed")
            body = environ["wsgi.input"].read(int(length))
            try:
                answer = self._answer(body, notes.send)
            except (ValueError, KeyError, TypeError, RecursionError) as error:  # those of the function are answers
                return refuse("400 Bad Request", f"not a batch of lowkiq: {type(error).__name__}: {error}")
            return respond("200 OK", answer)

        return application

    def _answer(self, text: bytes, note: Callable[[Job, Dict[str, Any]], None]) -> bytes:
        """Returns the answer to a batch or an event."""
        message = json.loads(text)
        if "event" in message:
            return self._answer_event(message["event"])
        jobs = [Job(message, job, note) for job in message["jobs"]]
        sides: Dict[str, Dict[str, Any]] = {}
        for job in jobs:
            suffix = "_base64" if isinstance(job.id, bytes) else ""
            try:
                self._function(job)
                if job._answer:
                    sides.setdefault("answers" + suffix, {})[_key(job.id)] = job._answer
            except Postpone as error:  # the protocol postpones whole batches
                return _postponed(error)
            except Bury as error:
                sides.setdefault("bury" + suffix, {})[_key(job.id)] = _reason(error)
            except Exception as error:
                traceback.print_exc()
                sides.setdefault("failed" + suffix, {})[_key(job.id)] = f"{type(error).__name__}: {_reason(error)}"
        if not any(side.startswith(("failed", "bury")) for side in sides):
            sides["ok"] = True  # type: ignore[assignment]
        return _json({**sides, "flight": message["flight"]})

    def _answer_event(self, event: Dict[str, Any]) -> bytes:
        try:
            if self._event:
                self._event(event)
        except Exception as error:
            traceback.print_exc()
            return _json({"ok": False, "error": f"{type(error).__name__}: {_reason(error)}"})
        return _json({"ok": True})


def handler(function: Callable[[Job], Any]) -> Handler:
    """Makes a handler of a function, which gets each job of a batch in turn.

    If it returns, the job is done. Bury, Postpone and Throttle say otherwise. Any other exception is the job's failure, and
    the job is retried.
    """
    return Handler(function)


class _Notes:
    """Sends notes of an endpoint to a node, at most one in a second for a job."""

    def __init__(self, client: Optional[Client]) -> None:
        self._client = client

    def send(self, job: Job, note: Dict[str, Any]) -> None:
        if "state" in note:
            raise ValueError("a note over HTTP cannot have a state; assign job.state")
        now = time.monotonic()
        if now - getattr(job, "_noted", -math.inf) < 1:
            return
        job._noted = now  # type: ignore[attr-defined]
        self._client = self._client or Client()
        path = _queue_path(job.queue, "jobs", _segment(job.id), "note")
        headers = {"Content-Type": "application/json", "Lowkiq-Fence": str(job.fence), "Lowkiq-Flight": str(job.flight)}
        try:
            self._client._ask("POST", path, _json(note), headers=headers)
        except Error as error:
            if not error.safe_to_repeat:  # a later note may say the same; but 409 means that the job is not ours any more
                raise


def _key(id: ID) -> str:
    return base64.b64encode(id).decode() if isinstance(id, bytes) else id


def _reason(error: Exception) -> str:
    """Returns the text of an error for the node, which keeps less of it. It is never empty."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return _text(text[:4096]) or "no reason was given"


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _postponed(error: Postpone) -> bytes:
    answer: Dict[str, Any] = {"ok": False, "retry_after": math.ceil(min(max(1, error.seconds), 86400))}
    if isinstance(error, Throttle):
        answer["limit"] = error.group
    elif str(error):
        answer["error"] = _reason(error)
    return _json(answer)


def _has_token(authorization: str, token: str) -> bool:
    scheme, _, sent = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            sent = base64.b64decode(sent, validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(sent.strip().encode("utf-8"), token.encode("utf-8"))
