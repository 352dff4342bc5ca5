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
// A payload that was pushed with headers has them beside it: "header":{"tag":"vip"}.
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
// A payload is bytes. JSON is stored compacted, with its numbers and the order of
// its keys untouched, and comes out as it went in. No payload and the empty string
// "" are both zero bytes, which come out as "". Bytes that are no JSON text travel
// as {"$base64":"…"}, an object with exactly this one key; so do the few JSON texts
// that would be misread (such an object itself, and the two bytes ""). An id that
// is not valid UTF-8 travels in the field id_base64 in place of id, and in an
// answer below failed_base64 or bury_base64 in place of failed or bury.
//
// The package has no goroutines and keeps no state between calls, but for
// [Scanner], which belongs to one goroutine. It promises that whatever
// [AppendPayload] writes is one line, and is read back as the same bytes when they
// are no JSON text, or a compact one. Errors of reading are [*Error].
package wire
