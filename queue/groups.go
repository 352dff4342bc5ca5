package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// GroupRequest is what an instance says of its ids of some groups, and asks for; see lua/group.lua.
type GroupRequest struct {
	Instance string
	Number   int64 // one more with each request of the instance
	Limit    rules.Limit
	Groups   []GroupWant
}

// GroupWant is a part of it about one group.
type GroupWant struct {
	Group   string
	Busy    int           // ids that handlers have; until the answer no other one may begin
	Back    int           // ids that may begin, it is asked, and were told before to ask again now
	New     int           // others
	Stop    time.Duration // so long none may begin, as a handler says; 0: it says nothing
	Spacing time.Duration // between two ids that are to ask again, at least
}

// GroupGrant is the answer to it.
type GroupGrant struct {
	Back, New     int           // so many may
	BackIn, NewIn time.Duration // after that the first of those that may not is to ask again; each other one a Gap later
	Stopped       bool          // none may begin for some time, as a handler said so
}

// GroupsAtOnce bounds the groups of a request.
const GroupsAtOnce = 200

// Gap is what lies between two ids of a group that are to ask again.
func (w *GroupWant) Gap(limit rules.Limit) time.Duration {
	if limit.Rate.N > 0 {
		return max(w.Spacing, limit.Rate.Per/time.Duration(limit.Rate.N), time.Millisecond)
	}
	return max(w.Spacing, time.Millisecond)
}

// AskGroups tells which ids of some groups of a queue an instance may hand to handlers from now on, in the order of the
// request's groups. After an error none may, and the next request is to be about the same groups: what Redis has granted is
// not known. ErrGone of package lease is final.
func (c *Client) AskGroups(ctx context.Context, queue string, r *GroupRequest) ([]GroupGrant, error) {
	db, step := c.DB(), 0.0
	if r.Limit.Rate.N > 0 {
		step = float64(r.Limit.Rate.Per.Microseconds()) / float64(r.Limit.Rate.N)
	}
	kept := time.Hour + time.Duration(step*float64(r.Limit.Burst))*time.Microsecond
	args := []any{r.Instance, r.Number, r.Limit.Concurrency, strconv.FormatFloat(step, 'f', 3, 64), max(r.Limit.Burst, 1), kept.Milliseconds()}
	for i := range r.Groups {
		g := &r.Groups[i]
		args = append(args, g.Group, g.Busy, g.Back, g.New, max(0, g.Stop).Microseconds(), g.Gap(r.Limit).Microseconds())
	}
	reply, err := db.Run(ctx, db.Scripts.Group, []string{db.Keys.Groups(queue), db.Keys.Groupsx(queue), db.Keys.Leases()}, args...)
	list := redisdb.List(reply)
	if err == nil && len(list) != 5*len(r.Groups) {
		err = fmt.Errorf("got %.200v, want five numbers for each of %d groups", reply, len(r.Groups))
	}
	if err != nil {
		return nil, fmt.Errorf("groups of queue %q: %w", queue, limitRefusal(err))
	}
	grants := make([]GroupGrant, len(r.Groups))
	for i := range grants {
		n := list[5*i : 5*i+5]
		us := func(k int) time.Duration { return time.Duration(redisdb.Int(n[k])) * time.Microsecond }
		grants[i] = GroupGrant{int(redisdb.Int(n[0])), int(redisdb.Int(n[1])), us(2), us(3), redisdb.Int(n[4]) != 0}
		if g := grants[i]; g.Back < 0 || g.Back > r.Groups[i].Back || g.New < 0 || g.New > r.Groups[i].New {
			return nil, fmt.Errorf("groups of queue %q: got %v for %+v", queue, n, r.Groups[i])
		}
	}
	return grants, nil
}

// Group is what is known of a group of a queue.
type Group struct {
	Name    string
	Again   time.Time      // when the last id of it that was put back is to ask again; zero: none is
	Till    time.Time      // so long no id of it begins, as a handler has said; zero: none has
	Holders map[string]int // by instance: ids in handler calls, of a group with such a limit; of the dead, too
}

// Group reads what is known of a group now.
func (c *Client) Group(ctx context.Context, queue, name string) (Group, error) {
	replies, err := c.DB().Pipeline(ctx, "read a group", redisdb.Cmd{"HGET", c.DB().Keys.Groups(queue), "g" + name})
	if err != nil {
		return Group{}, err
	}
	return parseGroup(name, redisdb.Text(replies[0])), nil
}

// instancesAtMost is more than a cluster has.
const instancesAtMost = 1000

// RecentGroups reads the groups of a queue that were asked for last, most of them at most, latest first. more: there are others.
func (c *Client) RecentGroups(ctx context.Context, queue string, most int) (groups []Group, more bool, err error) {
	keys, failed := c.DB().Keys, "read the groups of queue "+strconv.Quote(queue)
	// The fields of instances that ask are among those of groups.
	replies, err := c.DB().Pipeline(ctx, failed, redisdb.Cmd{"ZREVRANGE", keys.Groupsx(queue), 0, most + instancesAtMost})
	if err != nil {
		return nil, false, err
	}
	read := redisdb.Cmd{"HMGET", keys.Groups(queue)}
	for _, field := range redisdb.List(replies[0]) {
		if name, isGroup := strings.CutPrefix(redisdb.Text(field), "g"); isGroup {
			if more = len(groups) == most; more {
				break
			}
			groups, read = append(groups, Group{Name: strings.Clone(name)}), append(read, "g"+name)
		}
	}
	if len(groups) == 0 {
		return nil, false, nil
	}
	if replies, err = c.DB().Pipeline(ctx, failed, read); err != nil {
		return nil, false, err
	}
	for i, text := range redisdb.List(replies[0]) {
		groups[i] = parseGroup(groups[i].Name, redisdb.Text(text))
	}
	return groups, more, nil
}

// parseGroup reads the entry of a group, as lua/group.lua has it.
func parseGroup(name, text string) Group {
	g := Group{Name: name, Holders: map[string]int{}}
	head, holders, _ := strings.Cut(text, "\n")
	var at, line, near, till int64
	var owed, step float64
	if n, _ := fmt.Sscan(head, &at, &owed, &step, &line, &near, &till); n == 6 {
		if again := max(line, near); again > 0 {
			g.Again = time.UnixMicro(again)
		}
		if till > 0 {
			g.Till = time.UnixMicro(till)
		}
	}
	for one := range strings.Lines(holders) {
		held, instance, _ := strings.Cut(strings.TrimSuffix(one, "\n"), " ")
		if n, err := strconv.Atoi(held); err == nil {
			g.Holders[strings.Clone(instance)] = n
		}
	}
	return g
}
