package truncate

import "testing"

func TestText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc", "abä": "ab", "漢字": "漢", "\xff\xfe\xfd\xfc": "\xff\xfe\xfd", "👍": ""} {
		if got := Text(text, 3); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
