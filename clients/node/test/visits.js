'use strict';
// Counts visits. docs/handlers.md shows this.

const { handler } = require('lowkiq');

const visits = handler(async (job) => {
  let count = job.state?.count ?? 0;
  for (const { data } of job.payloads) count = data === 'reset' ? 0 : count + 1;
  job.result = count;
  job.state = { count };
});

visits.run();
