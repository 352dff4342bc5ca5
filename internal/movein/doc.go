// Package movein answers one question: how does a queue of Ruby's Lowkiq come into a queue whole, each
// payload once?
//
// A [Mover] first looks ([Mover.Survey]): what is there, and what cannot come, each with its reason. It moves
// ([Mover.Move]) by four steps for some ids at a time: take them in the old Redis, where they get rising
// numbers; make them what they come to; import them, which the new queue does once for a number; forget
// them. What cannot come is put back. A Mover may be killed at any instant, and so may be either Redis: the
// next one goes on with what was taken and is not forgotten.
package movein
