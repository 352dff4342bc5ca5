// Package config answers one question: what did the user configure? [Load] is a pure
// function from a YAML file's bytes, LOWKIQ_* environment variables and flags to a
// [Config]; a later one of these overrides an earlier one.
//
// A variable's name is the key's path in the file, in capitals, with _ for dots and
// for every other character that is no letter or digit: node.poll_interval is
// LOWKIQ_NODE_POLL_INTERVAL, and queues.history.shards is
// LOWKIQ_QUEUES_HISTORY_SHARDS, for a queue that the file names. The value is written
// as in the file; a string needs no quotes.
//
// It promises that nothing is ignored: an unknown key, an unknown LOWKIQ_* variable, a
// value of the wrong type or out of range is an [Error] that names its place, with the
// lines of the file around it, and what would be right. There are no goroutines.
package config
