// Package bench answers how fast lowkiq is on this machine, and how far from the floor:
// two minimal scripts that move the same jobs through a list, a hash and a flight, over
// the same connections in chunks of the same size, without any check or rule.
//
// Machines differ and drift by half within minutes; ratios of one run do not. So every
// round measures every figure once, the floor first, and a [Report] holds the medians of
// the figures and of each round's ratio to its own floor.
//
// [Run] measures by a [Config], on a private redis-server unless told otherwise;
// [Report.Table] prints for people, encoding/json for machines. A [Step] adds another
// system to the same rounds on the same Redis. Run ends every goroutine and process it
// started before it returns.
package bench
