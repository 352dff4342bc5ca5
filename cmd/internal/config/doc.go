// Package config answers one question: what did the user configure? [Load] is a pure function from the bytes of a YAML file,
// LOWKIQ_* environment variables and flags to a [Config]. Variables override the file, and flags override both.
//
// The name of a variable is the path of the key in the file, in capitals. Each dot and every other character that is not a
// letter or a digit becomes _: node.poll_interval is LOWKIQ_NODE_POLL_INTERVAL. For a queue that the file names,
// queues.history.shards is LOWKIQ_QUEUES_HISTORY_SHARDS. The value is written as in the file, except that a string needs no
// quotes.
//
// Nothing is ignored. An unknown key, an unknown LOWKIQ_* variable, and a value of the wrong type or out of range are an
// [Error]. It names the place with the lines of the file around it, and says what would be right. There are no goroutines.
package config
