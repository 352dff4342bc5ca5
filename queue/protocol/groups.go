package protocol

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// GroupRequest reports an instance's calls of some groups and asks how many further ids may begin; see
// lua/group.lua.
type GroupRequest struct {
	Instance string
	Number   int64 // grows by one with each request of the instance
	Limit    rules.Limit
	Groups   []GroupWant
}

// GroupWant is the part of a request about a group.
type GroupWant struct {
	Group   string
	Busy    int           // ids in handler calls; no other id of the group may begin before the answer
	Back    int           // ids that want to begin and were told before to ask again now
	New     int           // other ids that want to begin
	Stop    time.Duration // how long no id may begin, because a handler answered so; 0 if none did
	Spacing time.Duration // minimum time between two ids that are told to ask again
}

// GroupGrant is the part of an answer about a group.
type GroupGrant struct {
	Back, New int // how many of the ids may begin
	// BackIn and NewIn are the delays before the first of the other ids asks again. Each further id asks
	// a [GroupWant.Gap] later.
	BackIn, NewIn time.Duration
}

// GroupsAtOnce is the maximum number of groups in a request.
const GroupsAtOnce = 200

// Gap returns the time between two ids of a group that are told to ask again.
func (w *GroupWant) Gap(limit rules.Limit) time.Duration {
	if limit.Rate.N > 0 {
		return max(w.Spacing, limit.Rate.Per/time.Duration(limit.Rate.N), time.Millisecond)
	}
	return max(w.Spacing, time.Millisecond)
}

// AskGroups asks which ids of some groups of a queue an instance may hand to handlers from now on. The grants
// are in the order of the request's groups. After an error no id may begin, and it is unknown what Redis has
// granted. The next request must then contain the same groups, so that Redis learns what the instance really
// has. lease.ErrGone is final.
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
	if err == nil && len(list) != 4*len(r.Groups) {
		err = fmt.Errorf("the script answered %.200v instead of four numbers for each of %d groups", reply, len(r.Groups))
	}
	if err != nil {
		return nil, fmt.Errorf("groups of queue %q: %w", queue, readLimitError(err))
	}
	grants := make([]GroupGrant, len(r.Groups))
	for i := range grants {
		n := list[4*i : 4*i+4]
		us := func(k int) time.Duration { return time.Duration(redisdb.Int(n[k])) * time.Microsecond }
		grants[i] = GroupGrant{int(redisdb.Int(n[0])), int(redisdb.Int(n[1])), us(2), us(3)}
		if g := grants[i]; g.Back < 0 || g.Back > r.Groups[i].Back || g.New < 0 || g.New > r.Groups[i].New {
			return nil, fmt.Errorf("groups of queue %q: the script answered %v to %+v", queue, n, r.Groups[i])
		}
	}
	return grants, nil
}

// Group is the state of a group of a queue.
type Group struct {
	Name    string
	Again   time.Time      // when the last id that was put off asks again; zero if none was
	Till    time.Time      // until when no id begins, because a handler answered so; zero if none did
	Holders map[string]int // ids in handler calls by instance, if the group has a limit of calls; dead instances may be included
}

// Group reads the state of a group.
func (c *Client) Group(ctx context.Context, queue, name string) (Group, error) {
	replies, err := c.DB().Pipeline(ctx, "read a group", redisdb.Cmd{"HGET", c.DB().Keys.Groups(queue), "g" + name})
	if err != nil {
		return Group{}, err
	}
	return parseGroup(name, redisdb.Text(replies[0])), nil
}

// maxInstances is more instances than a cluster has.
const maxInstances = 1000

// RecentGroups reads the groups of a queue that were asked for last, at most `most` of them, latest first. more
// reports whether there are others.
func (c *Client) RecentGroups(ctx context.Context, queue string, most int) (groups []Group, more bool, err error) {
	keys, failed := c.DB().Keys, "read the groups of queue "+strconv.Quote(queue)
	// The sorted set has members for groups and for instances.
	replies, err := c.DB().Pipeline(ctx, failed, redisdb.Cmd{"ZREVRANGE", keys.Groupsx(queue), 0, most + maxInstances})
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

// parseGroup reads the entry of a group, which lua/group.lua describes.
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
	for holder := range strings.Lines(holders) {
		held, instance, _ := strings.Cut(strings.TrimSuffix(holder, "\n"), " ")
		if n, err := strconv.Atoi(held); err == nil {
			g.Holders[strings.Clone(instance)] = n
		}
	}
	return g
}
