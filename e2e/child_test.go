//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/history"
)

// serveBatches is an exec child: it answers batches, and writes their history as a
// child of its node.
func serveBatches() error {
	node, err := grandparent()
	if err != nil || !slices.Contains(tagged(os.Getenv(tagEnv)), node) {
		return err // the node has died meanwhile, and the guard has another parent
	}
	writer, err := history.OpenAs(os.Getenv(historyEnv), fmt.Sprintf("%d/%d", node, os.Getpid()))
	if err != nil {
		return err
	}
	defer writer.Close()
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil // the node wants no more
		}
		if err := answer(writer, line); err != nil {
			return err
		}
	}
}

func answer(writer *history.Writer, line []byte) error {
	batch, err := decodeBatch(line)
	if err != nil {
		return err
	}
	done, err := writer.Start(batch)
	if err != nil {
		return err
	}
	<-time.After(hotWork(batch))
	if err := done(nil); err != nil {
		return err
	}
	_, err = os.Stdout.WriteString("{\"ok\":true}\n")
	return err
}

// hotWork is long for the hottest id: when a node is killed, somebody is at it, and who
// outlived the node would still be at it when the next node has begun.
func hotWork(batch *lowkiq.Batch) time.Duration {
	switch id := batch.Jobs[0].ID; {
	case id == "CHANGELOG.md":
		return 150 * time.Millisecond
	case strings.HasPrefix(id, longID):
		return 3 * ttl // a seizure without a witness of the death takes two
	}
	return time.Millisecond
}

// decodeBatch reads a batch as a program in another language would.
func decodeBatch(text []byte) (*lowkiq.Batch, error) {
	var b struct {
		Queue  string
		Shard  int
		Fence  int64
		Flight int64
		Jobs   []struct {
			ID         string
			RetryCount int `json:"retry_count"`
			Payloads   []struct {
				Score   float64
				Payload json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, fmt.Errorf("batch %.200q: %w", text, err)
	}
	batch := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: b.Queue, Index: b.Shard}, Fence: b.Fence, Flight: b.Flight}
	for _, j := range b.Jobs {
		job := lowkiq.Job{ID: j.ID, RetryCount: j.RetryCount}
		for _, p := range j.Payloads {
			job.Payloads = append(job.Payloads, lowkiq.Payload{Score: p.Score, Data: p.Payload})
		}
		batch.Jobs = append(batch.Jobs, job)
	}
	return batch, nil
}

// grandparent is the parent of the guard: the node.
func grandparent() (int, error) { return parentOf(os.Getppid()) }

func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return strconv.Atoi(fields[1])
}
