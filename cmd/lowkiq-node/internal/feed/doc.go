// Package feed answers one question: how does an NDJSON stream of any length get into
// a queue, and where does it go on after an outage?
//
// A [Feeder] reads lines in one goroutine and stores them in batches in the caller's:
// whatever has been read while the last batch was on its way is the next one, so a slow
// stream is stored line by line and a fast one in thousands. Memory is bounded by
// bytes, whatever the stream's length.
//
// It promises that every line up to [Summary.Line] is settled, that is: stored, or
// refused and reported. Going on after that line loses nothing (I2); lines behind it
// may have been stored already and are then stored again, as a push is at least once.
// Lines of one id keep their order (I3), also when some of a batch must be repeated: a
// batch has at most one script per shard.
package feed
