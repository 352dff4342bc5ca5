// Package bench answers one question: how fast is lowkiq on this machine, and how far from the floor? The floor is two
// minimal scripts. They move the same jobs through a list, a hash and a flight, over the same connections and in chunks of
// the same size, without any check or rule.
//
// Machines differ, and a machine drifts by half within minutes. The ratios within a run do not. So every round measures
// every figure once, the floor first. A [Report] has the medians of the figures, and the medians of each round's ratios to
// its own floor.
//
// [Run] measures as a [Config] says, by default on a private redis-server. [Report.Table] prints a report for people,
// encoding/json for machines. A [Step] adds another system to the same rounds on the same Redis. Before Run returns, it ends
// every goroutine and process that it has started.
package bench
