package dashboard

import (
	"strings"
	"unicode"

	"github.com/lowkiq/lowkiq/queue/browse"
)

// searchOf reads the search box of a list. It takes words that a job's id or payload contains, tag:vip, and error:timeout.
// Text in quotes is a single word with its spaces. Words without a name form a single text, and so do errors. A search has a single
// tag. searchOf joins several tags with commas, and the search refuses such a tag.
func searchOf(text string) (s browse.Search) {
	var plain, tags, faults []string
	for _, word := range boxWords(text) {
		name, value, named := strings.Cut(word.text, ":")
		switch {
		case named && name == "tag" && !word.quoted:
			tags = append(tags, value)
		case named && name == "error" && !word.quoted:
			faults = append(faults, value)
		default:
			plain = append(plain, word.text)
		}
	}
	s.Contains, s.Tag, s.Error = strings.Join(plain, " "), strings.Join(tags, ","), strings.Join(faults, " ")
	return s
}

// Looked says how far a search has come. For a search of the whole queue it has the share up to this page. It always has the number of
// jobs that were examined for this page.
func (b *listBody) Looked() string {
	text := "looked through "
	if b.Through > 0 {
		share := b.Through
		if b.Next != "" {
			share = min(share, .99)
		}
		text += formatPercent(share) + ", "
	}
	text += formatCountOf(b.Examined, "job", "jobs")
	if b.First != "" {
		text += " for this page"
	}
	if b.Unordered {
		text += ", in no order"
	}
	return text
}

// boxWord is a word of the search box. A quoted word is text, whatever it looks like.
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
