// Package wire answers one question: how do jobs, batches and answers look as
// JSON, byte for byte? It is the same for the HTTP push, the NDJSON of the
// command line, HTTP endpoints and exec children.
//
// A push, all but the id optional:
//
//	{"id":"a","payload":{"any":"JSON"},"score":1,"perform_in":1763600000.5,"header":{"tag":"vip"}}
//
// A batch, on one line:
//
//	{"queue":"history","shard":3,"fence":1763600000123,"flight":17,
//	 "jobs":[{"id":"a","retry_count":-1,"payloads":[{"score":1,"payload":{"any":"JSON"}}]}]}
//
// A payload that was pushed with headers has them beside it: "header":{"tag":"vip"}. A job for whose end
// calls wait has their number beside its payloads, "callers":1, and a job whose id has a state has that,
// "state":{"n":41}.
//
// An answer is one of
//
//	{"ok":true}
//	{"ok":false,"error":"the database is away"}
//	{"failed":{"a":"no such account"}}
//
// where the last says that the jobs not named succeeded. {"bury":{"a":"reason"}}, alone or beside
// "failed", names jobs that are never to be tried again: they go to the morgue at once. Each may
// also carry the number of the batch's flight, as in {"ok":true,"flight":17}: an answer with
// another number is refused. Batches of one pop share it.
//
// An answer may also say more of jobs than that they are done, beside "ok":true or beside those that
// failed:
//
//	{"ok":true,"answers":{"a":{"result":{"price":3},"state":{"n":42}}}}
//
// "result" is for those who called, "state" replaces the state of the id; "state":null deletes it, and
// without "state" it stays. They count for jobs that are done. A job whose result or state is longer than
// lowkiq.MaxResultBytes or lowkiq.MaxStateBytes fails.
//
// An event, for handlers that want some, is an object with the one key event: see [AppendEvent]. It is answered as a batch
// is, but for answers about single jobs.
//
// A payload is bytes, and so are a result and a state. JSON is stored compacted, with
// its numbers and the order of its keys untouched, and comes out as it went in. No
// payload and the empty string "" are both zero bytes, which come out as "". Bytes that are no JSON text travel
// as {"$base64":"…"}, an object with exactly this one key; so does such an object itself.
// What is pushed so arrives so: bytes that could be read as JSON get the header payload: bytes
// ([BytesHeader]), and what has it always travels in base64. Of a state that
// goes to a handler null, "" and all JSON with white space travel so, too: it comes
// to the byte as it was stored. An id that is not valid UTF-8 travels in the field
// id_base64 in place of id, and in an answer below failed_base64, bury_base64 or
// answers_base64 in place of failed, bury or answers.
//
// The package has no goroutines and keeps no state between calls, but for
// [Scanner], which belongs to one goroutine. It promises that whatever
// [AppendPayload] writes is one line, and is read back as the same bytes when they
// are no JSON text, or a compact one other than "", and that a state is read back as the same bytes
// whatever it is. Errors of reading are [*Error].
package wire
