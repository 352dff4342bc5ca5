package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/valuetext"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// rulesBody is the page of a queue's rules.
type rulesBody struct {
	Queue     string
	Tabs      tabs
	Revision  int64
	Handled   bool
	Rules     []ruleLine
	Permits   []permitLine
	Allowed   int // permits that there may be; 0: the queue has no limit of them
	Groups    []groupLine
	Holds     []rules.Hold
	Keys      []string // that may be changed
	Asked     ruleForm // what the form said that was refused
	Trouble   string   // why it was
	MayChange bool
	Now       time.Time
	// MoreGroups: not all of them are shown.
	MoreGroups bool
}

// permitsOf are the permits that a limit allows; 0: it bounds no calls.
func permitsOf(limit json.RawMessage) int {
	var l struct{ Concurrency int }
	_ = json.Unmarshal(limit, &l) // "none" is no object, and allows none
	return l.Concurrency
}

// Taken are the permits that instances have.
func (b *rulesBody) Taken() (n int) {
	for _, p := range b.Permits {
		n += p.Permits
	}
	return n
}

// permitLine is an instance that has permits for calls of a queue with a limit.
type permitLine struct {
	Instance string
	Permits  int
}

// groupLine is a group of ids of a queue with a limit for each.
type groupLine struct {
	Name    string
	Holders []permitLine
	Again   time.Time // when the last id that waits is to ask again; zero: none waits
	Till    time.Time // so long a handler holds the group back; zero: none does
}

// groupsShown bounds the groups of a page.
const groupsShown = 50

// groups are those of a queue of which an id runs, waits, or is held back.
func (d *Dashboard) groups(ctx context.Context, queueName string, now time.Time) (lines []groupLine, more bool, err error) {
	groups, more, err := d.client.RecentGroups(ctx, queueName, groupsShown)
	for i := range groups {
		g := &groups[i]
		line := groupLine{Name: g.Name, Holders: permitLines(g.Holders)}
		if g.Again.After(now) {
			line.Again = g.Again
		}
		if g.Till.After(now) {
			line.Till = g.Till
		}
		if len(line.Holders) > 0 || !line.Again.IsZero() || !line.Till.IsZero() {
			lines = append(lines, line)
		}
	}
	return lines, more, err
}

// permitLines are who has permits, by instance.
func permitLines(holders map[string]int) (lines []permitLine) {
	for _, instance := range sortedKeys(holders) {
		lines = append(lines, permitLine{instance, holders[instance]})
	}
	return lines
}

// Node is the instance's.
func (p permitLine) Node() string { return nodeOf(p.Instance) }

// ruleForm is what a person fills in.
type ruleForm struct{ Key, Value, For, Why string }

// ruleLine is a rule as the page shows it.
type ruleLine struct {
	Key, Value, From, Otherwise, Why, Fixed string
	By                                      string
	At, Until                               time.Time
	Live                                    bool
}

func ruleLineOf(r *web.Rule) ruleLine {
	line := ruleLine{Key: r.Key, Value: valuetext.Written(r.Value), From: r.From, Why: r.Why, Fixed: r.Fixed, Otherwise: valuetext.Written(r.Otherwise), Live: r.From == rules.AtRunTime}
	if r.By != nil {
		line.By = changes.Who(*r.By).String()
	}
	if r.At != 0 {
		line.At = fromUnix(r.At)
	}
	if r.Until != 0 {
		line.Until = fromUnix(r.Until)
	}
	return line
}

func fromUnix(s float64) time.Time { return time.UnixMicro(int64(s * 1e6)).UTC() }

func (d *Dashboard) rulesPage(r *http.Request) (view, error) {
	q, err := d.queue(r)
	if err != nil {
		return view{}, err
	}
	return d.rulesView(r, q, ruleForm{Key: r.URL.Query().Get("key")}, "")
}

func (d *Dashboard) rulesView(r *http.Request, q *queue.Queue, asked ruleForm, trouble string) (view, error) {
	now, err := web.RulesOf(r.Context(), d.node, q.Name)
	if err != nil {
		return view{}, err
	}
	b := rulesBody{Queue: q.Name, Tabs: tabs{Queue: q.Name, On: "rules"}, Revision: now.Revision, Handled: now.Handled, Keys: rules.Keys(), Asked: asked, Trouble: trouble, MayChange: auth.MayChange(r)}
	for i := range now.Rules {
		rule := &now.Rules[i]
		b.Rules = append(b.Rules, ruleLineOf(rule))
		if rule.Key == b.Asked.Key && trouble == "" {
			b.Asked.Value = valuetext.Written(rule.Value) // to be changed, rather than written anew
		}
		if rule.Key == "limit" {
			b.Allowed = permitsOf(rule.Value)
		}
	}
	if b.Holds, err = web.HoldsOf(r.Context(), d.client, q.Name); err != nil {
		return view{}, err
	}
	holders, err := d.client.Permits(q.Name).Holders(r.Context())
	if err != nil {
		return view{}, err
	}
	b.Permits = permitLines(holders)
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	if b.Groups, b.MoreGroups, err = d.groups(r.Context(), q.Name, b.Now); err != nil {
		return view{}, err
	}
	return view{Page: "rules", Title: "Rules of " + q.Name, Nav: "/", Queue: q.Name, Body: &b}, nil
}

// changeRules does what the form of that page says: set one value, or unset one.
func (d *Dashboard) changeRules(w http.ResponseWriter, r *http.Request) {
	d.page(func(r *http.Request) (view, error) {
		q, form, err := d.formOf(w, r)
		if err != nil {
			return view{}, err
		}
		revision, err := strconv.ParseInt(form.Get("revision"), 10, 64)
		if err != nil || revision < 0 {
			return view{}, web.NewProblem(http.StatusBadRequest, "revision: %.40q is none.", form.Get("revision"))
		}
		asked := ruleForm{form.Get("rule"), strings.TrimSpace(form.Get("value")), strings.TrimSpace(form.Get("for")), form.Get("why")}
		want := web.RulesChange{For: asked.For, Why: asked.Why}
		if unset := form.Get("unset"); unset != "" {
			want = web.RulesChange{Unset: []string{unset}}
		} else {
			value, err := valuetext.Parse(asked.Value)
			if err != nil {
				return d.refusedRules(r, q, asked, web.NewProblem(http.StatusBadRequest, "%v", err))
			}
			want.Set = map[string]json.RawMessage{asked.Key: value}
		}
		if _, err := web.ChangeRules(d.node, d.cfg.Log, r, q.Name, revision, want); err != nil {
			if code := web.ProblemOf(err).Status; code == http.StatusBadRequest || code == http.StatusPreconditionFailed {
				return d.refusedRules(r, q, asked, err)
			}
			return view{}, err
		}
		return view{Redirect: "/queues/" + url.PathEscape(q.Name) + "/rules"}, nil
	})(w, r)
}

// refusedRules is the page again, with what was asked for and why it was not done.
func (d *Dashboard) refusedRules(r *http.Request, q *queue.Queue, asked ruleForm, why error) (view, error) {
	v, err := d.rulesView(r, q, asked, web.ProblemOf(why).Detail)
	v.Status = web.ProblemOf(why).Status
	return v, err
}

// formOf reads a form that is about the queue of the path.
func (d *Dashboard) formOf(w http.ResponseWriter, r *http.Request) (*queue.Queue, url.Values, error) {
	q, err := d.queue(r)
	if err != nil {
		return nil, nil, err
	}
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	if err := r.ParseForm(); web.Busy(err) {
		return nil, nil, web.NewProblem(http.StatusServiceUnavailable, "Nothing was changed: %v.", err)
	} else if err != nil {
		return nil, nil, web.NewProblem(http.StatusBadRequest, "The form cannot be read: %v.", err)
	}
	return q, r.PostForm, nil
}

// hold keeps an id, or ids with a prefix, from handlers, or lets them go on.
func (d *Dashboard) hold(w http.ResponseWriter, r *http.Request) {
	d.page(func(r *http.Request) (view, error) {
		q, form, err := d.formOf(w, r)
		if err != nil {
			return view{}, err
		}
		want := web.HoldChange{Prefix: form.Get("prefix"), For: strings.TrimSpace(form.Get("for")), Undo: form.Get("undo") != "", Why: form.Get("why")}
		if want.Prefix == "" || form.Get("key") != "" || form.Get("id") != "" { // both are refused as the API refuses them
			if want.ID, err = askedID(form); err != nil {
				return view{}, err
			}
		}
		if _, err := web.ChangeHold(d.node, d.cfg.Log, r, q, want); err != nil {
			return view{}, err
		}
		back := jobLink(q.Name, want.ID)
		if form.Get("back") == "rules" || want.ID == "" {
			back = "/queues/" + url.PathEscape(q.Name) + "/rules#holds"
		}
		return view{Redirect: back}, nil
	})(w, r)
}

// cancel ends the run of an id.
func (d *Dashboard) cancel(w http.ResponseWriter, r *http.Request) {
	d.page(func(r *http.Request) (view, error) {
		q, form, err := d.formOf(w, r)
		if err != nil {
			return view{}, err
		}
		id, err := askedID(form)
		if err != nil {
			return view{}, err
		}
		if _, err := web.CancelRun(d.node, d.cfg.Log, r, q, id, web.Cancel{Then: queue.Then(form.Get("then")), Why: form.Get("why")}); err != nil {
			return view{}, err
		}
		return view{Redirect: jobLink(q.Name, id)}, nil
	})(w, r)
}

// track has the journal keep every run of an id, or no longer.
func (d *Dashboard) track(w http.ResponseWriter, r *http.Request) {
	d.page(func(r *http.Request) (view, error) {
		q, form, err := d.formOf(w, r)
		if err != nil {
			return view{}, err
		}
		id, err := askedID(form)
		if err != nil {
			return view{}, err
		}
		if _, err := web.TrackID(d.node, d.cfg.Log, r, q.Name, id, web.Track{Undo: form.Get("undo") != ""}); err != nil {
			return view{}, err
		}
		return view{Redirect: jobLink(q.Name, id)}, nil
	})(w, r)
}

// runsBody is the page of a queue's latest runs.
type runsBody struct {
	Queue    string
	Tabs     tabs
	Verdict  browse.Verdict // that is asked for; "": all
	Contains string
	Verdicts []browse.Verdict
	Runs     []runLine
	Older    bool
	Now      time.Time
}

func (d *Dashboard) runsPage(r *http.Request) (view, error) {
	q, err := d.queue(r)
	if err != nil {
		return view{}, err
	}
	b := runsBody{Queue: q.Name, Tabs: tabs{Queue: q.Name, On: "runs"}, Verdict: browse.Verdict(r.URL.Query().Get("verdict")), Contains: r.URL.Query().Get("contains"), Verdicts: browse.Verdicts()}
	query := browse.RunQuery{Contains: b.Contains}
	if b.Verdict != "" {
		if !slices.Contains(b.Verdicts, b.Verdict) {
			return view{}, web.NewProblem(http.StatusBadRequest, "verdict: %.40q is none.", b.Verdict)
		}
		query.Verdicts = []browse.Verdict{b.Verdict}
	}
	found, err := browse.Of(q).Runs(r.Context(), query)
	if err != nil {
		return view{}, err
	}
	b.Runs, b.Older = runLines(found.List), !found.Oldest.IsZero()
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	return view{Page: "runs", Title: "Runs of " + q.Name, Nav: "/", Queue: q.Name, Body: b}, nil
}

// changesBody is the page of what people have changed.
type changesBody struct {
	Queue, User string // that are asked for
	Changes     []changeLine
	More        bool
	Now         time.Time
}

// changeLine is a change as pages show it.
type changeLine struct {
	changes.Line
	By       string
	Old, New string
}

func changeLines(lines []changes.Line) []changeLine {
	all := make([]changeLine, len(lines))
	for i, l := range lines {
		all[i] = changeLine{l, l.Who.String(), valuetext.Written(l.Old), valuetext.Written(l.New)}
	}
	return all
}

// shownChanges is how many a page has.
const shownChanges = 100

func (d *Dashboard) changesPage(r *http.Request) (view, error) {
	b := changesBody{Queue: r.URL.Query().Get("queue"), User: r.URL.Query().Get("user")}
	lines, _, err := changes.In(d.client.DB()).Read(r.Context(), changes.Query{Queue: b.Queue, Name: b.User, Limit: shownChanges})
	if err != nil {
		return view{}, err
	}
	b.Changes, b.More = changeLines(lines), len(lines) == shownChanges
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	return view{Page: "changes", Title: "Changes", Nav: "/changes", Queue: b.Queue, Body: b}, nil
}
