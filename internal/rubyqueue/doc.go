// Package rubyqueue answers one question: what does a queue of Ruby's Lowkiq hold, and how is it taken
// out?
//
// A [Queue] reads ids where they lie ([Queue.Waiting], [Queue.Flights], [Queue.Morgue], [Queue.Look]), and
// takes them ([Queue.Take]): one script moves all that an id has, however much that is, under
// <prefix>:migrate:*, where no process of Ruby's looks, and gives it a number that rises. An [Entry] is
// what was taken, unchanged until it is forgotten ([Queue.Forget]) or put back ([Queue.PutBack]).
// [Settle] says which job an entry is: what Ruby's restore makes of a flight, and what the failure that
// a death interrupted had done already.
//
// Names of keys are built, never searched for: a queue's name may begin with another's, and hold globs. [Queue.Orphans] alone looks for keys, and
// changes none.
// Scripts use commands of Redis 3.2, and no clock or chance (tried with 3.2.13: LOWKIQ_OLD_REDIS of package redistest). None keeps Redis for more than 25 ms:
// each is bounded by ids, payloads, and bytes but for one payload (TestWorstScript). Larger payloads than a queue here may have take longer, as Redis
// reads a payload whole.
package rubyqueue
