// Command peers answers one question: how does lowkiq compare with what people use today? It runs asynq in the same rounds
// on the same private Redis, and its table shows the ratios.
//
// asynq neither orders jobs nor merges payloads, and it acknowledges each job by itself. lowkiq groups acks, all within 10
// ms. After a crash, both run again a job that was popped and not acknowledged.
//
// The command is a module of its own, so that lowkiq does not depend on asynq.
package main
