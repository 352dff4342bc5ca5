package lowkiq_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
)

// A program imports files. When all of them are imported, a report is pushed.
func ExampleFollowUp_workflow() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "workflows"})
	if err != nil {
		log.Fatal(err)
	}
	handle := func(_ context.Context, batch *lowkiq.Batch) error {
		for _, job := range batch.Jobs {
			fmt.Printf("%s of %s: %s\n", job.ID, batch.Shard.Queue, job.Payloads[0].Data)
			if job.ID == "import-42" {
				stop() // an example ends; a worker would go on
			}
		}
		return nil
	}
	client := n.Client() // queue.Open makes one in a program that handles nothing
	for _, name := range []string{"files", "reports"} {
		if err := n.Handle(node.QueueConfig{Name: name, Shards: 1}, lowkiq.HandlerFunc(handle)); err != nil {
			log.Fatal(err)
		}
		if _, err := client.Register(ctx, lowkiq.Queue{Name: name, Shards: 1}); err != nil {
			log.Fatal(err)
		}
	}
	_, err = client.StartWorkflow(ctx, queue.Workflow{
		ID: "import-42",
		Jobs: []queue.WorkflowJob{
			{Queue: "files", Push: lowkiq.Push{ID: "a", Payload: []byte(`"a.csv"`)}, Name: "first"},
			{Queue: "files", Push: lowkiq.Push{ID: "b", Payload: []byte(`"b.csv"`)}, After: []string{"first"}},
		},
		Done:     &lowkiq.FollowUp{Queue: "reports", Push: lowkiq.Push{ID: "import-42", Payload: []byte(`"all files"`)}},
		Deadline: time.Hour,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// a of files: "a.csv"
	// b of files: "b.csv"
	// import-42 of reports: "all files"
}
