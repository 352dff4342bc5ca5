//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/wire"
)

// serveBatches is an exec child: it answers batches, and writes their history as a
// child of its node.
func serveBatches() error {
	node, err := grandparent()
	if err != nil || !slices.Contains(tagged(os.Getenv(tagEnv)), node) {
		return err // the node has died meanwhile, and the guard has another parent
	}
	writer, err := judge.OpenAs(os.Getenv(historyEnv), fmt.Sprintf("%d/%d", node, os.Getpid()))
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

func answer(writer *judge.Writer, line []byte) error {
	batch, err := wire.ParseBatch(line)
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

// lastID begins the ids of what a node is at when it is killed.
const lastID = "last"

// hotWork is long for the hottest id: when a node is killed, a child may be
// at it, and one that outlived the node would still be at it when the next node has begun.
func hotWork(batch *lowkiq.Batch) time.Duration {
	switch id := batch.Jobs[0].ID; {
	case id == "CHANGELOG.md":
		return 150 * time.Millisecond
	case strings.HasPrefix(id, lastID):
		return time.Second
	case strings.HasPrefix(id, longID):
		return 6 * ttl // the children of a frozen node are dead sooner
	}
	return time.Millisecond
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
