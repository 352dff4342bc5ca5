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

	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// What is known of runs, rules and what recurs.

// journalEntries is how many entries of a journal one request reads: each may have the lines of a whole batch.
const journalEntries = 20

// place is that of an entry in a stream: its time, ms, and its number within that.
type entryPlace struct{ ms, seq uint64 }

func parsePlace(id string) (p entryPlace) {
	ms, seq, _ := strings.Cut(id, "-")
	p.ms, _ = strconv.ParseUint(ms, 10, 64)
	p.seq, _ = strconv.ParseUint(seq, 10, 64)
	return p
}

func (p entryPlace) before(other entryPlace) bool {
	return p.ms < other.ms || p.ms == other.ms && p.seq < other.seq
}

// ledger is a journal as it was at one instant, while others write it on and trim it.
type ledger struct {
	entries []counted // oldest first
	last    string    // the id of the newest that was read
	said    string    // the shard's counter of lines
	listed  int64     // the lines that its list of entries counts
	damaged map[string]string
}

type counted struct {
	place entryPlace
	runs  int64
}

// lines are how many there are.
func (l *ledger) lines() (n int64) {
	for _, e := range l.entries {
		n += e.runs
	}
	return n
}

// catchUp reads on until there is nothing that it has not read: what it then knows was so at one instant. It gives up, and
// returns false, when more is written all the while than one request reads.
func (l *ledger) catchUp(ctx context.Context, s *queue.Shard) (bool, error) {
	const what = "read a journal"
	rounds, last := 10_000, false
	for round := 0; round < rounds; round++ {
		from := "-"
		if l.last != "" {
			from = "(" + l.last
		}
		rows := 0 // of the list: the last request reads it all
		if last {
			rows = -1
		}
		replies, err := s.DB().Atomic(ctx, what, redisdb.Cmd{"HGET", s.Keys().Count, "runs"},
			redisdb.Cmd{"XRANGE", s.Keys().Journal, "-", "+", "COUNT", 1}, redisdb.Cmd{"XRANGE", s.Keys().Journal, from, "+", "COUNT", journalEntries},
			redisdb.Cmd{"LRANGE", s.Keys().Journalx, 0, rows})
		if err != nil {
			return false, err
		}
		l.said = redisdb.Text(replies[0])
		if n, err := strconv.Atoi(l.said); err == nil && round == 0 {
			rounds += 2 * n / journalEntries
		}
		first, fresh := redisdb.List(replies[1]), redisdb.List(replies[2])
		for _, e := range fresh {
			l.see(e)
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

// see takes in one entry.
func (l *ledger) see(reply any) {
	parts := redisdb.List(reply)
	if len(parts) != 2 {
		return
	}
	id, fields := redisdb.Text(parts[0]), redisdb.Map(parts[1])
	n, bad := strconv.ParseInt(fields["n"], 10, 64)
	runs, err := journal.Parse(fields["l"], fields["i"], time.Time{})
	if err == nil && int64(len(runs)) != n {
		err = fmt.Errorf("it has %d lines, and says %q", len(runs), fields["n"])
	}
	if err = errors.Join(bad, err); err != nil {
		l.damaged[id] = err.Error()
	}
	l.last = id
	l.entries = append(l.entries, counted{parsePlace(id), n})
}

// forgetBefore leaves out what was trimmed since it was read; first is the answer that has the first entry left.
func (l *ledger) forgetBefore(first []any) {
	var at entryPlace
	if len(first) == 1 {
		at = parsePlace(redisdb.Text(redisdb.List(first[0])[0]))
		l.entries = slices.DeleteFunc(l.entries, func(e counted) bool { return e.place.before(at) })
		maps.DeleteFunc(l.damaged, func(id, _ string) bool { return parsePlace(id).before(at) })
		return
	}
	l.entries, l.damaged, l.last = nil, map[string]string{}, ""
}

// journal looks whether the shard's journal can be read, and whether its lines are counted right.
func (a *auditor) journal(ctx context.Context, s *queue.Shard) error {
	seen := &ledger{damaged: map[string]string{}}
	settled, err := seen.catchUp(ctx, s)
	if err != nil {
		return err
	}
	var found []Fault
	for id, why := range seen.damaged {
		found = append(found, Fault{Kind: JournalEntry, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("entry %s of its journal cannot be read: %s", id, why), within: id})
	}
	slices.SortFunc(found, func(x, y Fault) int { return strings.Compare(x.within, y.within) })
	a.addSome(found)
	switch lines := seen.lines(); {
	case !settled:
		a.out.Unsettled = append(a.out.Unsettled, fmt.Sprintf("shard %s: lines of its journal", s))
	case len(found) == 0 && seen.listed != lines:
		a.add(Fault{Kind: JournalCount, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("the list journalx counts %d lines, there are %d lines of its journal", seen.listed, lines)})
	case len(found) == 0 && seen.said != strconv.FormatInt(lines, 10) && (seen.said != "" || lines != 0):
		a.add(Fault{Kind: JournalCount, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("the counter runs says %q, there are %d lines of its journal", seen.said, lines)})
	}
	return nil
}

// recountJournal puts the counter of lines right, if nothing is written between the last look and that.
func recountJournal(ctx context.Context, s *queue.Shard) (bool, error) {
	seen := &ledger{damaged: map[string]string{}}
	for range recountTries {
		settled, err := seen.catchUp(ctx, s)
		lines := strconv.FormatInt(seen.lines(), 10)
		if err != nil || !settled || seen.said == lines && seen.listed == seen.lines() {
			return false, err
		}
		n, err := count(ctx, s, s.DB().Scripts.Repair, s.Keys().Wake, string(JournalCount), "", seen.last, seen.said, lines)
		if n > 0 || err != nil {
			return n > 0, err
		}
	}
	return false, nil
}

// atRunTime looks at what was set while nodes ran: rules and what recurs.
func (a *auditor) atRunTime(ctx context.Context) error {
	damaged := func(kind FaultKind, queue, what string) {
		a.add(Fault{Kind: kind, Queue: queue, Shard: -1, What: what})
	}
	wrongType := func(kind FaultKind, what string, err error) error {
		if err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
			damaged(kind, "", what+" are of another type in Redis")
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
			_, err = set.Values(time.Time{})
		}
		if err != nil {
			damaged(RulesDamaged, name, err.Error()+"; lowkiq-node rules "+name+" --unset takes them back")
		}
	}
	entries, err := recurring.Of(a.c).Unreadable(ctx)
	if err := wrongType(RecurringDamaged, "entries of what recurs", err); err != nil {
		return err
	}
	for _, err := range entries {
		damaged(RecurringDamaged, "", err.Error()+"; edit or remove it")
	}
	reply, err := a.db.Do(ctx, "read the type of the log of changes", "TYPE", a.db.Keys.Changes())
	if kind := redisdb.Text(reply); err == nil && kind != "none" && kind != "stream" {
		damaged(RecordDamaged, "", "the log of changes is a "+kind+" in Redis, want a stream")
	}
	return err
}
