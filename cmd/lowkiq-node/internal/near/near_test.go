package near

import "testing"

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		x, y string
		want int
	}{{"", "", 0}, {"pause", "paus", 1}, {"lst", "list", 1}, {"kill", "kitten", 4}, {"ab", "ba", 2}, {"", "run", 3}} {
		if got := distance(c.x, c.y); got != c.want {
			t.Errorf("%q, %q: got %d, want %d", c.x, c.y, got, c.want)
		}
	}
}
