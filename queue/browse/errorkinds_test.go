package browse

import (
	"fmt"
	"testing"
)

func TestFingerprint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ message, want string }{
		{"", ""},
		{"boom", "boom"},
		{"no account 17", "no account #"},
		{"\n  first\nsecond 5", "first"},
		{"Traceback (most recent call last):\n  File \"h.py\", line 3\nKeyError: 'a17'\n", "KeyError: #"},
		{"dial tcp 10.0.0.1:6379: connection refused", "dial tcp #.#.#.#:#: connection refused"},
		{`unknown "a \" b" here`, "unknown # here"},
		{"unknown 'a' and `b`", "unknown # and #"},
		{"can't find what isn't there", "can't find what isn't there"},
		{"order-17 is late", "order-# is late"},
		{"user42x is late", "user#x is late"},
		{"psycopg2.errors.UniqueViolation: duplicate key 17", "psycopg2.errors.UniqueViolation: duplicate key #"},
		{"botocore: s3 answers 17 times in utf8 of sha256", "botocore: s3 answers # times in utf8 of sha#"},
		{"KeyError: 'customer_id'", "KeyError: 'customer_id'"},
		{`null value in column "email" of relation "users", row "ann"`, `null value in column "email" of relation "users", row #`},
		{"No module named 'yaml.cyaml'; no user named 'ann17'", "No module named 'yaml.cyaml'; no user named #"},
		{`key "a b" and key ""`, "key # and key #"},
		{"panic at 0xc000123456", "panic at #"},
		{"job 01M7XRQV0E0NPZHKN663FK0FVC gone", "job # gone"},
		{"id 6f1e3a2b-1c2d-4e5f-8a9b-0c1d2e3f4a5b", "id #"},
		{"commit deadbee1 is bad", "commit # is bad"},
		{"HTTP  503\tfrom   shop", "HTTP 503 from shop"},
		{"post http://shop/orders: 404 Not Found: \"x\"", "post http://shop/orders: 404 Not Found: #"},
		{"post http://shop/orders: 502 Bad Gateway: \"x\"", "post http://shop/orders: 502 Bad Gateway: #"},
		{"requests.exceptions.HTTPError: 404 Client Error: gone", "requests.exceptions.HTTPError: 404 Client Error: gone"},
		{"status=502, try 3", "status=502, try #"},
		{"status code: 404", "status code: 404"},
		{"404 jobs of code 4040", "# jobs of code #"},
		{"\xff\xfe 1", "? #"},
		{"\x1b[1mno account\u202e\u200b 17\x00", "?[#mno account?? #?"},
		{"no\u00a0account\u2028of \\shop", "no account of \\shop"},
	} {
		if got := Fingerprint(c.message); got != c.want {
			t.Errorf("%q: got %q, want %q", c.message, got, c.want)
		}
	}
	long := Fingerprint("é" + fmt.Sprintf("%0*s", 5000, "é"))
	if len(long) > 200 || Fingerprint(Fingerprint("no account 17")) != "no account #" {
		t.Errorf("got %d bytes, want at most %d", len(long), 200)
	}
}

func BenchmarkFingerprint(b *testing.B) {
	for b.Loop() {
		Fingerprint(`POST "http://shop:9000/orders": dial tcp 10.0.0.1:9000: connection refused (order 4711, try 3)`)
	}
}
