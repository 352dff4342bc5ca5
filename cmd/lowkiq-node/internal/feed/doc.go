// Package feed answers one question: how does an NDJSON stream of any length get into a queue, and where does it continue
// after an outage?
//
// A [Feeder] reads lines in one goroutine and stores them in batches in another, the caller's. A batch consists of the lines
// that were read while the batch before was stored. So a slow stream is stored line by line, and a fast stream in thousands.
// Memory is bounded in bytes, whatever the length of the stream.
//
// Every line up to [Summary.Line] is settled: it is stored, or it was refused and reported. To continue after that line
// loses nothing (I2). Later lines may be stored as well and are then stored again, because a push happens at least once.
// Lines of an id keep their order (I3), even if a part of a batch is repeated, because a batch has at most one script per
// shard.
package feed
