'use strict';
// Pushes jobs to lowkiq and handles them. Node 18 or later, without dependencies.
//
// A Client pushes jobs to a node over HTTP, waits for their results and asks what became of them. handler() makes a handler
// of a function, for a child process of a node or for a server of node:http.

const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const net = require('node:net');
const { setTimeout: sleep } = require('node:timers/promises');

// A part of a bulk has at most so many jobs and bytes. A node stores a shard's share of it in a single step, so that the
// jobs that were not stored can be repeated without a change of order.
const PART_JOBS = 1000;
const PART_BYTES = 1 << 20;
const ANSWER_BYTES = 64 << 20; // the longest answer of a node that is read

/** A request that a node refused or did not answer. */
class LowkiqError extends Error {
  constructor(message, { status = null, safeToRepeat = false, retryAfter = 0, cause } = {}) {
    super(message, { cause });
    this.name = 'LowkiqError';
    this.status = status;
    this.safeToRepeat = safeToRepeat;
    this.jobs = [];
    this.reasons = [];
    Object.defineProperty(this, 'retryAfter', { value: retryAfter });
  }
}

/** Sends requests to a node, or to the first of several that answers. */
class Client {
  #nodes;
  #turn = 0; // index of the node that answered last
  #token;
  #tokenFile;
  #timeout;
  #patience;
  #agents; // keep connections

  constructor({ url, token, ca, cert, key, timeout = 10, patience = 30 } = {}) {
    const env = process.env;
    this.#nodes = (url || env.LOWKIQ_URL || 'http://127.0.0.1:7948').split(',').map(parseUrl);
    this.#token = token || env.LOWKIQ_TOKEN;
    this.#tokenFile = this.#token ? undefined : env.LOWKIQ_TOKEN_FILE;
    if (!(timeout > 0) || !(patience >= 0)) {
      throw new RangeError(`timeout is ${timeout} and patience ${patience}; they must be more than 0, and at least 0`);
    }
    this.#timeout = timeout;
    this.#patience = patience;
    const secure = {};
    if (this.#nodes.some((node) => node.protocol === 'https:')) {
      const files = { ca: ca || env.LOWKIQ_CA, cert: cert || env.LOWKIQ_CERT, key: key || env.LOWKIQ_KEY };
      for (const [name, file] of Object.entries(files)) {
        if (file) secure[name] = fs.readFileSync(file);
      }
    }
    const kept = { keepAlive: true, maxSockets: 16 };
    this.#agents = { 'http:': new http.Agent(kept), 'https:': new https.Agent({ ...kept, ...secure }), secure };
    this.#readToken(); // a bad token or file is an error now
  }

  /** Pushes a job. Resolves when Redis has it. */
  async push(queue, id, payload, options = {}) {
    return (await this.pushMany(queue, [{ ...options, id, payload }]))[0];
  }

  /** Pushes jobs in order. A refused job does not stop the others; the error at the end has the jobs that are not stored. */
  async pushMany(queue, jobs) {
    const all = [...jobs];
    const lines = all.map(jobLine); // all can be sent, or nothing is
    const path = queuePath(queue, 'jobs');
    const results = new Array(lines.length);
    for (const part of parts(lines)) {
      try {
        await this.#pushPart(path, lines, part, results);
      } catch (error) {
        throw unstored(error, all, results);
      }
    }
    const refused = results.find((result) => !result.ok);
    if (refused) throw unstored(new LowkiqError(refused.error, { status: 200 }), all, results);
    return results;
  }

  /** Pushes a part until all of it is stored or refused. The next part must not overtake it. */
  async #pushPart(path, lines, left, results) {
    let wait = new Patience(this.#patience);
    while (left.length > 0) {
      try {
        const { results: answers } = await this.#ask('POST', path, { body: left.map((i) => lines[i]).join('\n') });
        if (!Array.isArray(answers) || answers.length !== left.length) {
          throw new LowkiqError(`${path}: not the answer of a lowkiq node to ${left.length} jobs`, { status: 200 });
        }
        const again = left.filter((i, n) => {
          if (!answers[n].ok && answers[n].retry) return true;
          results[i] = answers[n];
          return false;
        });
        if (again.length < left.length) wait = new Patience(this.#patience);
        const failed = answers.find((answer) => !answer.ok && answer.retry);
        left = again;
        if (failed) throw new LowkiqError(failed.error, { status: 200, safeToRepeat: true });
      } catch (error) {
        await wait.after(error);
      }
    }
  }

  /** Pushes a job and waits for its end. Two calls are two runs, so a call is repeated only if no node can have stored it. */
  async call(queue, id, payload, { wait = 60, keep, ...options } = {}) {
    const query = new URLSearchParams({ wait: `${Math.round(wait * 1000)}ms` });
    if (keep !== undefined) query.set('keep', `${Math.round(keep * 1000)}ms`);
    const path = `${queuePath(queue, 'jobs')}?${query}`;
    const body = jobLine({ ...options, id, payload });
    const { results } = await this.#repeat(() => this.#ask('POST', path, { body, once: true, longer: wait }));
    if (!Array.isArray(results) || results.length !== 1) {
      throw new LowkiqError(`${path}: not the answer of a lowkiq node to a call`, { status: 200 });
    }
    const [answer] = results;
    if (!answer.ok) throw new LowkiqError(answer.error, { status: 200 });
    return answer.result_kept ? this.reply(queue, id, answer.token) : readReply(answer, answer.token);
  }

  /** Asks again for the reply of a call. */
  async reply(queue, id, token) {
    return readReply(await this.#get(queuePath(queue, 'replies', segment(id), segment(token))), token);
  }

  /** Returns the runs of an id that the queue's journal has, the last run first, as the API gives them. */
  async history(queue, id, { limit = 100 } = {}) {
    return (await this.#get(`${queuePath(queue, 'jobs', segment(id), 'history')}?${new URLSearchParams({ limit })}`)).runs;
  }

  /** Returns where an id is (state), and in a sentence why no handler has it (reason). */
  async why(queue, id) {
    return this.#get(`/api/v1/why?queue=${segment(queue)}&id=${segment(id)}`);
  }

  /** Starts a workflow, all of it or nothing, and returns its status. The same start again does nothing. */
  async startWorkflow(id, jobs = [], { done, dead, deadline, open } = {}) {
    const body = { jobs: [...jobs].map(workflowJob), open: Boolean(open) };
    if (done) body.done = workflowJob(done);
    if (dead) body.dead = workflowJob(dead);
    if (deadline !== undefined) body.deadline = `${Math.round(deadline * 1000)}ms`;
    return this.#askWorkflow('PUT', id, '', JSON.stringify(body, checkValue));
  }

  /** Adds jobs to an open workflow, all or none. The same jobs again do nothing. Returns its status. */
  async addToWorkflow(id, jobs) {
    return this.#askWorkflow('POST', id, '/jobs', JSON.stringify({ jobs: [...jobs].map(workflowJob) }, checkValue));
  }

  /** Says that no more jobs will be added to a workflow. Returns its status. */
  async closeWorkflow(id) {
    return this.#askWorkflow('POST', id, '/close', '');
  }

  /** Returns the status of a workflow. */
  async workflow(id) {
    return this.#askWorkflow('GET', id);
  }

  /** Ends a workflow without a push. Its jobs are left alone, and those that wait for others are dropped. */
  async cancelWorkflow(id) {
    return this.#askWorkflow('DELETE', id);
  }

  /** Closes the connections that are kept. */
  close() {
    this.#agents['http:'].destroy();
    this.#agents['https:'].destroy();
  }

  /** Sends a note of an endpoint about a job. */
  async _note(job, note) {
    const headers = { 'Content-Type': 'application/json', 'Lowkiq-Fence': job.fence, 'Lowkiq-Flight': job.flight };
    await this.#ask('POST', queuePath(job.queue, 'jobs', segment(job.id), 'note'), { body: JSON.stringify(note), headers });
  }

  #askWorkflow(method, id, rest = '', body = undefined) {
    return this.#repeat(() => this.#ask(method, `/api/v1/workflows/${segment(id)}${rest}`, { body }));
  }

  #get(path) {
    return this.#repeat(() => this.#ask('GET', path));
  }

  async #repeat(ask) {
    const wait = new Patience(this.#patience);
    for (;;) {
      try {
        return await ask();
      } catch (error) {
        await wait.after(error);
      }
    }
  }

  /** Sends a request and returns the answer. once means that it does harm if it comes twice. */
  async #ask(method, path, { body, once = false, longer = 0, headers = {} } = {}) {
    const token = this.#readToken();
    const all = { 'Content-Type': 'application/x-ndjson', ...headers };
    if (body !== undefined) all['Content-Length'] = Buffer.byteLength(body);
    if (token) all.Authorization = `Bearer ${token}`;
    let answer;
    try {
      answer = await this.#send(method, path, all, body, once, this.#timeout + longer);
    } catch (error) {
      const where = this.#nodes[this.#turn++ % this.#nodes.length].origin;
      const safeToRepeat = !(once && error.sent) && !isUntrusted(error);
      throw new LowkiqError(`${method} ${where}${path}: ${error.message || error.code}`, { safeToRepeat, cause: error });
    }
    let value;
    try {
      value = JSON.parse(answer.text);
    } catch {
      value = null;
    }
    const object = typeof value === 'object' && value !== null && !Array.isArray(value);
    if (object && answer.status >= 200 && answer.status < 300) return value;
    const problem = object && typeof value.detail === 'string';
    const detail = problem ? value.detail : `${method} ${path}: ${answer.status}, which is not the answer of a lowkiq node`;
    // A node answers so if it has stored nothing. Others that answer so may stand before a node that has.
    const passing = problem ? [429, 503] : once ? [] : [408, 429, 502, 503, 504];
    const safeToRepeat = passing.includes(answer.status);
    throw new LowkiqError(detail, { status: answer.status, safeToRepeat, retryAfter: Number(answer.retryAfter) || 0 });
  }

  /** Resolves to the answer. An error says whether a node may have got the request. */
  #send(method, path, headers, body, once, seconds) {
    const node = this.#nodes[this.#turn % this.#nodes.length];
    const secure = node.protocol === 'https:';
    return new Promise((resolve, reject) => {
      let sent = false;
      const fail = (error) => reject(Object.assign(error, { sent }));
      // On a new connection it is certain whether the request was sent.
      const agent = once ? false : this.#agents[node.protocol];
      const request = (secure ? https : http).request({
        method, headers, agent, ...(secure && this.#agents.secure), port: node.port,
        hostname: node.hostname.replace(/^\[|\]$/g, ''), // [::1] without brackets
        path: node.pathname.replace(/\/$/, '') + path, // a URL would resolve dots that are escaped
      });
      const timer = setTimeout(() => request.destroy(new Error(`no answer within ${seconds} s`)), seconds * 1000);
      request.on('close', () => {
        clearTimeout(timer);
        fail(new Error('the connection was closed')); // unless it has ended before
      });
      request.on('error', fail);
      request.on('socket', (socket) => {
        if (!socket.connecting && request.reusedSocket) sent = true;
        else socket.once(secure ? 'secureConnect' : 'connect', () => { sent = true; });
      });
      request.on('response', (response) => {
        const chunks = [];
        let size = 0;
        response.on('error', fail);
        response.on('data', (chunk) => {
          size += chunk.length;
          if (size > ANSWER_BYTES) request.destroy(new Error(`the answer is longer than ${ANSWER_BYTES} bytes`));
          else chunks.push(chunk);
        });
        response.on('end', () => {
          const text = Buffer.concat(chunks).toString();
          resolve({ status: response.statusCode, retryAfter: response.headers['retry-after'], text });
        });
      });
      request.end(body);
    });
  }

  #readToken() {
    const token = this.#tokenFile ? fs.readFileSync(this.#tokenFile, 'utf8').trim() : this.#token;
    if (token && !/^[!-~]+$/.test(token)) throw new TypeError('the token must be ASCII without spaces and line breaks');
    return token;
  }
}

/** Bounds the time for which a request is repeated. */
class Patience {
  #end;
  #pause = 50;

  constructor(seconds) {
    this.#end = performance.now() + seconds * 1000;
  }

  /** Sleeps before the next attempt, or throws the error. */
  async after(error) {
    const pause = Math.max(this.#pause, Math.min(error.retryAfter || 0, 5) * 1000);
    if (!error.safeToRepeat || performance.now() + pause > this.#end) throw error;
    await sleep(pause);
    this.#pause = Math.min(2 * this.#pause, 1000);
  }
}

function isUntrusted(error) {
  return /^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_|ERR_TLS_CERT_)/.test(error.code || '');
}

function parseUrl(text) {
  const url = text.trim();
  let node;
  try {
    node = new URL(url.includes('://') ? url : `http://${url}`);
  } catch {
    node = {};
  }
  if (!['http:', 'https:'].includes(node.protocol) || !node.hostname || node.username || node.search || node.hash) {
    throw new TypeError(`url is ${JSON.stringify(url)}; it must be http://host:port or https://host:port`);
  }
  return node;
}

function queuePath(queue, ...segments) {
  return ['/api/v1/queues', segment(queue), ...segments].join('/');
}

/** Escapes a segment of a path. Servers would resolve dots. */
function segment(text) {
  if (text instanceof Uint8Array) return Array.from(text, (byte) => `%${byte.toString(16).padStart(2, '0')}`).join('');
  return text === '.' || text === '..' ? text.replaceAll('.', '%2E') : encodeURIComponent(text);
}

const jobKeys = ['id', 'payload', 'score', 'performAt', 'header', 'urgent'];

function jobLine(job) {
  return JSON.stringify(writeJob(job), checkValue);
}

function workflowJob({ queue, name, after, ...job }) {
  return { ...writeJob(job), queue, name, after };
}

function writeJob(job) {
  const unknown = Object.keys(job).find((key) => !jobKeys.includes(key));
  if (unknown !== undefined) throw new TypeError(`a job has the key ${unknown}; its keys must be ${jobKeys.join(', ')}`);
  const line = writeId(job.id);
  line.payload = encode(job.payload);
  if (job.score !== undefined && job.score !== null) line.score = job.score;
  const at = job.performAt;
  if (at !== undefined && at !== null) line.perform_in = at instanceof Date ? at.getTime() / 1000 : at;
  if (job.header) line.header = job.header;
  if (job.urgent) line.urgent = true;
  return line;
}

function* parts(lines) {
  let part = [];
  let size = 0;
  for (const [i, line] of lines.entries()) {
    const bytes = Buffer.byteLength(line);
    if (part.length > 0 && (part.length === PART_JOBS || size + bytes > PART_BYTES)) {
      yield part;
      part = [];
      size = 0;
    }
    part.push(i);
    size += bytes;
  }
  if (part.length > 0) yield part;
}

/** Returns an error that has the jobs that are not stored. */
function unstored(error, jobs, results) {
  if (!(error instanceof LowkiqError)) return error;
  const left = [...jobs.keys()].filter((i) => !results[i]?.ok);
  const { message, status, safeToRepeat } = error;
  const text = `${message}; not stored: ${left.length} of ${jobs.length} jobs (see jobs)`;
  const told = new LowkiqError(text, { status, safeToRepeat, cause: error });
  told.jobs = left.map((i) => jobs[i]);
  told.reasons = left.map((i) => results[i]?.error ?? message);
  return told;
}

/** Returns the JSON value of a payload, a result or a state. Bytes become {"$base64": …}. */
function encode(value) {
  if (value === undefined) return '';
  if (value instanceof Uint8Array) return value.length > 0 ? { $base64: Buffer.from(value).toString('base64') } : '';
  if (isBytes(value)) throw new TypeError('an object with the only key $base64 stands for bytes; give a Buffer instead');
  const text = JSON.stringify(value, checkValue);
  if (text === undefined) throw new TypeError(`${String(value)} is not JSON`);
  return JSON.parse(text);
}

/** Refuses what JSON.stringify would change without a word, and what a node refuses. */
function checkValue(key, value) {
  if (typeof value === 'number' && !Number.isFinite(value)) throw new TypeError(`${value} is not JSON`);
  if (/\p{Surrogate}/u.test(key) || (typeof value === 'string' && /\p{Surrogate}/u.test(value))) {
    throw new TypeError('half of a surrogate pair is no text');
  }
  return value;
}

function isBytes(value) {
  return typeof value === 'object' && value !== null && Object.keys(value).length === 1 && '$base64' in value;
}

function decode(value) {
  return isBytes(value) ? Buffer.from(value.$base64, 'base64') : value;
}

function writeId(id) {
  if (id instanceof Uint8Array) {
    const bytes = Buffer.from(id);
    const text = bytes.toString();
    return Buffer.from(text).equals(bytes) ? { id: text } : { id_base64: bytes.toString('base64') };
  }
  if (typeof id !== 'string') throw new TypeError(`the id is ${String(id)}; it must be a string, or a Buffer`);
  return { id };
}

function readId(value) {
  return 'id' in value ? value.id : Buffer.from(value.id_base64, 'base64');
}

function readReply(answer, token) {
  return { id: readId(answer), state: answer.state, result: decode(answer.result), error: answer.error ?? '', token };
}

/** Thrown by a handler: the job can never succeed, and goes to the morgue with this reason. */
class Bury extends Error {}

/** Thrown by a handler: not now. The whole batch comes again after so many seconds, without a retry. */
class Postpone extends Error {
  constructor(seconds, reason = '') {
    super(reason);
    this.seconds = Number(seconds);
  }
}

/** A Postpone that also keeps other ids of the group from handlers, such as "acme:". "" stands for those of the batch. */
class Throttle extends Postpone {
  constructor(seconds, group = '') {
    super(seconds);
    if (typeof group !== 'string') throw new TypeError('the group must be a string');
    this.group = group;
  }
}

/** An id with its waiting payloads, lowest score first. */
class Job {
  #state;
  #answer = {};
  #note;

  constructor(batch, job, note) {
    this.id = readId(job);
    this.payloads = job.payloads.map((item) => ({ data: decode(item.payload), score: item.score, header: item.header ?? {} }));
    this.attempt = job.retry_count + 2;
    this.callers = job.callers ?? 0;
    this.queue = batch.queue;
    this.shard = batch.shard;
    this.fence = batch.fence;
    this.flight = batch.flight;
    this.#state = decode(job.state);
    this.#note = note;
  }

  get state() {
    return this.#state;
  }

  set state(value) {
    this.#answer.state = value === undefined || value === null ? null : encode(value);
    this.#state = value ?? undefined;
  }

  get result() {
    return decode(this.#answer.result);
  }

  set result(value) {
    this.#answer.result = encode(value);
  }

  /** Adds a push to any registered queue, which Redis stores with the end of the job or not at all. */
  followUp(queue, id, payload, { score, performAt, header } = {}) {
    this.#answer.then ??= [];
    this.#answer.then.push({ queue, ...JSON.parse(jobLine({ id, payload, score, performAt, header })) });
  }

  /** Reports how far the job is. With a state the next attempt continues there. */
  async note({ progress, log, state } = {}) {
    const note = { progress, log };
    if (state !== undefined) {
      note.state = encode(state);
      this.#state = state;
    }
    await this.#note(this, note);
  }

  /** Returns the result, the state and the follow-ups, undefined if there are none. */
  static answerOf(job) {
    return Object.keys(job.#answer).length > 0 ? job.#answer : undefined;
  }
}

/** A function that handles jobs, below a node or behind a server of node:http. */
class Handler {
  #function;
  #event;

  constructor(f) {
    this.#function = f;
  }

  /** Takes the function that gets the events for which handler.events of the node's configuration asks. */
  onEvent(f) {
    this.#event = f;
    return this;
  }

  /**
   * Handles batches of the node that has started this process, until the node ends it.
   *
   * The node reads answers from stdout. So run keeps stdout to itself, and what this process and its children print goes to
   * stderr, which the node logs. Children read an empty stdin.
   */
  async run() {
    if (process.stdin.isTTY) {
      console.error('lowkiq: a node starts this program, by handler: {exec: [...]}; now it reads batches from the terminal');
    }
    const { answers, batches } = takeStreams();
    const write = (line) => {
      let rest = Buffer.from(`${line}\n`);
      while (rest.length > 0) rest = rest.subarray(fs.writeSync(answers, rest));
    };
    let ended = 0; // number of batches
    const note = (batch, job, value) => {
      // The node would take it for a note of the next batch.
      if (batch < ended) throw new Error('the job has ended, and takes no notes');
      write(JSON.stringify({ [Buffer.isBuffer(job.id) ? 'note_base64' : 'note']: { [keyOf(job.id)]: value } }));
    };
    for await (const line of linesOf(batches)) {
      const answer = await this.answer(line, note.bind(null, ended));
      ended += 1;
      write(answer);
    }
  }

  /**
   * Returns a listener for http.createServer that handles batches which a node posts.
   *
   * A request must carry the token, as the password of the URL of handler.http, or as a bearer token. Notes go to a node by
   * client (default: new Client()). maxBytes bounds a batch.
   */
  listener(token, { client, maxBytes = 64 << 20 } = {}) {
    if (!token) throw new TypeError('the token must not be empty: whoever can post to the server can make it handle jobs');
    let notes = client;
    const noted = new WeakMap();
    const note = async (job, value) => {
      if ('state' in value) throw new TypeError('a note over HTTP cannot have a state; assign job.state');
      if (performance.now() - (noted.get(job) ?? -Infinity) < 1000) return;
      noted.set(job, performance.now());
      notes ??= new Client();
      try {
        await notes._note(job, value);
      } catch (error) {
        if (!error.safeToRepeat) throw error; // a later note may say the same; but 409 means that the job is not ours any more
      }
    };
    return async (request, response) => {
      const respond = (status, text, headers = {}) => {
        if (!request.complete) headers.Connection = 'close'; // the body is not read
        response.writeHead(status, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(text), ...headers });
        response.end(text);
      };
      const refuse = (status, error, headers) => respond(status, JSON.stringify({ error }), headers);
      if (!hasToken(request.headers.authorization ?? '', token)) {
        return refuse(401, "the request does not have this handler's token", { 'WWW-Authenticate': 'Bearer' });
      }
      if (request.method !== 'POST') return refuse(405, 'a node posts batches', { Allow: 'POST' });
      const length = request.headers['content-length'];
      if (length === undefined) return refuse(411, 'the request must have a Content-Length');
      if (Number(length) > maxBytes) return refuse(413, `the batch has ${length} bytes, at most ${maxBytes} are allowed`);
      let text;
      try {
        const chunks = [];
        for await (const chunk of request) chunks.push(chunk);
        text = Buffer.concat(chunks);
      } catch {
        return; // the node has gone
      }
      let answer;
      try {
        answer = await this.answer(text, note);
      } catch (error) { // of the request: those of the function are answers
        return refuse(400, `not a batch of lowkiq: ${error.message}`);
      }
      respond(200, answer);
    };
  }

  /** Returns the answer to a batch or an event. */
  async answer(text, note) {
    const message = JSON.parse(text);
    if ('event' in message) return this.#answerEvent(message.event);
    const jobs = message.jobs.map((job) => new Job(message, job, note));
    const answer = {};
    const say = (side, job, what) => {
      const name = Buffer.isBuffer(job.id) ? `${side}_base64` : side;
      answer[name] ??= Object.create(null); // an id may be __proto__
      answer[name][keyOf(job.id)] = what;
    };
    let failed = false;
    for (const job of jobs) {
      try {
        await this.#function(job);
        const said = Job.answerOf(job);
        if (said) say('answers', job, said);
      } catch (error) {
        if (error instanceof Postpone) return postponed(error); // the protocol postpones whole batches
        failed = true;
        if (error instanceof Bury) {
          say('bury', job, reasonOf(error));
        } else {
          console.error(error);
          say('failed', job, textOf(error));
        }
      }
    }
    if (!failed) answer.ok = true;
    return JSON.stringify({ ...answer, flight: message.flight });
  }

  async #answerEvent(event) {
    try {
      await this.#event?.(event);
    } catch (error) {
      console.error(error);
      return JSON.stringify({ ok: false, error: textOf(error) });
    }
    return JSON.stringify({ ok: true });
  }
}

/**
 * Makes a handler of a function, which gets each job of a batch in turn.
 *
 * If it returns, the job is done. Bury, Postpone and Throttle say otherwise. Any other error is the job's failure, and the
 * job is retried.
 */
function handler(f) {
  return new Handler(f);
}

/** Takes stdin and stdout from the rest of the program. A file that is opened gets the lowest free number. */
function takeStreams() {
  const answers = fs.openSync('/dev/fd/1', 'w');
  const pipe = fs.fstatSync(0).isFIFO();
  const batches = pipe ? fs.openSync('/dev/fd/0', 'r') : 0;
  replace(1, '/dev/fd/2', 'a');
  if (pipe) replace(0, '/dev/null', 'r');
  return { answers, batches: pipe ? new net.Socket({ fd: batches, readable: true, writable: false }) : process.stdin };
}

function replace(number, path, flags) {
  fs.closeSync(number);
  const got = fs.openSync(path, flags);
  if (got !== number) throw new Error(`${path} is file ${got} instead of ${number}; call run before the program opens files`);
}

/** Splits a stream after each newline. Lines of node:readline also end at other characters, which payloads may have. */
async function* linesOf(stream) {
  let parts = [];
  for await (const chunk of stream) {
    let rest = chunk;
    for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
      yield Buffer.concat([...parts, rest.subarray(0, end)]);
      parts = [];
      rest = rest.subarray(end + 1);
    }
    if (rest.length > 0) parts.push(rest);
  }
}

function keyOf(id) {
  return Buffer.isBuffer(id) ? id.toString('base64') : id;
}

/** Returns the text of an error for the node, which keeps less of it. It is never empty. */
function reasonOf(error) {
  return (stringOf(error.message) || 'no reason was given').slice(0, 4096).replace(/\p{Surrogate}/gu, '\ufffd');
}

function textOf(error) {
  return error instanceof Error ? `${error.name}: ${reasonOf(error)}` : reasonOf({ message: error });
}

/** Returns any value as a string, '' for one that cannot be a string. */
function stringOf(value) {
  try {
    return String(value);
  } catch {
    return '';
  }
}

function postponed(error) {
  const answer = { ok: false, retry_after: Math.ceil(Math.min(Math.max(1, error.seconds), 86400)) || 1 };
  if (error instanceof Throttle) answer.limit = error.group;
  else if (error.message) answer.error = reasonOf(error);
  return JSON.stringify(answer);
}

function hasToken(authorization, token) {
  const [, scheme, credentials] = /^(\S+) +(\S.*)$/.exec(authorization.trim()) ?? [];
  let sent = credentials ?? '';
  if (scheme?.toLowerCase() === 'basic') sent = Buffer.from(sent, 'base64').toString().replace(/^[^:]*:?/, '');
  else if (scheme?.toLowerCase() !== 'bearer') return false;
  const digest = (text) => crypto.createHash('sha256').update(text).digest();
  return crypto.timingSafeEqual(digest(sent), digest(token));
}

module.exports = { Client, LowkiqError, handler, Handler, Job, Bury, Postpone, Throttle };
