package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// The journal, rules set at run time, and recurring entries.

// journalEntries is how many entries of a journal a request reads. Each may have the lines of a
// whole batch.
const journalEntries = 20

// streamID is the id of an entry in a stream: its time in ms and its number within that ms.
type streamID struct{ ms, seq uint64 }

func parseStreamID(id string) (p streamID) {
	ms, seq, _ := strings.Cut(id, "-")
	p.ms, _ = strconv.ParseUint(ms, 10, 64)
	p.seq, _ = strconv.ParseUint(seq, 10, 64)
	return p
}

func (p streamID) isBefore(other streamID) bool {
	return p.ms < other.ms || p.ms == other.ms && p.seq < other.seq
}

// journalReading is a journal as it was at one instant, although others append to it and trim it.
type journalReading struct {
	entries []journalEntry // oldest first
	last    string         // id of the newest entry that was read
	counter string         // the shard's counter of lines as text
	listed  int64          // sum of the lines in its list of entries
	damaged map[string]string
}

type journalEntry struct {
	place streamID
	runs  int64
}

// countLines returns the number of lines.
func (l *journalReading) countLines() (n int64) {
	for _, e := range l.entries {
		n += e.runs
	}
	return n
}

// catchUp reads on until there are no more entries. The result then is the journal at one instant.
// It returns false if entries are written faster than it reads.
func (l *journalReading) catchUp(ctx context.Context, s *protocol.Shard) (bool, error) {
	const what = "read a journal"
	rounds, last := 10_000, false
	for round := 0; round < rounds; round++ {
		from := "-"
		if l.last != "" {
			from = "(" + l.last
		}
		rows := 0 // end of the list to read; the last request reads all of it
		if last {
			rows = -1
		}
		replies, err := s.DB().ReadAtomic(ctx, what, redisdb.Cmd{"HGET", s.Keys().Count, "runs"},
			redisdb.Cmd{"XRANGE", s.Keys().Journal, "-", "+", "COUNT", 1}, redisdb.Cmd{"XRANGE", s.Keys().Journal, from, "+", "COUNT", journalEntries},
			redisdb.Cmd{"LRANGE", s.Keys().Journalx, 0, rows})
		if err != nil {
			return false, err
		}
		l.counter = redisdb.Text(replies[0])
		if n, err := strconv.Atoi(l.counter); err == nil && round == 0 {
			rounds += 2 * n / journalEntries
		}
		first, fresh := redisdb.List(replies[1]), redisdb.List(replies[2])
		for _, e := range fresh {
			l.addEntry(e)
		}
		if len(fresh) == journalEntries {
			continue
		}
		if !last {
			last = true
			continue
		}
		l.listed = 0
		for _, row := range redisdb.Texts(replies[3]) {
			_, lines, _ := strings.Cut(row, " ")
			n, _ := strconv.ParseInt(lines, 10, 64)
			l.listed += n
		}
		l.forgetBefore(first)
		return true, nil
	}
	return false, nil
}

// addEntry adds an entry.
func (l *journalReading) addEntry(reply any) {
	parts := redisdb.List(reply)
	if len(parts) != 2 {
		return
	}
	id, fields := redisdb.Text(parts[0]), redisdb.Map(parts[1])
	n, bad := strconv.ParseInt(fields["n"], 10, 64)
	runs, err := journal.Parse(fields["l"], fields["i"], time.Time{})
	if err == nil && int64(len(runs)) != n {
		err = fmt.Errorf("it has %d lines and counts %q", len(runs), fields["n"])
	}
	if err = errors.Join(bad, err); err != nil {
		l.damaged[id] = err.Error()
	}
	l.last = id
	l.entries = append(l.entries, journalEntry{parseStreamID(id), n})
}

// forgetBefore drops the entries that were trimmed since they were read. first is the reply with
// the first remaining entry.
func (l *journalReading) forgetBefore(first []any) {
	var at streamID
	if len(first) == 1 {
		at = parseStreamID(redisdb.Text(redisdb.List(first[0])[0]))
		l.entries = slices.DeleteFunc(l.entries, func(e journalEntry) bool { return e.place.isBefore(at) })
		maps.DeleteFunc(l.damaged, func(id, _ string) bool { return parseStreamID(id).isBefore(at) })
		return
	}
	l.entries, l.damaged, l.last = nil, map[string]string{}, ""
}

// checkJournal checks whether the shard's journal can be read and its lines are counted right.
func (a *auditor) checkJournal(ctx context.Context, s *protocol.Shard) error {
	seen := &journalReading{damaged: map[string]string{}}
	settled, err := seen.catchUp(ctx, s)
	if err != nil {
		return err
	}
	var found []Fault
	for id, why := range seen.damaged {
		found = append(found, Fault{Kind: JournalEntry, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("entry %s of its journal cannot be read: %s", id, why), within: id})
	}
	slices.SortFunc(found, func(x, y Fault) int { return strings.Compare(x.within, y.within) })
	a.addShardFaults(found)
	switch lines := seen.countLines(); {
	case !settled:
		a.out.Unsettled = append(a.out.Unsettled, fmt.Sprintf("shard %s: lines of its journal", s))
	case len(found) == 0 && seen.listed != lines:
		a.addFaults(Fault{Kind: JournalCount, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("the list journalx counts %d lines, but its journal has %d lines", seen.listed, lines)})
	case len(found) == 0 && seen.counter != strconv.FormatInt(lines, 10) && (seen.counter != "" || lines != 0):
		a.addFaults(Fault{Kind: JournalCount, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("the counter runs is %q, but its journal has %d lines", seen.counter, lines)})
	}
	return nil
}

// recountJournal corrects the counter of lines, unless something is written after the last read.
func recountJournal(ctx context.Context, s *protocol.Shard) (bool, error) {
	seen := &journalReading{damaged: map[string]string{}}
	for range recountTries {
		settled, err := seen.catchUp(ctx, s)
		lines := strconv.FormatInt(seen.countLines(), 10)
		if err != nil || !settled || seen.counter == lines && seen.listed == seen.countLines() {
			return false, err
		}
		n, err := runCounting(ctx, s, s.DB().Scripts.Repair, s.Keys().Wake, string(JournalCount), "", seen.last, seen.counter, lines)
		if n > 0 || err != nil {
			return n > 0, err
		}
	}
	return false, nil
}

// checkRunTime checks rules that were set at run time, recurring entries and the list of changes.
func (a *auditor) checkRunTime(ctx context.Context) error {
	damaged := func(kind FaultKind, queue, what string) {
		a.addFaults(Fault{Kind: kind, Queue: queue, Shard: -1, What: what})
	}
	wrongType := func(kind FaultKind, what string, err error) error {
		if err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
			damaged(kind, "", what+" have another type in Redis")
			return nil
		}
		return err
	}
	page, err := rules.In(a.db).Read(ctx, "\x00", false)
	if err := wrongType(RulesDamaged, "the rules that were set at run time", err); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(page.Queues)) {
		set, err := rules.Parse(name, page.Queues[name])
		if err == nil {
			_, err = set.Apply(rules.Rules{}, time.Time{})
		}
		if err != nil {
			damaged(RulesDamaged, name, err.Error()+"; lowkiq-node rules "+name+" --unset takes them back")
		}
	}
	entries, err := recurring.Of(a.c).Unreadable(ctx)
	if err := wrongType(RecurringDamaged, "recurring entries", err); err != nil {
		return err
	}
	for _, err := range entries {
		damaged(RecurringDamaged, "", err.Error()+"; edit or remove it")
	}
	reply, err := a.db.Do(ctx, "read the type of the list of changes", "TYPE", a.db.Keys.Changes())
	if kind := redisdb.Text(reply); err == nil && kind != "none" && kind != "stream" {
		damaged(RecordDamaged, "", "the list of changes is a "+kind+" in Redis, want a stream")
	}
	return err
}
