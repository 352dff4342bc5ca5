package rubyqueue

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// since is the release of Redis that brought each command which is sent to an old Redis, in the form in which it is sent.
// None is later than 3.2.
var since = map[string]string{
	"INFO": "1.0", "GET": "1.0", "SET": "1.0", "DEL": "1.0", "EXISTS": "1.0", "INCR": "1.0", "RENAME": "1.0", "EXPIRE": "1.0", "PERSIST": "2.2",
	"HGET": "2.0", "HSET": "2.0", "HDEL": "2.0", "HMGET": "2.0", "HMSET": "2.0", "HGETALL": "2.0", "HLEN": "2.0", "HEXISTS": "2.0", "HSCAN": "2.8", "SCAN": "2.8", "TYPE": "1.0",
	"ZADD": "1.2", "ZREM": "1.2", "ZSCORE": "1.2", "ZCARD": "1.2", "ZRANGE": "1.2", "ZRANGEBYSCORE": "1.0.5", "ZREMRANGEBYRANK": "2.0",
}

// chance are commands whose answer two servers may give differently: without redis.replicate_commands, which older servers
// lack, 3.2 refuses to write after them in a script, and so does 4 after the last two.
var chance = map[string]bool{"HSCAN": true, "TIME": true, "SCAN": true, "ZSCAN": true, "SSCAN": true, "RANDOMKEY": true, "SPOP": true,
	"SRANDMEMBER": true, "LASTSAVE": true, "TTL": true, "PTTL": true}

// Redis 3.2 knows every command, and lets each script write. Extended forms are not used: HSET has one field, ZADD and SET
// no options but NX and EX.
func TestCommandsOfRedis32(t *testing.T) {
	t.Parallel()
	commands := map[string]*regexp.Regexp{
		".lua": regexp.MustCompile(`redis\.call\('([A-Z]+)'`),
		".go":  regexp.MustCompile(`(?:Cmd\{|\(ctx, "[a-z' ]+", |\[\]any\{)"([A-Z]+)"`),
	}
	wide := regexp.MustCompile(`'HSET', [^,()]*(?:\([^()]*\))?[^,()]*, [^,()]+, [^,()]+, `)
	found := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		pattern := commands[filepath.Ext(path)]
		if err != nil || pattern == nil || regexp.MustCompile(`_test\.go$`).MatchString(path) {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range pattern.FindAllSubmatch(text, -1) {
			name := string(match[1])
			if found[name] = true; since[name] == "" {
				t.Errorf("%s: %s is not known to be a command of Redis 3.2", path, name)
			}
			if filepath.Ext(path) == ".lua" && chance[name] {
				t.Errorf("%s: a script of Redis 3.2 does not write after %s", path, name)
			}
		}
		if w := wide.Find(text); w != nil {
			t.Errorf("%s: %s… has more than one field, which Redis 3.2 does not take", path, w)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range since {
		if !found[name] {
			t.Errorf("%s is sent nowhere", name)
		}
	}
	if wide.FindString(`redis.call('HSET', P .. ':x', 'a', 1, 'b', 2)`) == "" {
		t.Error("an HSET of two fields is not found")
	}
}
