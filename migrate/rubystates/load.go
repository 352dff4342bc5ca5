package rubystates

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Commands are what brings the state's keys into an empty database of Redis.
func (s *State) Commands() (commands [][]any, err error) {
	keys := maps.Clone(s.Keys)
	if keys == nil {
		keys = map[string]Key{}
	}
	for name, key := range s.KeysBase64 {
		raw, err := base64.StdEncoding.DecodeString(name)
		if err != nil {
			return nil, fmt.Errorf("%s: key %s: %w", s.Name, name, err)
		}
		keys[string(raw)] = key
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		of, err := keys[name].commands(name)
		if err != nil {
			return nil, fmt.Errorf("%s: key %q: %w", s.Name, name, err)
		}
		commands = append(commands, of...)
	}
	return commands, nil
}

// step is how many members or fields a command brings.
const step = 500

// commands returns the commands that write a key.
func (k Key) commands(name string) (commands [][]any, err error) {
	verb := map[string]string{"zset": "ZADD", "hash": "HMSET", "list": "RPUSH", "set": "SADD"}[k.Type]
	var words []any
	size := 1
	switch k.Type {
	case "string":
		var text []byte
		err = json.Unmarshal(k.Value, &text)
		return [][]any{{"SET", name, text}}, err
	case "zset":
		var members [][2]json.RawMessage
		if err := json.Unmarshal(k.Value, &members); err != nil {
			return nil, err
		}
		size = 2
		for _, m := range members {
			var member []byte
			if err := json.Unmarshal(m[0], &member); err != nil {
				return nil, err
			}
			score, err := strconv.Unquote(string(m[1]))
			if err != nil {
				score = string(m[1])
			}
			words = append(words, score, member)
		}
	case "hash":
		var fields [][2][]byte
		err = json.Unmarshal(k.Value, &fields)
		size = 2
		for _, f := range fields {
			words = append(words, f[0], f[1])
		}
	case "list", "set":
		var members [][]byte
		err = json.Unmarshal(k.Value, &members)
		for _, m := range members {
			words = append(words, m)
		}
	default:
		err = fmt.Errorf("of type %q", k.Type)
	}
	for chunk := range slices.Chunk(words, step*size) {
		commands = append(commands, append([]any{verb, name}, chunk...))
	}
	return commands, err
}

// Raw are the bytes of the id.
func (j *Job) Raw() string {
	if j.ID != nil {
		return *j.ID
	}
	return string(j.IDBase64)
}

// Failure are the bytes of the error; ok is false for none.
func (j *Job) Failure() (text string, ok bool) {
	if j.Error != nil {
		return *j.Error, true
	}
	return string(j.ErrorBase64), j.ErrorBase64 != nil
}
