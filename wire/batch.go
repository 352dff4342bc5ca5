package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
)

// AppendBatch appends b as a line of JSON, without the newline.
func AppendBatch(dst []byte, b *lowkiq.Batch) []byte {
	dst = appendShard(append(dst, '{'), b.Shard)
	dst = append(dst, `,"fence":`...)
	dst = strconv.AppendInt(dst, b.Fence, 10)
	dst = append(dst, `,"flight":`...)
	dst = strconv.AppendInt(dst, b.Flight, 10)
	dst = append(dst, `,"jobs":[`...)
	for i := range b.Jobs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendID(append(dst, '{'), b.Jobs[i].ID)
		dst = append(dst, `,"retry_count":`...)
		dst = strconv.AppendInt(dst, int64(b.Jobs[i].RetryCount), 10)
		dst = appendPayloads(dst, b.Jobs[i].Payloads)
		if b.Jobs[i].Callers > 0 {
			dst = append(dst, `,"callers":`...)
			dst = strconv.AppendInt(dst, int64(b.Jobs[i].Callers), 10)
		}
		if b.Jobs[i].State != nil {
			dst = appendState(append(dst, `,"state":`...), b.Jobs[i].State)
		}
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

func appendShard(dst []byte, s lowkiq.Shard) []byte {
	dst = append(dst, `"queue":`...)
	dst = appendString(dst, s.Queue)
	dst = append(dst, `,"shard":`...)
	return strconv.AppendInt(dst, int64(s.Index), 10)
}

// AppendJob appends a job as the API lists it:
//
//	{"id":"a","payloads":[{"score":1,"payload":{}}],"perform_in":1763600000,"retry_count":0,"error":"…"}
//
// An unknown due time is null.
func AppendJob(dst []byte, j *lowkiq.Job) []byte {
	dst = appendID(append(dst, '{'), j.ID)
	dst = appendPayloads(dst, j.Payloads)
	dst = append(dst, `,"perform_in":`...)
	if j.PerformAt.IsZero() {
		dst = append(dst, `null`...)
	} else {
		dst = appendFloat(dst, float64(j.PerformAt.UnixMicro())/1e6)
	}
	dst = append(dst, `,"retry_count":`...)
	dst = strconv.AppendInt(dst, int64(j.RetryCount), 10)
	dst = append(dst, `,"error":`...)
	dst = appendString(dst, j.Error)
	return append(dst, '}')
}

// appendID appends the field id, or id_base64 if no JSON string can represent the id.
func appendID(dst []byte, id string) []byte {
	if utf8.ValidString(id) {
		return appendString(append(dst, `"id":`...), id)
	}
	dst = append(dst, `"id_base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, []byte(id))
	return append(dst, '"')
}

func appendPayloads(dst []byte, payloads []lowkiq.Payload) []byte {
	dst = append(dst, `,"payloads":[`...)
	for i := range payloads {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"score":`...)
		dst = appendFloat(dst, payloads[i].Score)
		dst = append(dst, `,"payload":`...)
		if payloads[i].Header.Bytes() {
			dst = appendBase64(dst, payloads[i].Data)
		} else {
			dst = AppendPayload(dst, payloads[i].Data)
		}
		if payloads[i].Header != "" {
			dst = appendHeader(dst, []byte(payloads[i].Header))
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// appendHeader appends the field header. It leaves out headers that are not an object of strings,
// as [lowkiq.Header] does. Such headers come from damage or from other writers in Redis. They must
// not end the line or add fields to it.
func appendHeader(dst, header []byte) []byte {
	l := lexer{src: header}
	err := l.walkObject(0, func([]byte) *fault {
		_, err := l.readString()
		return err
	})
	if err != nil || l.pos < len(header) {
		return dst
	}
	return appendCompact(append(dst, `,"header":`...), header, l.spaced)
}

// AppendPayload appends the JSON value for a payload's bytes. The value never contains a newline.
func AppendPayload(dst, data []byte) []byte {
	if len(data) == 0 {
		return append(dst, `""`...)
	}
	spaced, ok := standsForItself(data)
	if !ok {
		return appendBase64(dst, data)
	}
	return appendCompact(dst, data, spaced)
}

// appendState is AppendPayload for a state, which a handler gets back byte for byte. So JSON with
// white space is sent in base64. The same holds for the text null, which in an answer would delete
// the state, and for the text "", which would mean no bytes.
func appendState(dst, data []byte) []byte {
	if len(data) == 0 {
		return append(dst, `""`...)
	}
	if spaced, ok := standsForItself(data); !ok || spaced || string(data) == "null" || string(data) == `""` {
		return appendBase64(dst, data)
	}
	return append(dst, data...)
}

// AppendPushed is AppendPayload for the payload of a push.
func AppendPushed(dst []byte, job *lowkiq.Push) []byte {
	if job.Header["payload"] == "bytes" {
		return appendBase64(dst, job.Payload)
	}
	return AppendPayload(dst, job.Payload)
}

// BytesHeader returns headers that mark a payload as bytes. It adds payload: bytes if the bytes
// could be taken for JSON. It does not change the given map.
func BytesHeader(header map[string]string, data []byte) map[string]string {
	if len(data) > 0 && !IsJSON(data) {
		return header
	}
	if header = maps.Clone(header); header == nil {
		header = make(map[string]string, 1)
	}
	header["payload"] = "bytes"
	return header
}

// IsJSON reports whether bytes are a JSON text.
func IsJSON(data []byte) bool {
	_, ok := isJSON(data)
	return ok
}

// isJSON reports whether bytes are a JSON text, and whether the text contains white space.
func isJSON(data []byte) (spaced, ok bool) {
	l := lexer{src: data}
	l.skipSpace()
	if l.skipValue(1) != nil {
		return false, false
	}
	l.skipSpace()
	return l.spaced, l.pos == len(data)
}

// standsForItself reports whether bytes are a JSON text that is read as itself, and whether the
// text contains white space.
func standsForItself(data []byte) (spaced, ok bool) {
	if spaced, ok = isJSON(data); !ok {
		return false, false
	}
	_, looksRaw := bytesEnvelope(data)
	return spaced, !looksRaw
}

func appendBase64(dst, data []byte) []byte {
	dst = append(dst, `{"$base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, data)
	return append(dst, `"}`...)
}

func appendCompact(dst, data []byte, spaced bool) []byte {
	if spaced {
		return compactJSON(dst, data)
	}
	return append(dst, data...)
}

// appendFloat writes the shortest digits that read back as f, as encoding/json does.
func appendFloat(dst []byte, f float64) []byte {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return append(dst, `null`...)
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, 64)
}

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i, r := range s {
		if r >= ' ' && r != '"' && r != '\\' && r != utf8.RuneError {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch {
		case r == utf8.RuneError:
			_, size := utf8.DecodeRuneInString(s[i:])
			start = i + size
			dst = utf8.AppendRune(dst, r)
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&0xf])
		}
	}
	return append(append(dst, s[start:]...), '"')
}

// batchText is a batch as [AppendBatch] writes it.
type batchText struct {
	Queue  string
	Shard  int
	Fence  int64
	Flight int64
	Jobs   []jobText
}

// jobText is a job of a batchText.
type jobText struct {
	ID         string
	IDBase64   []byte `json:"id_base64"`
	RetryCount int    `json:"retry_count"`
	Payloads   []struct {
		Score   float64
		Payload json.RawMessage
		Header  map[string]string
	}
	Callers int
	State   json.RawMessage
	Error   string // error of an event's job
}

// ParseBatch parses a batch, for HTTP endpoints and child processes written in Go. A batch must
// have a queue and jobs.
func ParseBatch(text []byte) (*lowkiq.Batch, error) {
	var b batchText
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	if b.Queue == "" || len(b.Jobs) == 0 {
		return nil, errors.New("batch: want queue and jobs, as a node sends them")
	}
	batch := &lowkiq.Batch{Shard: lowkiq.Shard{Queue: b.Queue, Index: b.Shard}, Fence: b.Fence, Flight: b.Flight}
	for i := range b.Jobs {
		job, err := b.Jobs[i].decodeJob()
		if err != nil {
			return nil, fmt.Errorf("batch: job %q: %w", job.ID, err)
		}
		batch.Jobs = append(batch.Jobs, job)
	}
	return batch, nil
}

// decodeJob returns the job. With an error it returns at least the id.
func (j *jobText) decodeJob() (lowkiq.Job, error) {
	job := lowkiq.Job{ID: j.ID, RetryCount: j.RetryCount, Callers: j.Callers}
	if j.IDBase64 != nil {
		job.ID = string(j.IDBase64)
	}
	if j.Callers < 0 {
		return job, fmt.Errorf("callers: %d, want 0 or more", j.Callers)
	}
	if len(j.State) > 0 && string(j.State) != "null" {
		d := decoder{lexer: lexer{src: j.State}}
		state, fault := d.decodePayload()
		if fault != nil {
			return job, fmt.Errorf("state: %s", fault.reason)
		}
		job.State = nonNil(state)
	}
	for _, p := range j.Payloads {
		d := decoder{lexer: lexer{src: p.Payload}}
		data, fault := d.decodePayload()
		if fault != nil {
			return job, fmt.Errorf("payload: %s", fault.reason)
		}
		header, err := lowkiq.NewHeader(p.Header)
		if err != nil {
			return job, err
		}
		job.Payloads = append(job.Payloads, lowkiq.Payload{Score: p.Score, Data: data, Header: header})
	}
	return job, nil
}

// decodePayload decodes any value into the bytes to store.
func (d *decoder) decodePayload() ([]byte, *fault) {
	start := d.pos
	d.spaced = false
	if err := d.skipValue(1); err != nil {
		return nil, err
	}
	raw := d.src[start:d.pos]
	d.raw = false
	if string(raw) == `""` {
		return nil, nil
	}
	if value, ok := bytesEnvelope(raw); ok {
		d.raw = true
		return d.decodeBytes(value)
	}
	return d.copyPayload(raw), nil
}

// nonNil returns data, or an empty slice in place of nil.
func nonNil(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}

// decodeBytes decodes the value of an envelope.
func (d *decoder) decodeBytes(value []byte) ([]byte, *fault) {
	bad := &fault{reason: "$base64 must be a string of standard base64 with padding"}
	if value[0] != '"' {
		return nil, bad
	}
	text, ok := decodeString(value)
	if !ok {
		return nil, bad
	}
	out, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, bad
	}
	if len(out) == 0 {
		return nil, nil // as ""
	}
	return out, nil
}

// copyPayload copies a checked payload, without white space between its tokens.
func (d *decoder) copyPayload(raw []byte) []byte {
	if d.arena == nil {
		d.arena = make([]byte, 0, len(raw))
	}
	start := len(d.arena)
	if d.spaced {
		d.arena = compactJSON(d.arena, raw)
	} else {
		d.arena = append(d.arena, raw...)
	}
	kept := d.arena[start:]
	return kept[:len(kept):len(kept)]
}

// bytesEnvelope reports whether checked JSON is an object with the one key $base64, and
// returns the value of the key as written.
func bytesEnvelope(raw []byte) ([]byte, bool) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, false
	}
	l := lexer{src: raw, pos: 1}
	if l.skipSpace(); l.peek() != '"' {
		return nil, false
	}
	key, _ := l.readString()
	if string(key) != `"$base64"` {
		if bytes.IndexByte(key, '\\') < 0 {
			return nil, false
		}
		if name, _ := decodeString(key); name != "$base64" {
			return nil, false
		}
	}
	l.skipSpace()
	l.pos++ // the colon
	l.skipSpace()
	start := l.pos
	if l.skipValue(1) != nil {
		return nil, false
	}
	value := raw[start:l.pos]
	l.skipSpace()
	return value, l.peek() == '}'
}
