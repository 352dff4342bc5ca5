// Package reshard answers: how does a queue get another number of shards while it runs?
package reshard
