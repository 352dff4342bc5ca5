package wire

import (
	"encoding/base64"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
)

// AppendBatch appends b as one line of JSON, without the newline.
func AppendBatch(dst []byte, b *lowkiq.Batch) []byte {
	dst = append(dst, `{"queue":`...)
	dst = appendString(dst, b.Shard.Queue)
	dst = append(dst, `,"shard":`...)
	dst = strconv.AppendInt(dst, int64(b.Shard.Index), 10)
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
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

// AppendJob appends a job as the API lists it:
//
//	{"id":"a","payloads":[{"score":1,"payload":{}}],"perform_in":1763600000,"retry_count":0,"error":"…"}
//
// A due time that is not known is null.
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

// appendID appends the field id, or id_base64 when no JSON string can carry it.
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
		dst = AppendPayload(dst, payloads[i].Data)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// AppendPayload appends the JSON value that stands for a payload's bytes. It never
// contains a newline.
func AppendPayload(dst, data []byte) []byte {
	if len(data) == 0 {
		return append(dst, `""`...)
	}
	l := lexer{src: data}
	l.space()
	if l.value(1) == nil && string(data) != `""` {
		if l.space(); l.pos == len(data) {
			if _, ok := envelope(data); !ok {
				return appendCompact(dst, data, l.spaced)
			}
		}
	}
	dst = append(dst, `{"$base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, data)
	return append(dst, `"}`...)
}

func appendCompact(dst, data []byte, spaced bool) []byte {
	if spaced {
		return compact(dst, data)
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

// appendString writes a JSON string; what is not UTF-8 becomes U+FFFD.
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
