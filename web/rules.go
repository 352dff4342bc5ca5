package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Rules are the rules of a queue.
type Rules struct {
	Queue    string `json:"queue"`
	Revision int64  `json:"revision"` // for If-Match; also the ETag
	Handled  bool   `json:"handled"`  // the node that answers handles the queue, and knows its configuration
	Rules    []Rule `json:"rules"`
}

// Rule is a key of a queue with the value in force and its source. Times are unix seconds, by Redis's clock.
type Rule struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"` // null if it is not set, or not known here
	From  string          `json:"from"`  // run time, default, program, registry, a place in the configuration, or "" if the source is not known here
	// Parts of the value that nobody gave. They follow from other parts, as burst follows from rate.
	Assumed   []string        `json:"assumed,omitempty"`
	By        *By             `json:"by,omitempty"`    // who has set it at run time
	At        float64         `json:"at,omitempty"`    // when it was set
	Until     float64         `json:"until,omitempty"` // absent if it holds until it is unset
	Why       string          `json:"why,omitempty"`
	Otherwise json.RawMessage `json:"otherwise,omitempty"` // the value without the setting at run time, if it is known here
	Fixed     string          `json:"fixed,omitempty"`     // why it cannot be changed at run time
}

// By names the sender of a change.
type By struct {
	Role    string `json:"role,omitempty"`    // of the token, or anyone if no token is needed
	Name    string `json:"name,omitempty"`    // of the certificate, or, if claimed, the name that the client gives
	Claimed bool   `json:"claimed,omitempty"` // nobody has checked the name
	Address string `json:"address,omitempty"` // host:port
	Node    string `json:"node,omitempty"`    // that got the request
}

// ruleOf returns a rule in the form of the API.
func ruleOf(s *rules.Shown) (Rule, error) {
	r := Rule{Key: s.Key, From: s.From, Assumed: s.Assumed, Why: s.Why, Fixed: s.Fixed, By: (*By)(s.By)}
	if s.At != nil {
		r.At = unixSeconds(*s.At)
	}
	if s.Until != nil {
		r.Until = unixSeconds(*s.Until)
	}
	var err error
	if r.Value, err = json.Marshal(s.Value); err == nil && s.Otherwise != nil {
		r.Otherwise, err = json.Marshal(s.Otherwise.Value)
	}
	return r, err
}

// RulesOf returns the rules of a queue as they are now.
func RulesOf(ctx context.Context, n Node, name string) (Rules, error) {
	set, now, err := rules.In(n.Client().Protocol().DB()).Queue(ctx, name)
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

const bodyRules = `like {"set":{"batch_size":10},"unset":["prefetch"],"for":"2h","why":"a backlog"}`

// listRules answers with the rules of a queue.
func (a *api) listRules(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	now, err := RulesOf(r.Context(), a.node, q.Name)
	if err != nil {
		return nil, err
	}
	w.Header().Set("ETag", formatETag(now.Revision))
	return now, nil
}

func formatETag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }

// changeRules changes rules of a queue, and answers with all of them. The revision of If-Match is the revision
// that the sender has read. If somebody else has changed the rules since, Redis refuses the change, so nobody
// undoes a change unseen.
func (a *api) changeRules(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	revision, err := revisionOf(r.Header.Get("If-Match"))
	if err != nil {
		return nil, err
	}
	body, err := a.readBody(w, r)
	if err != nil {
		return nil, err
	}
	var want actions.RulesChange
	if err := decodeBody(body, &want, bodyRules); err != nil {
		return nil, err
	}
	set, err := a.operator.ChangeRules(r.Context(), auth.Who(r), q.Name, revision, want)
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
	w.Header().Set("ETag", formatETag(answer.Revision))
	return answer, nil
}

// revisionOf reads If-Match. It returns -1 for any revision. A missing header is refused, so that clients which
// do not care must say so.
func revisionOf(header string) (int64, error) {
	switch header {
	case "":
		return 0, NewProblem(http.StatusPreconditionRequired, `the header If-Match must be the revision that was read, as in "7", so that no other change is undone unseen; * stands for any revision`)
	case "*":
		return -1, nil
	}
	revision, err := strconv.ParseInt(strings.Trim(header, `"`), 10, 64)
	if err != nil || revision < 0 || formatETag(revision) != header {
		return 0, NewProblem(http.StatusBadRequest, `If-Match: got %.40q, must be a revision in quotes, as in "7", or *`, header)
	}
	return revision, nil
}
