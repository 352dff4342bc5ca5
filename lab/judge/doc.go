// Package judge answers one question: did the handlers keep I1, I2 and I3? The demo, the kill -9 tests and e2e rely on it.
//
// A [Writer] appends the events of handlers to a file, a line each. [Wrap] puts it around a handler. The driver of a test
// notes the deaths that it causes with [Writer.Death]. [Check] reads the files of a run, compares them with the pushed
// payloads ([Pushed]), and returns a [Verdict] in words and figures. The package has no goroutines. Many goroutines may use
// a Writer, and many processes may append to a file.
//
// # The file
//
// Every event is written with a single write(2) to a file opened with O_APPEND, so lines of different processes never mix.
// An event begins with a newline and ends with " .". So a line that a SIGKILL cut short stands alone and is recognized. Such
// a line is tolerated once per death, and once per child of the dead process. Any other line that cannot be read is a fault.
//
//	start T PROCESS QUEUE SHARD FENCE FLIGHT ID N SCORE:DIGEST … .
//	more  T PROCESS QUEUE ID SCORE:DIGEST … .
//	end   T PROCESS BEGAN QUEUE ID .
//	fail  T PROCESS BEGAN QUEUE ID ERROR .
//	death REAPED PROCESS KILLED .
//
// Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a host share. Names, ids and errors are quoted as in Go.
// A batch has a start line and an end line per id, all with the same time. T of start together with PROCESS names the call.
// N is the number of payloads. Lines "more" follow with those that do not fit into the first line. DIGEST is the crc64 of
// the payload.
//
// # The rules
//
//   - I1: No two calls of the same queue and id overlap. With Config.ShardConcurrency a shard has at most that many batches
//     at once. A batch never starts with a lower fence than an earlier batch of its shard, nor with the fence of another
//     process. Several processes behind an HTTP handler are named "<name>/<which>".
//   - I2: Every pushed payload was in a call that succeeded, and no payload was handled that was not pushed. Equal payloads
//     of an id that wait together are merged with the smallest score. So a payload also counts as handled if an equal
//     payload with at most its score was in a call that started after the push was sent.
//   - I3: Within a call scores ascend, equal scores are in push order, and no payload occurs twice. When a call has a
//     payload, every payload of that id that was pushed before it with at most its score was handled, or is in the same
//     call. The order of equal scores is judged where it is known, and so not for a payload that was pushed more than once
//     or is optional. A repeat, which follows a lost ack, must be of the id's last successful call and have that call's
//     highest payload.
//   - Limits: At no time has a queue more batches, or a group more ids in calls, than Config.Limits allow. Over no period
//     are more ids handed over than rate and burst allow, plus Late for ids that were let go and begin late. Batches that
//     began before the limit do not count. The clocks of Redis and the host must run at the same speed.
//   - Holds: No call of a held id begins in a time of Config.Holds.
//   - Latest: In queues of Config.Latest a push may replace a waiting push. There I2 says that after each push a call began
//     that succeeded and had a payload of its id with at least its score. Whether a payload was overtaken cannot be judged.
//
// # No false alarms, and what that costs
//
// A recorded call lies within the real call. Its start is read after the handler was entered, its end before the handler
// returns. A process killed with SIGKILL leaves calls without an end. They count as running until the driver's note just
// before the kill, or until the last event of the process if that is later, because the process certainly lived then. If the
// time of the death is not known, as for a crash of its own, only the last event counts. So the judge does not see:
//
//   - an overlap that begins between that time and the real death, which are microseconds after a SIGKILL that was sent at
//     once;
//   - the calls of an exec child after its node died, unless the child writes a history of its own. The death of the node
//     covers a child named "<node's process>/<pid>", and the calls of the child without an end count until its own last
//     event;
//   - a handler that continues in the background after it has returned;
//   - an overlap with a process that wrote no history.
//
// A call without an end, of a process without a recorded death, is a fault. Otherwise a forgotten note would weaken the
// check silently. A process that is stopped, and thawed after its lease has ended, is a stated limit of I1. It is reported
// as the overlap or stale fence that it is.
package judge
