'use strict';
// Tests of handlers without a node.

const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const http = require('node:http');
const path = require('node:path');
const { test } = require('node:test');
const { handler, Bury, Postpone, Throttle } = require('../lowkiq.js');

const batch = {
  queue: 'orders', shard: 3, fence: 7, flight: 9, jobs: [
    {
      id: 'a', retry_count: 1, callers: 2, state: { count: 41 },
      payloads: [{ score: 1, payload: { n: 1 }, header: { tag: 'vip' } }, { score: 2, payload: { $base64: '/w==' } }],
    },
    { id_base64: '/w==', retry_count: -1, payloads: [{ score: 1, payload: '' }] },
  ],
};

async function answer(f, message = batch) {
  const notes = [];
  const text = await handler(f).answer(JSON.stringify(message), async (job, note) => { notes.push(note); });
  return { answer: JSON.parse(text), notes };
}

test('a job', async () => {
  const jobs = [];
  assert.deepEqual((await answer((job) => jobs.push(job))).answer, { ok: true, flight: 9 });
  const [a, other] = jobs;
  assert.deepEqual([a.id, a.attempt, a.callers, a.state, a.queue, a.shard, a.fence], ['a', 3, 2, { count: 41 }, 'orders', 3, 7]);
  assert.deepEqual(a.payloads, [
    { data: { n: 1 }, score: 1, header: { tag: 'vip' } }, { data: Buffer.from([255]), score: 2, header: {} },
  ]);
  assert.deepEqual([other.id, other.attempt, other.callers, other.state], [Buffer.from([255]), 1, 0, undefined]);
});

test('results and states', async () => {
  const got = await answer((job) => {
    job.result = { n: 1 };
    job.state = job.id === 'a' ? null : Buffer.from([255]);
  });
  assert.deepEqual(got.answer, {
    answers: { a: { result: { n: 1 }, state: null } },
    answers_base64: { '/w==': { result: { n: 1 }, state: { $base64: '/w==' } } }, ok: true, flight: 9,
  });
});

test('follow-ups', async () => {
  const got = await answer((job) => {
    if (job.id !== 'a') return;
    job.followUp('mail', 'u7', { n: 1 }, { performAt: 1763600000, header: { tag: 'vip' } });
    job.followUp('mail', Buffer.from([255]));
  });
  assert.deepEqual(got.answer, {
    answers: { a: { then: [
      { queue: 'mail', id: 'u7', payload: { n: 1 }, perform_in: 1763600000, header: { tag: 'vip' } },
      { queue: 'mail', id_base64: '/w==', payload: '' },
    ] } }, ok: true, flight: 9,
  });
});

test('one id fails', async (t) => {
  const logged = t.mock.method(console, 'error', () => {});
  const got = await answer(async (job) => {
    if (job.id !== 'a') throw new Bury();
    job.result = 'does not count';
    throw new RangeError('x');
  });
  assert.deepEqual(got.answer, { failed: { a: 'RangeError: x' }, bury_base64: { '/w==': 'no reason was given' }, flight: 9 });
  assert.equal(logged.mock.callCount(), 1);
});

test('what is thrown need not be an error', async (t) => {
  t.mock.method(console, 'error', () => {});
  const cases = [['text', 'text'], [undefined, 'undefined'], [null, 'null'], [new Error('\ud800'), 'Error: \ufffd'],
    [Object.assign(new Error(), { message: 7 }), 'Error: 7'], [Object.create(null), 'no reason was given']];
  for (const [thrown, want] of cases) {
    assert.equal((await answer(() => { throw thrown; })).answer.failed.a, want);
  }
});

test('postponed', async () => {
  const end = async (error) => (await answer(() => { throw error; })).answer;
  assert.deepEqual(await end(new Postpone(0.2, 'the shop is away')), { ok: false, retry_after: 1, error: 'the shop is away' });
  assert.deepEqual(await end(new Throttle(30, 'acme:')), { ok: false, retry_after: 30, limit: 'acme:' });
  assert.deepEqual(await end(new Postpone(Infinity)), { ok: false, retry_after: 86400 });
  assert.deepEqual(await end(new Postpone(NaN)), { ok: false, retry_after: 1 });
  assert.throws(() => new Throttle(1, null), /must be a string/);
});

test('notes', async () => {
  const got = await answer(async (job) => {
    if (job.id !== 'a') return;
    await job.note({ progress: 0.5, log: 'half', state: { row: 1 } });
    assert.deepEqual(job.state, { row: 1 });
  });
  assert.deepEqual(got.notes, [{ progress: 0.5, log: 'half', state: { row: 1 } }]);
});

test('an ended job takes no notes', () => {
  const program = `
    const { handler } = require('./lowkiq.js');
    let first;
    handler(async (job) => {
      if (first) job.result = await first.note({ progress: 0.5 }).catch((error) => error.message);
      else first = job;
    }).run();`;
  const line = JSON.stringify({ ...batch, jobs: batch.jobs.slice(0, 1) });
  // Below a node all streams are pipes. Those of spawnSync are sockets.
  const pipes = ['-c', 'cat | "$0" -e "$1" 2>/dev/null | cat', process.execPath, program];
  const got = spawnSync('sh', pipes, { cwd: path.dirname(__dirname), input: `${line}\n${line}\n`, encoding: 'utf8' });
  const answers = { a: { result: 'the job has ended, and takes no notes' } };
  assert.deepEqual(got.stdout.trim().split('\n').map((text) => JSON.parse(text)), [
    { ok: true, flight: 9 }, { answers, ok: true, flight: 9 },
  ]);
});

test('values must be JSON', async (t) => {
  t.mock.method(console, 'error', () => {});
  for (const value of [() => {}, Infinity, { $base64: 'x' }, '\ud800', 1n]) {
    assert.ok((await answer((job) => { job.result = value; })).answer.failed.a);
  }
});

test('events', async () => {
  const event = { kind: 'recovered', queue: 'orders', shard: 3, recovered: 12, crashes: 0, from: 'n2/1' };
  assert.deepEqual((await answer(() => assert.fail(), { event })).answer, { ok: true });
  const got = [];
  assert.equal(await handler(() => assert.fail()).onEvent((e) => got.push(e)).answer(JSON.stringify({ event })), '{"ok":true}');
  assert.deepEqual(got, [event]);
});

test('a listener', async (t) => {
  const server = http.createServer(handler(() => {}).listener('secret', { maxBytes: 1000 }));
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  t.after(() => server.close());
  const url = `http://127.0.0.1:${server.address().port}/`;
  const ask = async (authorization, body = JSON.stringify(batch), method = 'POST') => {
    const headers = authorization ? { authorization } : {};
    return (await fetch(url, { method, headers, body: method === 'POST' ? body : undefined })).status;
  };
  assert.equal(await ask('Bearer secret'), 200);
  assert.equal(await ask('Basic bG93a2lxOnNlY3JldA=='), 200); // lowkiq:secret
  for (const wrong of ['', 'Bearer', 'Bearer secre', 'Bearer secrets', 'Basic bG93a2lx', 'Basic !', 'Digest secret']) {
    assert.equal(await ask(wrong), 401, wrong);
  }
  assert.equal(await ask('Bearer secret', '', 'GET'), 405);
  assert.equal(await ask('Bearer secret', 'x'.repeat(1001)), 413);
  for (const body of ['{', '[]', '1', '{"jobs":[{}]}']) assert.equal(await ask('Bearer secret', body), 400, body);
  const chunked = new ReadableStream({ start: (c) => { c.enqueue(Buffer.from('{}')); c.close(); } });
  const headers = { authorization: 'Bearer secret' };
  assert.equal((await fetch(url, { method: 'POST', headers, body: chunked, duplex: 'half' })).status, 411);
  assert.throws(() => handler(() => {}).listener(''), /must not be empty/);
});
