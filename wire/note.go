package wire

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/lowkiq/lowkiq"
)

// Note is a report of a handler about a job while it works.
type Note struct {
	ID string
	lowkiq.Note
}

// ParseNotes parses a line that a handler writes before its answer:
//
//	{"note":{"a":{"progress":0.4,"log":"page 12","state":{"page":12}}}}
//
// ok is false if the line does not begin like a note. With note_base64, ids are in base64. An
// [*Error] means that a line begins like a note and is wrong. ParseNotes does not check whether the
// batch has the ids.
func ParseNotes(text []byte) (notes []Note, ok bool, err error) {
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(text, " \t\r"), []byte("{"))
	if rest = bytes.TrimLeft(rest, " \t\r"); !ok || !bytes.HasPrefix(rest, []byte(`"note"`)) && !bytes.HasPrefix(rest, []byte(`"note_base64"`)) {
		return nil, false, nil
	}
	d := decoder{lexer: lexer{src: text}}
	if err := d.decodeNotes(&notes); err != nil {
		return nil, true, d.locateFault(err)
	}
	return notes, true, nil
}

func (d *decoder) decodeNotes(into *[]Note) *fault {
	d.skipSpace()
	err := d.walkObject(0, func(key []byte) *fault {
		at, decodeKey := d.keyPos, d.decodeKey
		switch string(key) {
		case `"note"`:
		case `"note_base64"`:
			decodeKey = d.decodeKey64
		default:
			return d.faultf("unknown field %.600s beside a note (known: note, note_base64)", key)
		}
		if d.peek() != '{' {
			return &fault{at, `must be an object of ids and notes, such as {"a":{"progress":0.4}}`}
		}
		return d.walkObject(1, func(key []byte) *fault {
			at := d.keyPos
			id, err := decodeKey(key)
			if err != nil {
				return err
			}
			note, err := d.decodeNote()
			if err != nil {
				return &fault{max(at, err.pos), fmt.Sprintf("id %.600q: %s", id, err.reason)}
			}
			*into = append(*into, Note{id, note})
			return nil
		})
	})
	if err != nil {
		return err
	}
	if d.skipSpace(); d.pos < len(d.src) {
		return d.unexpected("the end after the notes")
	}
	return nil
}

// decodeNote decodes the note about an id.
func (d *decoder) decodeNote() (note lowkiq.Note, err *fault) {
	if d.peek() != '{' {
		return note, d.wrongKind(`must be an object with progress, log or state, such as {"progress":0.4}`)
	}
	seen := map[string]bool{}
	err = d.walkObject(2, func(key []byte) *fault {
		at, name := d.keyPos, string(key[1:len(key)-1])
		if seen[name] {
			return &fault{at, name + ": given twice"}
		}
		seen[name] = true
		var err *fault
		switch name {
		case "progress":
			note.Progress, err = d.decodeShare()
		case "log":
			note.Log, err = d.decodeText()
		case "state":
			if d.peek() == 'n' {
				return &fault{at, "state: a note cannot delete it: an answer can"}
			}
			note.State, err = d.decodeResult()
		default:
			return &fault{at, fmt.Sprintf("unknown field %.600s (known: progress, log, state)", key)}
		}
		if err != nil {
			return &fault{max(at, err.pos), fmt.Sprintf("%s: %s", name, err.reason)}
		}
		return nil
	})
	return note, err
}

// decodeShare decodes a number from 0 to 1.
func (d *decoder) decodeShare() (float64, *fault) {
	start := d.pos
	if err := d.skipValue(1); err != nil {
		return 0, err
	}
	x, err := strconv.ParseFloat(string(d.src[start:d.pos]), 64)
	if err != nil || !(x >= 0 && x <= 1) {
		return 0, &fault{start, "must be a number from 0 to 1"}
	}
	return x, nil
}
