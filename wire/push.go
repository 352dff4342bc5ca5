package wire

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
)

// ParseJob parses a job: an object of the package's first form, with white space around it. The job
// keeps no reference to text.
func ParseJob(text []byte) (lowkiq.Push, error) {
	d := decoder{lexer: lexer{src: text}}
	d.skipSpace()
	p, err := d.decodePush()
	if err != nil {
		return lowkiq.Push{}, d.locateFault(err)
	}
	if d.skipSpace(); d.pos < len(text) {
		return lowkiq.Push{}, d.locateFault(d.unexpected("the end after one job"))
	}
	return p, nil
}

// MaxJobs is the maximum number of jobs in a body. Small jobs take thirty times their bytes in
// memory.
const MaxJobs = 100_000

// ParseJobs parses the body of a bulk push: an object, an array of objects, or NDJSON (objects that
// each end with a newline), of at most MaxJobs jobs. It returns all jobs, or the first error with
// its line and column in body. The jobs keep no reference to body. Their payloads share one
// allocation.
func ParseJobs(body []byte) ([]lowkiq.Push, error) {
	d := decoder{lexer: lexer{src: body}, arena: make([]byte, 0, len(body))}
	var err *fault
	if d.skipSpace(); d.peek() == '[' {
		err = d.decodeArray()
	} else {
		err = d.decodeLines()
	}
	if err != nil {
		return nil, d.locateFault(err)
	}
	return d.jobs, nil
}

// decoder decodes jobs.
type decoder struct {
	lexer
	jobs  []lowkiq.Push
	arena []byte // memory for the payloads of a bulk push; nil for a single job
	path  string // "[2]" within an array
	field string // field of the last fault
	raw   bool   // the last payload was in base64
}

func (d *decoder) locateFault(f *fault) error {
	field := d.field
	if d.path != "" && field != "" {
		field = d.path + "." + field
	} else if d.path != "" {
		field = d.path
	}
	return errorAt(d.src, f.pos, field, f.reason)
}

// decodeArray decodes an array of jobs.
func (d *decoder) decodeArray() *fault {
	err := d.walkArray(0, func(i int) *fault {
		p, err := d.decodePush()
		if err != nil {
			d.path = fmt.Sprintf("[%d]", i)
			return err
		}
		d.jobs = append(d.jobs, p)
		return nil
	})
	if err != nil {
		return err
	}
	if d.skipSpace(); d.pos < len(d.src) {
		return d.unexpected("the end after the array")
	}
	return nil
}

// decodeLines decodes an object, or several objects on separate lines.
func (d *decoder) decodeLines() *fault {
	for {
		p, err := d.decodePush()
		if err != nil {
			return err
		}
		d.jobs = append(d.jobs, p)
		end := d.pos
		if d.skipSpace(); d.pos == len(d.src) {
			return nil
		}
		if bytes.IndexByte(d.src[end:d.pos], '\n') < 0 {
			return d.unexpected("a newline between two jobs")
		}
	}
}

// decodePush decodes a job.
func (d *decoder) decodePush() (lowkiq.Push, *fault) { return d.decodePushTo(nil) }

// decodePushTo decodes a job that also names its queue, unless queue is nil.
func (d *decoder) decodePushTo(queue *string) (lowkiq.Push, *fault) {
	return d.decodePushWith(queue, nil)
}

// decodePushWith is decodePushTo for jobs with more fields. more decodes such a field, and reports whether it is one.
func (d *decoder) decodePushWith(queue *string, more func(key string) (bool, *fault)) (lowkiq.Push, *fault) {
	var p lowkiq.Push
	var seen uint8
	raw := false
	start := d.pos
	d.field = ""
	if len(d.jobs) == MaxJobs {
		return p, &fault{start, fmt.Sprintf("a body holds at most %d jobs; send it in parts", MaxJobs)}
	}
	if d.peek() != '{' {
		return p, d.unexpected(`a job such as {"id":"a","payload":1}`)
	}
	err := d.walkObject(0, func(key []byte) *fault {
		if queue != nil && string(key) == `"queue"` {
			if *queue != "" {
				return &fault{d.keyPos, `field "queue" given twice`}
			}
			d.field = "queue"
			at := d.pos
			name, err := d.decodeText()
			if err == nil && name == "" {
				err = &fault{reason: "is empty"}
			}
			if err != nil {
				return &fault{max(at, err.pos), err.reason}
			}
			*queue, d.field = name, ""
			return nil
		}
		if more != nil {
			name, at := string(key[1:len(key)-1]), d.pos
			d.field = name
			if taken, err := more(name); err != nil {
				return &fault{max(at, err.pos), err.reason}
			} else if d.field = ""; taken {
				return nil
			}
		}
		bit, err := d.fieldBit(key, seen)
		if err != nil {
			if more != nil {
				err.reason = strings.Replace(strings.Replace(err.reason, "(known: id,", "(known: queue, id,", 1), "urgent, header)", "urgent, header, name, after)", 1)
			}
			return err
		}
		seen |= bit
		d.field = string(key[1 : len(key)-1])
		at := d.pos
		if err := d.decodeField(bit, &p); err != nil {
			// A fault of the grammar has a place inside the value; any other fault is at the value.
			if err.pos < at {
				err.pos = at
			}
			return err
		}
		d.field = ""
		raw = raw || bit == bitPayload && d.raw
		return nil
	})
	if raw {
		p.Header = BytesHeader(p.Header, p.Payload)
	}
	if err == nil && seen&(bitID|bitID64) == 0 {
		d.field = "id"
		err = &fault{start, "missing"}
	}
	if err == nil && queue != nil && *queue == "" {
		d.field = "queue"
		err = &fault{start, "missing"}
	}
	return p, err
}

// Fields of a job, as bits of a set.
const (
	bitID = 1 << iota
	bitID64
	bitPayload
	bitScore
	bitPerformIn
	bitHeader
	bitUrgent
)

// fieldBit returns the bit of a field that is allowed now.
func (d *decoder) fieldBit(key []byte, seen uint8) (uint8, *fault) {
	var bit, conflict uint8
	switch string(key) {
	case `"id"`:
		bit, conflict = bitID, bitID|bitID64
	case `"id_base64"`:
		bit, conflict = bitID64, bitID|bitID64
	case `"payload"`:
		bit, conflict = bitPayload, bitPayload
	case `"score"`:
		bit, conflict = bitScore, bitScore
	case `"perform_in"`:
		bit, conflict = bitPerformIn, bitPerformIn
	case `"header"`:
		bit, conflict = bitHeader, bitHeader
	case `"urgent"`:
		bit, conflict = bitUrgent, bitUrgent
	default:
		return 0, &fault{d.keyPos, fmt.Sprintf("unknown field %s (known: id, id_base64, payload, score, perform_in, urgent, header)", key)}
	}
	if seen&conflict != 0 {
		return 0, &fault{d.keyPos, fmt.Sprintf("field %s given twice", key)}
	}
	return bit, nil
}

// decodeField decodes the value of a field into p.
func (d *decoder) decodeField(bit uint8, p *lowkiq.Push) (err *fault) {
	switch bit {
	case bitID:
		p.ID, err = d.decodeText()
	case bitID64:
		p.ID, err = d.decodeBase64()
	case bitPayload:
		p.Payload, err = d.decodePayload()
		return err
	case bitScore:
		var score float64
		if score, err = d.decodeScore(); err == nil {
			p.Score = &score
		}
		return err
	case bitPerformIn:
		p.PerformAt, err = d.decodeTime()
		return err
	case bitHeader:
		p.Header, err = d.decodeHeader()
		return err
	case bitUrgent:
		var urgent *bool
		if err = d.decodeBool(&urgent); err == nil {
			p.Urgent = *urgent
		}
		return err
	}
	if err == nil && (p.ID == "" || len(p.ID) > lowkiq.MaxIDBytes) {
		err = &fault{reason: fmt.Sprintf("is %d bytes long, want 1 to %d", len(p.ID), lowkiq.MaxIDBytes)}
	}
	return err
}

// decodeHeader decodes an object of strings.
func (d *decoder) decodeHeader() (map[string]string, *fault) {
	if d.peek() != '{' {
		return nil, d.wrongKind(`must be an object of strings such as {"tag":"vip"}`)
	}
	start, size := d.pos, 1
	all := map[string]string{}
	err := d.walkObject(1, func(key []byte) *fault {
		at := d.keyPos
		name, ok := decodeString(key)
		if _, twice := all[name]; twice || !ok {
			return &fault{at, fmt.Sprintf("name %.80s is given twice, or is no text", key)}
		}
		from := d.pos
		value, err := d.decodeText()
		if err != nil {
			return &fault{max(from, err.pos), fmt.Sprintf("value of %.80s: %s", key, err.reason)}
		}
		all[name] = value
		// Stop early if the headers are too long, because a map takes much more memory than the text.
		if size += len(`"":"",`) + len(name) + len(value); size > lowkiq.MaxHeaderBytes {
			return &fault{start, fmt.Sprintf("%v: all are more than %d bytes, at most %[2]d are allowed", lowkiq.ErrHeader, lowkiq.MaxHeaderBytes)}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if _, bad := lowkiq.NewHeader(all); bad != nil {
		return nil, &fault{start, bad.Error()}
	}
	return all, nil
}

// decodeText decodes a string.
func (d *decoder) decodeText() (string, *fault) {
	if d.peek() != '"' {
		return "", d.wrongKind("must be a string")
	}
	raw, err := d.readString()
	if err != nil {
		return "", err
	}
	s, ok := decodeString(raw)
	if !ok {
		return "", &fault{reason: `half of a surrogate pair (\ud800 to \udfff) is no text`}
	}
	return s, nil
}

// wrongKind returns the fault of a value of the wrong kind, or the fault of a value that is not
// JSON at all.
func (d *decoder) wrongKind(reason string) *fault {
	if err := d.skipValue(0); err != nil {
		return err
	}
	return &fault{reason: reason}
}

func (d *decoder) decodeBase64() (string, *fault) {
	s, err := d.decodeText()
	if err != nil {
		return "", err
	}
	raw, bad := base64.StdEncoding.DecodeString(s)
	if bad != nil {
		return "", &fault{reason: "must be standard base64 with padding"}
	}
	return string(raw), nil
}

func (d *decoder) decodeFloat() (float64, *fault) {
	start := d.pos
	if c := d.peek(); c != '-' && (c < '0' || c > '9') {
		return 0, d.wrongKind("must be a number")
	}
	if err := d.skipNumber(); err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(string(d.src[start:d.pos]), 64)
	if err != nil {
		return 0, &fault{reason: "is too large for a 64-bit floating point number"}
	}
	return f, nil
}

// maxExact is 2^53. Up to it a 64-bit floating point number keeps every integer.
const maxExact = 1 << 53

// decodeScore decodes a number. It refuses an integer that would be rounded, because neighbours
// would tie.
func (d *decoder) decodeScore() (float64, *fault) {
	start := d.pos
	f, err := d.decodeFloat()
	if err != nil || math.Abs(f) < maxExact || bytes.ContainsAny(d.src[start:d.pos], ".eE") {
		return f, err
	}
	if exact, err := strconv.ParseInt(string(d.src[start:d.pos]), 10, 64); err == nil && float64(exact) == f && int64(f) == exact && f < math.MaxInt64 {
		return f, nil
	}
	return 0, &fault{reason: fmt.Sprintf("is an integer beyond %d (2^53), which would be rounded: count in larger units, as in microseconds instead of nanoseconds", maxExact)}
}

// decodeTime decodes a time in unix seconds, rounded to the microsecond.
func (d *decoder) decodeTime() (time.Time, *fault) {
	reason := fmt.Sprintf("must be an absolute time in unix seconds, %d to %d; without it the job is due now", lowkiq.MinPerformAt, lowkiq.MaxPerformAt)
	if d.peek() == '"' { // such as an ISO 8601 time
		return time.Time{}, d.wrongKind(reason)
	}
	f, err := d.decodeFloat()
	if err != nil {
		return time.Time{}, err
	}
	if f < lowkiq.MinPerformAt || f > lowkiq.MaxPerformAt {
		return time.Time{}, &fault{reason: reason}
	}
	sec, frac := math.Modf(f)
	return time.Unix(int64(sec), int64(math.Round(frac*1e6))*1000), nil
}
