'use strict';
// Tests of the client against a real node, which clients_test.go starts: go test ./clients -run Node.

const assert = require('node:assert/strict');
const net = require('node:net');
const { test } = require('node:test');
const { setTimeout: sleep } = require('node:timers/promises');
const { Client, LowkiqError } = require('../lowkiq.js');

const { LOWKIQ_TEST_CONTROL, LOWKIQ_URL, LOWKIQ_TEST_TLS_URL, LOWKIQ_TEST_CA } = process.env;
const skip = LOWKIQ_TEST_CONTROL ? false : 'SKIPPED: there is no node; go test ./clients starts it';
const queues = ['orders', 'posted'];
const client = new Client();
const range = (from, to, step = 1) => Array.from({ length: Math.ceil((to - from) / step) }, (_, n) => from + n * step);
const append = (id, n) => ({ id, payload: { do: 'append', n } });
const call = (queue, id, what, options) => client.call(queue, id, { do: what }, options);

/** Asks clients_test.go to do something to the node. */
async function control(what) {
  assert.equal((await fetch(`${LOWKIQ_TEST_CONTROL}/${what}`, { method: 'POST' })).status, 200);
}

async function eventually(what, condition) {
  const deadline = Date.now() + 60_000;
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, what);
    await sleep(20);
  }
}

/** Returns the first occurrence of each number that the handler has got, in order. */
async function numbers(id) {
  const reply = await call('orders', id, 'state');
  assert.equal(reply.state, 'done', reply.error);
  return [...new Set(reply.result)];
}

async function failure(promise) {
  return promise.then(() => assert.fail('it succeeds'), (error) => {
    assert.ok(error instanceof LowkiqError, error);
    return error;
  });
}

/** Listens at a port, and returns its URL. */
async function listen(t, onConnection) {
  const sockets = new Set();
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    onConnection(socket);
  });
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  const { port } = server.address();
  const close = () => new Promise((resolve) => {
    server.close(resolve);
    for (const socket of sockets) socket.destroy();
  });
  t.after(close);
  return { url: `http://127.0.0.1:${port}`, close };
}

test('the page shows this', { skip }, async () => {
  const jobs = [{ id: 'order-2' }];
  const later = [];
  {
    const client = new Client();
    await client.push('orders', 'order-1', { state: 'paid' }, { header: { tag: 'vip' } });
    await client.pushMany('orders', Array.from({ length: 1000 }, (_, n) => ({ id: 'order-1', payload: { n } })));
    const reply = await client.call('orders', 'order-1', { state: 'sent' }, { wait: 30 });
    console.log(reply.state, reply.result, reply.error);
    assert.deepEqual([reply.state, reply.result], ['done', { state: 'sent' }]);
  }
  {
    const client = new Client();
    let reply = await client.call('visits', 'page-1', 'home', { wait: 30 });
    if (reply.state === 'pending') reply = await client.reply('visits', reply.id, reply.token);
    console.log(reply.state, reply.result, reply.error);
    assert.deepEqual([reply.state, reply.result], ['done', 1]);
  }
  {
    const client = new Client();
    const files = [
      { queue: 'orders', id: 'a', payload: 1, name: 'first' },
      { queue: 'orders', id: 'b', payload: 2, after: ['first'] },
    ];
    await client.startWorkflow('import-42', files, { done: { queue: 'orders', id: '42' }, deadline: 7200, open: true });
    await client.addToWorkflow('import-42', [{ queue: 'orders', id: 'c', payload: 3 }]);
    await client.closeWorkflow('import-42');
    console.log((await client.workflow('import-42')).state);
    await eventually('the workflow is done', async () => (await client.workflow('import-42')).state === 'done');
    assert.equal((await client.workflow('import-42')).done, 3);
  }
  const client = new Client({ url: 'http://127.0.0.1:9', patience: 0 });
  try {
    await client.pushMany('orders', jobs);
  } catch (error) {
    if (!(error instanceof LowkiqError)) throw error;
    console.log(error.message, error.status);
    if (error.safeToRepeat) later.push(...error.jobs);
  }
  assert.deepEqual(later, jobs);
});

test('a workflow', { skip }, async () => {
  const id = 'wörk/1';
  const later = (job) => ({ queue: 'orders', performAt: Date.now() / 1000 + 3600, ...job });
  const jobs = [later({ id: 'w1', payload: Buffer.from([0]) })];
  const done = { queue: 'orders', id: 'end', header: { tag: 'vip' } };
  for (let i = 0; i < 2; i++) { // the same start again is no error
    assert.equal((await client.startWorkflow(id, jobs, { done, dead: done, deadline: 60, open: true })).total, 1);
  }
  const other = await failure(client.startWorkflow(id, jobs));
  assert.match(other.message, /another workflow has this id/);
  assert.deepEqual([other.status, other.safeToRepeat], [409, false]);
  for (let i = 0; i < 2; i++) {
    await client.addToWorkflow(id, [later({ id: 'w2' })]);
    await control('lose');
    assert.equal((await client.closeWorkflow(id)).open, false);
  }
  assert.match((await failure(client.addToWorkflow(id, [later({ id: 'w3' })]))).message, /not open/);
  await eventually('it has both jobs', async () => (await client.workflow(id)).total === 2);
  assert.equal((await client.cancelWorkflow(id)).id, id);
  await eventually('it is cancelled', async () => (await client.workflow(id)).state === 'cancelled');
  assert.equal((await failure(client.workflow('none'))).status, 404);
  await assert.rejects(client.startWorkflow('none', [later({ id: 'a', befor: [] })]), /its keys must be/);
});

test('equal payloads merge', { skip }, async () => {
  const performAt = new Date(Date.now() + 3600_000);
  const one = await client.push('orders', 'merged', { n: 1, text: 'Zoë' }, { performAt });
  const two = await client.push('orders', 'merged', { n: 1, text: 'Zoë' }, { performAt });
  assert.deepEqual([one.ok, one.merged, two.merged], [true, false, true]);
  const why = await client.why('orders', 'merged');
  assert.equal(why.state, 'scheduled');
  assert.match(why.reason, /due in/);
});

test('a push carries all', { skip }, async () => {
  await client.push('orders', 'urgent', 1, { performAt: Date.now() / 1000 + 3600, urgent: true });
  assert.match((await client.why('orders', 'urgent')).reason, /urgent/);
  const reply = await call('orders', 'called', 'describe', { score: 2.5, header: { tag: 'vip' }, urgent: true });
  assert.deepEqual(reply.result, {
    id: 'called', attempt: 1, callers: 1, queue: 'orders', score: 2.5, header: { tag: 'vip' }, state: null,
  });
});

test('a thousand pushes keep their order', { skip }, async () => {
  const results = await client.pushMany('orders', range(0, 1000).map((n) => append('bulk', n)));
  assert.equal(results.filter((result) => result.ok && result.id === 'bulk').length, 1000);
  assert.deepEqual(await numbers('bulk'), range(0, 1000));
});

test('more than a part keeps its order', { skip }, async () => {
  assert.equal((await client.pushMany('orders', range(0, 2500).map((n) => append(`part-${n % 7}`, n)))).length, 2500);
  assert.deepEqual(await numbers('part-3'), range(3, 2500, 7));
});

test('the node restarts between pushes', { skip }, async () => {
  const starts = [];
  for (const n of range(0, 20)) {
    if (n % 10 === 5) {
      await control('stop');
      starts.push(control('start'));
    }
    await client.push('orders', 'restarted', { do: 'append', n });
  }
  await Promise.all(starts);
  assert.deepEqual(await numbers('restarted'), range(0, 20));
});

test('a push whose answer is lost is repeated', { skip }, async () => {
  for (const n of range(0, 10)) {
    await control('lose');
    await client.pushMany('orders', range(10 * n, 10 * n + 10).map((k) => append('lost', k)));
  }
  assert.deepEqual(await numbers('lost'), range(0, 100));
});

test('a call whose answer is lost is not repeated', { skip }, async () => {
  await control('lose');
  const error = await failure(client.call('orders', 'lost call', { do: 'append', n: 1 }));
  assert.deepEqual([error.status, error.safeToRepeat], [null, false]);
  await eventually('the call runs', async () => (await call('orders', 'lost call', 'state')).result?.join() === '1');
});

test('a call is repeated while nothing listens', { skip }, async (t) => {
  const { url: closed, close } = await listen(t, () => {});
  await close();
  assert.equal((await new Client({ url: `${closed},${LOWKIQ_URL}` }).call('orders', 'both', 1)).state, 'done');
  const error = await failure(new Client({ url: closed, patience: 0 }).push('orders', 'x', 1));
  assert.deepEqual([error.status, error.safeToRepeat, error.jobs], [null, true, [{ id: 'x', payload: 1 }]]);
  assert.match(error.message, /not stored: 1 of 1/);
  assert.ok(error.message.includes(closed), error.message);
});

test('a wrong token', { skip }, async () => {
  const error = await failure(new Client({ token: 'wrong' }).push('orders', 'x', 1));
  assert.deepEqual([error.status, error.safeToRepeat], [401, false]);
  assert.throws(() => new Client({ token: 'two\nlines' }), /ASCII/);
});

test('a wrong queue', { skip }, async () => {
  for (const [ask, ...rest] of [['push', 1], ['call', 1], ['why'], ['history']]) {
    const error = await failure(client[ask]('wrok', 'x', ...rest));
    assert.match(error.message, /unknown queue "wrok"/);
    assert.deepEqual([error.status, error.safeToRepeat], [404, false]);
  }
});

test('a timeout', { skip }, async (t) => {
  const { url } = await listen(t, () => {});
  const pushed = await failure(new Client({ url, timeout: 0.2, patience: 0 }).push('orders', 'x', 1));
  assert.match(pushed.message, /no answer within 0.2 s/);
  assert.equal(pushed.safeToRepeat, true);
  assert.equal((await failure(new Client({ url, timeout: 0.2 }).call('orders', 'x', 1, { wait: 0.1 }))).safeToRepeat, false);
  const slow = await listen(t, (socket) => {
    socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n');
    const drip = setInterval(() => socket.write(' '), 20);
    socket.on('close', () => clearInterval(drip));
  });
  const why = await failure(new Client({ url: slow.url, timeout: 0.2, patience: 0 }).why('orders', 'x'));
  assert.match(why.message, /no answer within 0.2 s/);
});

test('what is no lowkiq', { skip }, async (t) => {
  const { url } = await listen(t, (socket) => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi'));
  const other = new Client({ url });
  for (const ask of ['push', 'call', 'why']) {
    assert.match((await failure(other[ask]('orders', 'x'))).message, /not the answer of a lowkiq node/);
  }
});

test('refused jobs do not stop the others', { skip }, async () => {
  const jobs = [{ id: 'a', payload: 1 }, { id: 'b', payload: 'x'.repeat(1 << 20) }, { id: 'c', payload: 3 }];
  const error = await failure(client.pushMany('orders', jobs));
  assert.deepEqual([error.jobs, error.safeToRepeat], [[jobs[1]], false]);
  assert.match(error.reasons[0], /payload is too large/);
});

test('what is no job is not sent', { skip }, async () => {
  const circle = {};
  circle.circle = circle;
  for (const [job, why] of [
    [{ payload: 1 }, /must be a string/], [{ id: 'a', body: 1 }, /its keys must be/], [{ id: 7 }, /must be a string/],
    [{ id: 'a', payload: NaN }, /not JSON/], [{ id: 'a', payload: [Infinity] }, /not JSON/],
    [{ id: 'a', payload: () => {} }, /not JSON/], [{ id: 'a', payload: circle }, /circular/],
    [{ id: 'a', payload: '\ud800' }, /surrogate/], [{ id: 'a', payload: { '\udfff': 1 } }, /surrogate/],
    [{ id: '\ud800' }, /surrogate/], [{ id: 'a', performAt: new Date('never') }, /not JSON/],
    [{ id: 'a', score: NaN }, /not JSON/], [{ id: 'a', payload: { $base64: 'eA==' } }, /stands for bytes/],
  ]) {
    await assert.rejects(client.pushMany('orders', [{ id: 'unsent', payload: 1 }, job]), why);
  }
  assert.equal((await client.why('orders', 'unsent')).state, 'absent');
});

test('payloads come as they were', { skip }, async () => {
  const payloads = [
    Buffer.from([0, 255]), 'Zoë \u2028 \u{1f600} "\\\n', [1, 2.5, null, true, { k: [] }], {}, '', null, 0,
    'x'.repeat(200_000), JSON.parse('{"__proto__": 1}'),
  ];
  for (const queue of queues) {
    for (const payload of payloads) {
      const reply = await client.call(queue, 'same', payload);
      assert.deepEqual([reply.state, reply.result], ['done', payload]);
    }
    assert.equal((await client.call(queue, 'same')).result, '');
  }
});

test('ids', { skip }, async () => {
  for (const queue of queues) {
    for (const id of ['Zoë/1 ?#%', '.', '..', Buffer.from([255]), '\u2028', '__proto__', "it's (a) *!"]) {
      const reply = await call(queue, id, 'note');
      assert.deepEqual([reply.id, reply.state, reply.result], [id, 'done', 1]);
      assert.equal((await client.reply(queue, id, reply.token)).result, 1);
      assert.equal((await client.history(queue, id))[0].verdict, 'done');
      assert.equal((await client.why(queue, id)).state, 'absent');
    }
  }
});

test('ends', { skip }, async () => {
  for (const queue of queues) {
    for (const [what, state, result, error] of [
      ['print', 'done', 'printed', ''], ['raise', 'buried', undefined, 'TypeError: told to fail, Zoë'],
      ['bury', 'buried', undefined, 'no such account'], ['postpone', 'done', undefined, ''],
      ['throttle', 'done', undefined, ''], ['bytes', 'done', Buffer.from([0, 255]), ''],
    ]) {
      const reply = await call(queue, `acme:${what}`, what);
      assert.deepEqual([reply.state, reply.result, reply.error], [state, result, error], `${queue}: ${what}`);
    }
    const reply = await call(queue, 'acme:object', 'object');
    assert.equal(reply.state, 'buried');
    assert.match(reply.error, /not JSON/);
    assert.deepEqual((await call(queue, 'acme:bytes', 'state')).result, Buffer.from([254]));
    await call(queue, 'acme:bytes', 'forget');
    assert.equal((await call(queue, 'acme:bytes', 'state')).result, null);
  }
});

test('the answer to a batch is about each id', { skip }, async () => {
  const jobs = range(0, 50).map((n) => ({ id: `b${n}`, payload: { do: n % 5 === 0 ? 'raise' : 'append', n } }));
  await client.pushMany('batches', jobs);
  for (const n of range(0, 50)) {
    const want = n % 5 === 0 ? 'morgue' : 'absent';
    await eventually(`b${n} is ${want}`, async () => (await client.why('batches', `b${n}`)).state === want);
  }
  assert.deepEqual((await call('batches', 'b7', 'state')).result, [7]);
});

test('a pending call', { skip }, async () => {
  const reply = await client.call('orders', 'pending', 1, { wait: 0.05, keep: 60, performAt: Date.now() / 1000 + 3600 });
  assert.deepEqual([reply.state, reply.result], ['pending', undefined]);
  assert.equal((await client.reply('orders', 'pending', reply.token)).state, 'pending');
  assert.equal((await failure(client.reply('orders', 'pending', 'A'.repeat(22)))).status, 404);
  assert.match((await failure(client.call('orders', 'pending', 1, { wait: 301 }))).message, /wait/);
});

test('TLS with a certificate authority', { skip }, async () => {
  const secure = new Client({ url: LOWKIQ_TEST_TLS_URL, ca: LOWKIQ_TEST_CA });
  assert.equal((await secure.push('orders', 'tls', 1)).ok, true);
  assert.equal((await secure.call('orders', 'tls', 1)).state, 'done');
  assert.equal((await failure(new Client({ url: LOWKIQ_TEST_TLS_URL }).push('orders', 'tls', 1))).safeToRepeat, false);
});
