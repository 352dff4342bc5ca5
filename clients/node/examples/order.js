// Orders a report and waits for it.
const { Client } = require('lowkiq');

async function main() {
  const client = new Client();
  let reply = await client.call('reports', 'acme', { kind: 'sales' }, { wait: 30 });
  console.log(reply.state, JSON.stringify(reply.result));
  reply = await client.call('reports', 'globex', { kind: 'rumours' }, { wait: 30 });
  console.log(reply.state, reply.error);
  for (const run of await client.history('reports', 'acme')) console.log(run.verdict, 'attempt', run.attempt);
  console.log((await client.why('reports', 'globex')).reason);
  client.close();
}

main();
