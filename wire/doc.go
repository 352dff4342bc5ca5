// Package wire defines the JSON of jobs, batches and answers. HTTP pushes, the NDJSON of the command
// line, HTTP endpoints and child processes use it.
//
// A push, whose fields are optional except for the id:
//
//	{"id":"a","payload":{"any":"JSON"},"score":1,"perform_in":1763600000.5,"urgent":true,"header":{"tag":"vip"}}
//
// A batch, on one line:
//
//	{"queue":"history","shard":3,"fence":1763600000123,"flight":17,
//	 "jobs":[{"id":"a","retry_count":-1,"payloads":[{"score":1,"payload":{"any":"JSON"}}]}]}
//
// A payload with headers has them beside it: "header":{"tag":"vip"}. A job with waiting callers has their
// number, "callers":1. A job whose id has a state has it, too: "state":{"n":41}.
//
// An answer has one of these forms:
//
//	{"ok":true}
//	{"ok":false,"error":"the database is away"}
//	{"failed":{"a":"no such account"}}
//
// In the last form the other jobs are done. {"bury":{"a":"reason"}}, alone or beside "failed", names jobs
// that go to the morgue without a retry. An answer may have the number of the batch's flight, as in
// {"ok":true,"flight":17}. An answer with another number is refused. Batches of the same pop have the same
// number.
//
// An answer may have results and states, beside "ok":true or beside failed jobs:
//
//	{"ok":true,"answers":{"a":{"result":{"price":3},"state":{"n":42}}}}
//
// Callers get "result". "state" replaces the state of the id; null deletes it, and without "state" it stays.
// They count for jobs that are done. A job whose result is longer than lowkiq.MaxResultBytes, or whose state
// is longer than lowkiq.MaxStateBytes, fails.
//
// An event, for handlers that ask for events, is an object with the single key event: see [AppendEvent]. Its
// answer has the form of an answer to a batch, without answers about single jobs.
//
// Payloads, results and states are bytes. JSON is stored without white space between its tokens; its numbers
// and the order of its keys stay. A missing payload and the empty string "" are both zero bytes, which are
// written as "". Other bytes are written as {"$base64":"…"}, an object with this single key. So is an object
// of that shape itself. Bytes that were pushed in base64 are written in base64: if they are valid JSON, the
// push gets the header payload: bytes ([BytesHeader]). A state comes back byte for byte, so null, "" and JSON
// with white space are written in base64, too. An id that is not valid UTF-8 is written in id_base64 in place
// of id, and in answers in failed_base64, bury_base64 or answers_base64 in place of failed, bury or answers.
//
// The package has no goroutines and no state between calls, except for [Scanner], which belongs to one
// goroutine. [AppendPayload] writes a single line. Reading it returns the same bytes, if they are not JSON,
// or if they are compact JSON other than "". Reading a state always returns the same bytes. Errors of
// reading are [*Error].
package wire
