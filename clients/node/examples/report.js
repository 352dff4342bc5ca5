// Makes reports. A node starts this program.
const { handler, Bury } = require('lowkiq');

const reports = handler(async (job) => {
  for (const { data } of job.payloads) {
    if (data.kind !== 'sales') throw new Bury(`there are no reports of the kind ${data.kind}`);
    console.log('making', data);
    job.result = { report: job.id, attempt: job.attempt };
  }
});

if (require.main === module) {
  reports.run();
}
