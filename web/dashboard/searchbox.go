package dashboard

import (
	"strings"
	"unicode"

	"github.com/lowkiq/lowkiq/queue/browse"
)

// searchOf reads what is written into the box of a list: words that a job's id or payload contains, tag:vip, and error:timeout.
// What is in quotes is one word, spaces and all. Words without a name belong together, as they are written.
func searchOf(text string) (s browse.Search) {
	var plain []string
	for _, word := range boxWords(text) {
		name, value, named := strings.Cut(word.text, ":")
		switch {
		case named && name == "tag" && !word.quoted:
			s.Tag = value
		case named && name == "error" && !word.quoted:
			s.Error = value
		default:
			plain = append(plain, word.text)
		}
	}
	s.Contains = strings.Join(plain, " ")
	return s
}

// boxWord is a word of the box; quoted if it begins with a quote, so that it is text, whatever it looks like.
type boxWord struct {
	text   string
	quoted bool
}

func boxWords(text string) (words []boxWord) {
	var word strings.Builder
	var begun, quoted, within bool
	end := func() {
		if begun {
			words = append(words, boxWord{word.String(), quoted})
		}
		word.Reset()
		begun, quoted = false, false
	}
	for _, r := range text {
		switch {
		case r == '"' && within:
			within = false
		case r == '"' && (!begun || word.String() == "tag:" || word.String() == "error:"): // elsewhere it is part of the text, as in JSON
			quoted = !begun
			begun, within = true, true
		case unicode.IsSpace(r) && !within:
			end()
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	end()
	return words
}
