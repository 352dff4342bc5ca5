package wire

import "unicode/utf8"

// JobID is an id in JSON: a string, or base64 where it is not UTF-8.
type JobID struct {
	Text   *string `json:"id,omitempty" either:"id"`
	Base64 []byte  `json:"id_base64,omitempty" either:"id"` // an id that is not UTF-8
}

// NewJobID returns the JSON of an id.
func NewJobID(id string) JobID {
	if utf8.ValidString(id) {
		return JobID{Text: &id}
	}
	return JobID{Base64: []byte(id)}
}

// ID returns the id itself.
func (j JobID) ID() string {
	if j.Text != nil {
		return *j.Text
	}
	return string(j.Base64)
}
