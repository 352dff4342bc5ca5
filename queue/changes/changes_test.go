package changes

import "testing"

func TestCheckCursor(t *testing.T) {
	t.Parallel()
	for cursor, good := range map[string]bool{
		"0": true, "1767225600000": true, "1767225600000-0": true, "1767225600000-18446744073709551615": true,
		"": false, "-": false, "+": false, "a-1": false, "1-": false, "1-1-1": false, "(1-0": false,
		// Redis reads it, and knows nothing that comes after it.
		"18446744073709551615-18446744073709551615": false, "18446744073709551615": false,
	} {
		if err := CheckCursor(cursor); (err == nil) != good {
			t.Errorf("%q: got %v, want it taken: %t", cursor, err, good)
		}
	}
}
