'use strict';
// The handler of the tests. A payload says what to do: {"do": "echo"}.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const { handler, Bury, Postpone, Throttle } = require('../lowkiq.js');

const postponed = new Set();

exports.handle = handler(async (job) => {
  for (const { data, score, header } of job.payloads) {
    switch (data?.do ?? 'echo') {
      case 'echo':
        job.result = data;
        break;
      case 'describe':
        job.result = {
          id: job.id, attempt: job.attempt, callers: job.callers, queue: job.queue, score, header, state: job.state ?? null,
        };
        break;
      case 'print':
        console.log('a stray print');
        fs.writeSync(1, 'a stray write\n');
        spawnSync('sh', ['-c', 'echo a stray child; cat'], { stdio: 'inherit' }); // cat would wait for batches
        job.result = 'printed';
        break;
      case 'raise':
        throw new TypeError('told to fail, Zoë');
      case 'bury':
        throw new Bury('no such account');
      case 'postpone':
        if (!postponed.has(job.id)) {
          postponed.add(job.id);
          throw new Postpone(1, 'not yet');
        }
        break;
      case 'throttle':
        if (!postponed.has(job.id)) {
          postponed.add(job.id);
          throw new Throttle(1, 'acme:');
        }
        break;
      case 'append':
        job.state = [...(job.state ?? []), data.n];
        break;
      case 'state':
        job.result = job.state ?? null;
        break;
      case 'forget':
        job.state = null;
        break;
      case 'note':
        await job.note({ progress: 0.5, log: 'half of it' });
        job.result = job.attempt;
        break;
      case 'object':
        job.result = () => {};
        break;
      case 'bytes':
        job.result = Buffer.from([0, 255]);
        job.state = Buffer.from([254]);
        break;
      default:
        throw new Error(`unknown: ${data.do}`);
    }
  }
});

if (require.main === module) {
  exports.handle.run();
}
