"""Orders a report and waits for it."""

import lowkiq

client = lowkiq.Client()
reply = client.call("reports", "acme", {"kind": "sales"}, wait=30)
print(reply.state, reply.result)
reply = client.call("reports", "globex", {"kind": "rumours"}, wait=30)
print(reply.state, reply.error)
for run in client.history("reports", "acme"):
    print(run["verdict"], "attempt", run["attempt"])
print(client.why("reports", "globex")["reason"])
