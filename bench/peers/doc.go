// Command peers answers how lowkiq compares with what people use today: asynq runs in the
// same rounds on the same private Redis, and the table shows the ratios.
//
// asynq neither orders jobs nor merges payloads, and it acknowledges each job by itself;
// lowkiq groups acks, all within 10 ms. What is popped and not acknowledged runs again
// after a crash, in both.
//
// It is a module of its own, so that asynq is no dependency of lowkiq.
package main
