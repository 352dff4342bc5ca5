// Package rubyqueue answers one question: what does a queue of Ruby's Lowkiq hold, and how is it taken out?
//
// A [Queue] reads ids where they lie ([Queue.ReadWaiting], [Queue.ReadFlights], [Queue.ReadMorgue], [Queue.Peek]) and takes
// them ([Queue.Take]). To take an id, one script moves all its keys under <prefix>:migrate:*, whatever their size, and gives
// it a rising number. No process of Ruby's looks there. An [Entry] is an id that was taken. It stays unchanged until it is
// forgotten ([Queue.Forget]) or put back ([Queue.PutBack]).
//
// [SettleEntry] returns the job that an entry stands for. It applies the rules of Ruby's restore to a flight, and accounts
// for a failure that was interrupted by the death of its process.
//
// Names of keys are built and never searched for, because the name of a queue may begin with the name of another and may
// contain glob characters. Only [Queue.FindOrphans] and [Queue.DescribeOthers] search for keys. They change none.
//
// Scripts use commands of Redis 3.2 (tried with 3.2.13, see LOWKIQ_OLD_REDIS of package redistest), and neither clock nor
// chance. No script blocks Redis for more than 25 ms, because each is bounded in ids, payloads and bytes (TestWorstScript).
// The exception is a single payload that is larger than a queue here may have, because Redis reads a payload whole.
package rubyqueue
