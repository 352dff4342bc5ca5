package tally

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Into returns what writes to Redis.
func Into[F any](db *redisdb.DB) func(context.Context, []Write[F]) []Answer {
	return func(ctx context.Context, writes []Write[F]) []Answer {
		calls, answers := make([]*redisdb.Call, len(writes)), make([]Answer, len(writes))
		for i, w := range writes {
			value, err := json.Marshal(w.Figures)
			if err != nil {
				answers[i].Err = fmt.Errorf("figures of queue %q: %w", w.Queue, err)
				return answers
			}
			calls[i] = &redisdb.Call{Script: db.Scripts.Tally, Keys: []string{db.Keys.Day(w.Queue, w.Period)},
				Args: []any{w.Part, w.Number, value, redisdb.PeriodKept(w.Period).Milliseconds(), w.Since.UnixMicro()}}
		}
		db.RunAll(ctx, calls)
		for i, call := range calls {
			answers[i] = answerOf(call)
		}
		return answers
	}
}

func answerOf(call *redisdb.Call) Answer {
	if call.Err != nil {
		return Answer{Err: call.Err}
	}
	if reply := redisdb.List(call.Reply); len(reply) == 2 {
		switch redisdb.Text(reply[0]) {
		case "written":
			return Answer{}
		case "joined":
			return Answer{Joined: true, Last: redisdb.Int(reply[1])}
		}
	}
	return Answer{Err: fmt.Errorf("%s answered %v, want written or joined, and a number", call.Script.Name, call.Reply)}
}

// Joined is the field of a day for parts that were joined.
const Joined = "joined"

// Field is one of a day in Redis.
type Field struct {
	Name    string
	Text    string
	Figures string    // in JSON; of a mark ""
	Written time.Time // of a part, or of a mark
}

// FieldsOf takes a day apart; of a field that cannot be read Figures says so by being no JSON.
func FieldsOf(day map[string]string) []Field {
	fields := make([]Field, 0, len(day))
	for name, text := range day {
		f := Field{Name: name, Text: text, Figures: text}
		if f.Name != Joined {
			number, rest, _ := strings.Cut(f.Text, " ")
			at, figures, part := strings.Cut(rest, " ")
			us, err := strconv.ParseInt(at, 10, 64)
			if _, bad := strconv.ParseInt(number, 10, 64); err == nil && bad == nil && part == (figures != "") {
				f.Figures, f.Written = figures, time.UnixMicro(us)
			}
		}
		fields = append(fields, f)
	}
	return fields
}

// Mark reports whether a field only says that a part was joined.
func (f Field) Mark() bool { return f.Figures == "" }

// Silence is after which time without a write a part is joined, and markKept for how long its mark is kept: longer than
// lua/tally.lua relies on it.
const (
	Silence  = 2 * time.Minute
	markKept = time.Hour
)

// Joining is what is to be done about a day: some parts become one, some marks are dropped.
type Joining[F any] struct {
	Old   string // field joined; "" if there is none
	Sum   F
	Parts []Field
	Marks []string
}

// join bounds.
const (
	joinParts = 50
	joinBytes = 128 << 10
)

// Plan says what to do next about a day, and whether there is more to do after it. Parts that cannot be read are left alone,
// and all are if what was joined cannot be read.
func Plan[F any](fields []Field, now time.Time, parse func(string) (F, bool), add func(x, y F) F) (j Joining[F], more bool) {
	slices.SortFunc(fields, func(x, y Field) int {
		return cmp.Or(x.Written.Compare(y.Written), strings.Compare(x.Name, y.Name))
	})
	size, sums, broken := 0, 0, false
	for _, f := range fields {
		figures, readable := parse(f.Figures)
		switch {
		case f.Name == Joined && !readable:
			broken = true
		case f.Name == Joined:
			j.Old, j.Sum, sums = f.Text, add(j.Sum, figures), sums+1
		case f.Mark():
			if now.Sub(f.Written) > markKept && len(j.Marks) < 10*joinParts {
				j.Marks = append(j.Marks, f.Name)
			}
		case readable && now.Sub(f.Written) > Silence:
			if len(j.Parts) == joinParts || len(j.Parts) > 0 && size+len(f.Text) > joinBytes {
				more = true
				continue
			}
			size += len(f.Text)
			j.Parts, j.Sum, sums = append(j.Parts, f), add(j.Sum, figures), sums+1
		}
	}
	if broken || sums < 2 {
		j.Parts, more = nil, false
	}
	return j, more && !broken
}

// Do does it, and takes what was joined or dropped out of fields, by name, of which the sum becomes one. It reports whether
// parts were joined: not if somebody else was faster, or one of them was written meanwhile. After an error it may have been
// done; to do it again does nothing.
func (j Joining[F]) Do(ctx context.Context, db *redisdb.DB, key string, fields map[string]string) (done bool, err error) {
	if len(j.Marks) > 0 {
		forget := []any{"HDEL", key}
		for _, name := range j.Marks {
			forget = append(forget, name)
		}
		if _, err := db.Do(ctx, "forget which parts of a day were joined", forget...); err != nil {
			return false, err
		}
		for _, name := range j.Marks {
			delete(fields, name)
		}
	}
	if len(j.Parts) == 0 {
		return false, nil
	}
	sum, err := json.Marshal(j.Sum)
	if err != nil {
		return false, fmt.Errorf("figures of key %s: %w", key, err)
	}
	args := []any{j.Old, sum}
	for _, f := range j.Parts {
		args = append(args, f.Name, f.Text)
	}
	reply, err := db.Run(ctx, db.Scripts.Join, []string{key}, args...)
	if err != nil || reply != int64(1) {
		return false, err
	}
	for _, f := range j.Parts {
		delete(fields, f.Name)
	}
	if fields != nil {
		fields[Joined] = string(sum)
	}
	return true, nil
}
