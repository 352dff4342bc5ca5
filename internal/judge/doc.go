// Package judge answers: did the handlers keep I1, I2 and I3? It is what
// the demo, the kill -9 tests and e2e trust.
//
// A [Writer] appends what handlers do to a file, one line an event; [Wrap] puts
// it around a handler. The driver of a test notes the deaths it causes with
// [Writer.Death]. [Check] reads the files of a run, compares them with what was
// pushed ([Pushed]) and gives a [Verdict] in words and figures. The package has no
// goroutines; a Writer may be used by many, and many processes may append to one
// file.
//
// # The file
//
// Every event is written with one write(2) to a file opened with O_APPEND, so lines
// of different processes never mix. An event begins with a newline and ends with
// " .": a line that a SIGKILL cut short stands alone and is recognised. One such
// line per death, and one per child of the dead, is tolerated; anything else that
// cannot be read is a fault.
//
//	start T PROCESS QUEUE SHARD FENCE FLIGHT ID N SCORE:DIGEST … .
//	more  T PROCESS QUEUE ID SCORE:DIGEST … .
//	end   T PROCESS BEGAN QUEUE ID .
//	fail  T PROCESS BEGAN QUEUE ID ERROR .
//	death REAPED PROCESS KILLED .
//
// Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a host share.
// Names, ids and errors are quoted as in Go. A batch has a start and an end line
// per id, all with the same time, and T of start together with PROCESS names the
// call. N is the number of payloads; those beyond the first line follow in lines
// "more". DIGEST is the crc64 of the payload.
//
// # The rules
//
//   - I1: no two calls of one (queue, id) overlap; with Config.ShardConcurrency, no
//     more batches of a shard than that; a batch never starts with a fence below
//     that of a batch of its shard that started before, nor with that of another
//     process. Several processes behind one HTTP handler are named "<name>/<which>".
//   - I2: every pushed payload was in a call that succeeded; nothing was handled
//     that was not pushed. Equal payloads of an id that wait together are one, with
//     the smallest score: a payload also counts as handled if an equal one with a
//     smaller or equal score was, in a call that started after the push was sent.
//   - I3: in a call, scores ascend, equal ones are in push order, and no payload is
//     there twice. When a call has a payload, every payload of that id with a lower or
//     equal score that was pushed before it was handled, or is in the same call. The
//     order of equal scores is judged where it is known: not of a payload that was
//     pushed more than once, or is optional. A repeat (handled again because the ack
//     was lost) must be of the id's last successful call, and bring that call's highest
//     payload with it.
//   - Limits, where Config.Limits has some: no more batches of a queue at once than it allows, no more ids of a group in
//     calls; over no time more ids handed over than its rate and burst, and Late for those that were let go and begin late.
//     What began before the limit held is not counted. The clocks of Redis and the host must go equally fast.
//   - Holds: no call of an id begins in a time of Config.Holds.
//   - In queues of Config.Latest a push may take the place of one that waits. So I2 is there: after each push began a call
//     that succeeded and had a payload of its id with no lower score. That nothing is overtaken cannot be judged.
//
// # No false alarms, and what that costs
//
// A recorded call lies within the real one: its start is read after the handler
// was entered, its end before the handler returns. A process killed with SIGKILL
// leaves calls without an end. They count as running until the driver's note just
// before the kill, or until the process's last event if that is later: it
// certainly lived then. If it is not known when the process died (a crash of its own),
// its last event alone counts. So the judge does not see
//   - an overlap that begins between that moment and the process's real death
//     (microseconds after a SIGKILL sent at once);
//   - what an exec child does after its node died, unless the child writes its own
//     history; a child named "<node's process>/<pid>" is covered by the node's
//     death, and its calls without an end count until its own last event;
//   - a handler that goes on in the background after it returned;
//   - an overlap with a process that wrote no history.
//
// A call without an end whose process has no recorded death is a fault: otherwise
// a forgotten note would weaken the check silently. A process that is stopped and
// thawed past its lease (a stated limit of I1) is reported as an overlap or a
// stale fence, as it is one.
package judge
