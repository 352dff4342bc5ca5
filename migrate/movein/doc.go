// Package movein answers one question: how does a queue of Ruby's Lowkiq come into a queue whole, each payload once?
//
// [Mover.Survey] reads the old queue and reports what would be moved. It names every job that cannot be moved, with the
// reason. [Mover.Move] then repeats four steps, each time for some ids. It takes the ids in the old Redis, where they get
// rising numbers. It converts them to entries of the new queue. It imports the entries, which the new queue does once for
// each number. It forgets them in the old Redis. A job that cannot be moved is put back.
//
// A Mover and both Redis may be killed at any instant. The next Mover goes on with the entries that were taken and are not
// forgotten.
package movein
