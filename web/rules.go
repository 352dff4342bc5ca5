package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Rules are those of a queue.
type Rules struct {
	Queue    string `json:"queue"`
	Revision int64  `json:"revision"` // for If-Match; also the ETag
	Handled  bool   `json:"handled"`  // the node that answers handles the queue, and knows what its configuration says
	Rules    []Rule `json:"rules"`
}

// Rule is a key of a queue: which value is in force, and why. Times are unix seconds, by Redis's clock.
type Rule struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"` // null: not set, or not known here
	From  string          `json:"from"`  // run time, default, program, registry, a place in the configuration, or "" if that is not known here
	// Parts of the value that nobody gave: they follow from the others.
	Assumed []string `json:"assumed,omitempty"`
	// Of what was set at run time:
	By        *By             `json:"by,omitempty"`
	At        float64         `json:"at,omitempty"`
	Until     float64         `json:"until,omitempty"` // 0: until it is unset
	Why       string          `json:"why,omitempty"`
	Otherwise json.RawMessage `json:"otherwise,omitempty"` // what holds without it, if that is known here
	Fixed     string          `json:"fixed,omitempty"`     // why it does not change at run time
}

// By is who has changed something.
type By struct {
	Role    string `json:"role,omitempty"`    // of the token; anyone, where none is asked for
	Name    string `json:"name,omitempty"`    // of the certificate, or, if claimed, what the client says of itself
	Claimed bool   `json:"claimed,omitempty"` // nobody has checked the name
	Address string `json:"address,omitempty"` // host:port
	Node    string `json:"node,omitempty"`    // that was asked
}

// ruleOf is a rule as the API shows it.
func ruleOf(s *rules.Shown) (Rule, error) {
	r := Rule{Key: s.Key, From: s.From, Assumed: s.Assumed, Why: s.Why, Fixed: s.Fixed, By: (*By)(s.By)}
	if s.At != nil {
		r.At = unix(*s.At)
	}
	if s.Until != nil {
		r.Until = unix(*s.Until)
	}
	var err error
	if r.Value, err = json.Marshal(s.Value); err == nil && s.Otherwise != nil {
		r.Otherwise, err = json.Marshal(s.Otherwise.Value)
	}
	return r, err
}

// RulesOf are the rules of a queue as they are now.
func RulesOf(ctx context.Context, n Node, name string) (Rules, error) {
	set, now, err := rules.In(n.Client().DB()).Queue(ctx, name)
	if err != nil {
		return Rules{}, err
	}
	return rulesShown(n, name, set, now)
}

func rulesShown(n Node, name string, set rules.Set, now time.Time) (Rules, error) {
	base := n.Rules(name)
	all := Rules{Queue: name, Revision: set.Rev, Handled: base != nil}
	for _, shown := range rules.Show(base, set, now) {
		one, err := ruleOf(&shown)
		if err != nil {
			return Rules{}, fmt.Errorf("rule %s of queue %q: %w", shown.Key, name, err)
		}
		all.Rules = append(all.Rules, one)
	}
	return all, nil
}

// RulesChange is what is to become of a queue's rules.
type RulesChange struct {
	Set   map[string]json.RawMessage `json:"set,omitempty"`
	Unset []string                   `json:"unset,omitempty"`
	For   string                     `json:"for,omitempty"` // a duration; default: until they are unset
	Why   string                     `json:"why,omitempty"`
}

const wantRules = `{"set":{"batch_size":10},"unset":["prefetch"],"for":"2h","why":"a backlog"}`

// rules answers those of a queue.
func (a *api) rules(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	now, err := RulesOf(r.Context(), a.node, q.Name)
	if err != nil {
		return nil, err
	}
	w.Header().Set("ETag", etag(now.Revision))
	return now, nil
}

func etag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }

// changeRules changes those of a queue.
func (a *api) changeRules(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	revision, err := revisionOf(r.Header.Get("If-Match"))
	if err != nil {
		return nil, err
	}
	body, err := a.body(w, r)
	if err != nil {
		return nil, err
	}
	var want RulesChange
	if err := decodeBody(body, &want, wantRules); err != nil {
		return nil, err
	}
	set, err := ChangeRules(a.node, a.cfg.Log, r, q.Name, revision, want)
	if err != nil {
		return nil, err
	}
	now, err := a.client.Time(r.Context())
	if err != nil {
		return nil, err
	}
	answer, err := rulesShown(a.node, q.Name, set, now)
	if err != nil {
		return nil, err
	}
	w.Header().Set("ETag", etag(answer.Revision))
	return answer, nil
}

// ChangeRules does what the sender of a request wants of a queue's rules, if they are at this revision; -1: at any.
func ChangeRules(n Node, log *slog.Logger, r *http.Request, queue string, revision int64, want RulesChange) (rules.Set, error) {
	change := rules.Change{Set: want.Set, Unset: want.Unset, Why: want.Why, By: who(n, r), If: revision, Base: n.Rules(queue)}
	if want.For != "" {
		var err error
		if change.For, err = time.ParseDuration(want.For); err != nil || change.For <= 0 {
			return rules.Set{}, badField("for", "got %.40q, want a duration more than 0, as in 2h", want.For)
		}
		if len(want.Set) == 0 && len(want.Unset) > 0 {
			return rules.Set{}, badField("for", "it is about what is set, and nothing is: what is unset stays so until it is set again")
		}
	}
	set, err := rules.In(n.Client().DB()).Change(r.Context(), queue, change)
	if err == nil {
		log.Info("rules changed by hand", "queue", queue, "revision", set.Rev, "set", slices.Sorted(maps.Keys(want.Set)), "unset", want.Unset, auth.Sender(r))
	}
	return set, err
}

// revisionOf reads If-Match.
func revisionOf(header string) (int64, error) {
	switch header {
	case "":
		return 0, NewProblem(http.StatusPreconditionRequired, `want the header If-Match with the revision that was read, as in "7", so that no other change is undone unseen; * for whatever it is`)
	case "*":
		return -1, nil
	}
	revision, err := strconv.ParseInt(strings.Trim(header, `"`), 10, 64)
	if err != nil || revision < 0 || etag(revision) != header {
		return 0, NewProblem(http.StatusBadRequest, `If-Match: got %.40q, want a revision in quotes, as in "7", or *`, header)
	}
	return revision, nil
}

// who is the sender of a request, as what he changes is written down.
func who(n Node, r *http.Request) changes.Who {
	who := auth.Who(r)
	who.Node = n.Name()
	return who
}

// patience of a line that is written after its change.
const writeDownTimeout = 5 * time.Second

// WriteDown has the cluster's log say that the sender of a request has changed something. The change is made: that
// the line is not written is only logged.
func WriteDown(n Node, log *slog.Logger, r *http.Request, line changes.Line) {
	line.Who = who(n, r)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), writeDownTimeout)
	defer cancel()
	if err := changes.In(n.Client().DB()).Add(ctx, line); err != nil {
		log.Warn("a change is not written down", "action", line.Action, "queue", line.Queue, "err", err)
	}
}

// Track asks to keep every run of a job.
type Track struct {
	Undo bool   `json:"undo,omitempty"`
	Why  string `json:"why,omitempty"`
}

// Tracked answers it.
type Tracked struct {
	JobID
	Queue   string `json:"queue"`
	Tracked bool   `json:"tracked"`
	Count   int    `json:"count"` // tracked ids of the queue
}

// track has the journal keep every run of an id, or no longer.
func (a *api) track(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	var want Track
	if err := a.optional(w, r, &want, `no body, or {"undo":true,"why":"…"}`); err != nil {
		return nil, err
	}
	id := r.PathValue("id")
	count, err := TrackID(a.node, a.cfg.Log, r, q.Name, id, want)
	if err != nil {
		return nil, err
	}
	return Tracked{JobIDOf(id), q.Name, !want.Undo, count}, nil
}

// TrackID has the journal of a queue keep every run of an id, or no longer, as the sender of a request wants it. It returns how many
// ids of the queue are tracked then.
func TrackID(n Node, log *slog.Logger, r *http.Request, queue, id string, want Track) (int, error) {
	if !utf8.ValidString(id) {
		return 0, badField("id", "%.60q is not UTF-8: such an id cannot be tracked", id)
	}
	var ids []string
	action := "track"
	if want.Undo {
		action = "untrack"
	}
	_, err := rules.In(n.Client().DB()).Change(r.Context(), queue, rules.Change{Action: action, IDs: []string{id}, Why: want.Why, By: who(n, r), If: -1, Base: n.Rules(queue),
		Edit: func(now map[string]rules.Setting, _ time.Time) (map[string]json.RawMessage, []string, error) {
			var err error
			if ids, err = rules.Track(now, id, !want.Undo); err != nil {
				return nil, nil, err
			}
			if ids == nil {
				return nil, []string{"tracked"}, nil
			}
			value, err := json.Marshal(ids)
			return map[string]json.RawMessage{"tracked": value}, nil, err
		}})
	switch {
	case errors.Is(err, rules.ErrSame):
		return len(ids), nil
	case err == nil:
		log.Info("job tracked by hand", "queue", queue, "id", id, "undo", want.Undo, auth.Sender(r))
	}
	return len(ids), err
}

// Changes are lines of the cluster's log.
type Changes struct {
	Changes []Change `json:"changes"`
	Cursor  string   `json:"cursor"` // for the parameter after: what comes later is behind it
}

// Change is what somebody has changed.
type Change struct {
	Cursor string          `json:"cursor"` // its place among all changes
	At     float64         `json:"at"`     // unix seconds, by Redis's clock
	By     By              `json:"by"`
	Action string          `json:"action"` // as in pause, rules, requeue
	Queue  string          `json:"queue,omitempty"`
	Target string          `json:"target,omitempty"` // the node, or the name of what recurs
	IDs    []string        `json:"ids,omitempty"`    // of jobs: the first hundred of those that were named
	Count  int             `json:"count,omitempty"`  // jobs that were changed
	Old    json.RawMessage `json:"old,omitempty"`    // what it was, if that is a value
	New    json.RawMessage `json:"new,omitempty"`    // what it became; of an action on all jobs, what described them
	Why    string          `json:"why,omitempty"`
}

// ChangesOf are lines as the API shows them.
func ChangesOf(lines []changes.Line) []Change {
	all := make([]Change, len(lines))
	for i, l := range lines {
		all[i] = Change{Cursor: l.Cursor, At: unix(l.At), By: By(l.Who), Action: l.Action, Queue: l.Queue, Target: l.Target, IDs: l.IDs, Count: l.Count, Old: l.Old, New: l.New, Why: l.Why}
	}
	return all
}

var changesQuery = []string{"queue", "action", "user", "id", "since", "after", "limit"}

// changes answers who has changed what.
func (a *api) changes(_ http.ResponseWriter, r *http.Request) (any, error) {
	values := r.URL.Query()
	query := changes.Query{Queue: values.Get("queue"), Action: values.Get("action"), Name: values.Get("user"), ID: values.Get("id"), After: values.Get("after")}
	if values.Has("after") {
		if err := changes.CheckCursor(query.After); err != nil {
			return nil, badField("after", "%v", err)
		}
	}
	var err error
	if query.Since, err = a.since(r.Context(), values.Get("since")); err != nil {
		return nil, err
	}
	if err := readLimit(values, maxLimit, &query.Limit); err != nil {
		return nil, err
	}
	if err := accountOf(r).take(changesMemory); err != nil {
		return nil, err
	}
	found, cursor, err := changes.In(a.client.DB()).Read(r.Context(), query)
	if err != nil {
		return nil, fmt.Errorf("changes: %w", err)
	}
	return Changes{ChangesOf(found), cursor}, nil
}

// changesMemory is what the lines of one answer take at most, with what is made of them.
const changesMemory = 8 << 20
