package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// check looks at what types and ranges cannot say.
func (cfg *Config) check() error {
	var errs []error
	add := func(key string, err error) {
		if err != nil {
			errs = append(errs, cfg.origin(key).fault(key, "%v", err))
		}
	}
	for _, text := range []struct {
		key, value string
		check      func(string) error
	}{
		{"cluster", cfg.Cluster, func(name string) error { return queue.CheckName("cluster", name) }},
		{"redis", cfg.Redis, checkRedis},
		{"node.name", cfg.Node.Name, func(name string) error { return queue.CheckName("node", name) }},
		{"node.http", cfg.Node.HTTP, checkAddress},
		{"node.request_memory", cfg.Node.RequestMemory, checkRequestMemory},
		{"node.bind", cfg.Node.Bind, checkBind},
		{"node.advertise", cfg.Node.Advertise, checkHost},
	} {
		if text.value != "" {
			add(text.key, text.check(text.value))
		}
	}
	for _, seed := range cfg.Node.Join {
		add("node.join", checkSeed(seed))
	}
	cfg.checkTLS(add)
	for _, name := range slices.Sorted(maps.Keys(cfg.Queues)) {
		key := "queues." + name
		add(key, queue.CheckName("queue", name))
		cfg.checkHandler(key+".handler", cfg.Queues[name].Handler, add)
		cfg.checkLimits(key, cfg.Queues[name], add)
		if p := cfg.Queues[name].Priority; p != nil && *p > 0 && cfg.Queues[name].Scheduler == "seq" {
			add(key+".priority", errors.New("it needs scheduler lag, by which the oldest job is first; seq goes in turn"))
		}
		if d := cfg.Queues[name].StuckAfter; d != nil && *d > 0 && *d < time.Second { // each call would end as it begins
			add(key+".stuck_after", fmt.Errorf("%s: want 0s, which is never, or 1s to 8760h", *d))
		}
		if l := cfg.Queues[name].Limit; l != nil {
			checkRate(key+".limit", l.Rate, l.Burst, add)
		}
		if d := cfg.Queues[name].Debounce; d != nil && d.Most != nil && (d.Quiet == nil || *d.Most < *d.Quiet) {
			add(key+".debounce.most", fmt.Errorf("%s: want no less than quiet, which is to be there", rules.Duration(*d.Most)))
		}
		if g := cfg.Queues[name].Groups; g != nil {
			checkRate(key+".groups", g.Rate, g.Burst, add)
			if len(g.By) > rules.MostBy {
				add(key+".groups.by", fmt.Errorf("%q: want at most %d bytes", g.By, rules.MostBy))
			}
		}
		if n := cfg.Queues[name].MaxCrashes; n != nil && *n == 1 {
			add(key+".max_crashes", errors.New("1, want 0 (never bury), or 2 or more: one crash does not tell which of the jobs at work has caused it"))
		}
	}
	cfg.checkRecurring(add)
	return errors.Join(errs...)
}

// checkRecurring names the key of an entry that is wrong, or the entry if something is missing.
func (cfg *Config) checkRecurring(add func(key string, err error)) {
	if n := len(cfg.Recurring); n > recurring.MaxEntries {
		add("recurring", fmt.Errorf("%d entries, at most %d are allowed", n, recurring.MaxEntries))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Recurring)) {
		key, err := "recurring."+name, cfg.Recurring[name].Spec().Check(name)
		if wrong := (*recurring.FieldError)(nil); errors.As(err, &wrong) {
			key, err = key+"."+wrong.Field, errors.New(wrong.Reason())
		} else if err != nil {
			err = errors.New(strings.TrimPrefix(err.Error(), fmt.Sprintf("%v %q: ", recurring.ErrSpec, name)))
		}
		add(key, err)
	}
}

// checkTLS looks at the keys of certificates; the files are not read.
func (cfg *Config) checkTLS(add func(key string, err error)) {
	cfg.place("node.tls")
	cfg.place("redis_tls")
	add("node.tls", cmp.Or(cfg.Node.TLS.Node().Validate(), cfg.Node.TLS.Web().Validate()))
	if cfg.RedisTLS == (RedisTLS{}) {
		return
	}
	add("redis_tls", cfg.RedisTLS.Files().Validate())
	if !strings.HasPrefix(cfg.Redis, "rediss") {
		add("redis_tls", errors.New("it is for a redis URL with TLS: rediss://, rediss+sentinel:// or rediss+cluster://"))
	}
}

// checkRequestMemory wants a size that leaves room for bodies.
func checkRequestMemory(text string) error {
	if size := rules.Size(text); size < 1<<20 || size > 1<<40 {
		return fmt.Errorf("%q: want 1MiB to 1024GiB, as in 64MiB", text)
	}
	return nil
}

// checkLimits wants sizes that Redis can bear.
func (cfg *Config) checkLimits(key string, q *Queue, add func(key string, err error)) {
	for _, of := range []struct {
		key, text, most string
		max             int64
	}{{".max_payload_size", q.MaxPayloadSize, "16MiB", queue.MostPayloadBytes}, {".max_id_size", q.MaxIDSize, "1GiB", queue.MostIDPayload}} {
		if size := rules.Size(of.text); of.text != "" && (size < 1 || size > of.max) {
			add(key+of.key, fmt.Errorf("%q: want 1KiB to %s, as in 256KiB or 2MiB", of.text, of.most))
		}
	}
	payload, all := rules.Size(q.MaxPayloadSize), rules.Size(q.MaxIDSize)
	if payload > 0 && all > 0 && payload > all {
		add(key+".max_payload_size", fmt.Errorf("%q: more than max_id_size, %s, which is for all payloads of an id", q.MaxPayloadSize, q.MaxIDSize))
	}
}

// checkRate wants a rate, and a burst with one only.
func checkRate(key, rate string, burst *int, add func(key string, err error)) {
	if _, err := rules.ParseRate(rate); rate != "" && err != nil {
		add(key+".rate", err)
	}
	if burst != nil && rate == "" {
		add(key+".burst", errors.New("there is a burst, and no rate"))
	}
}

// checkBind wants a port that leaves room for Raft's above it.
func checkBind(address string) error {
	if _, port, ok := splitAddress(address); !ok || port > 65534 {
		return fmt.Errorf("%q: want host:port, as in 127.0.0.1:7946, the port below 65535: Raft listens one above", address)
	}
	return nil
}

func checkSeed(address string) error {
	if host, port, ok := splitAddress(address); !ok || host == "" || port == 0 {
		return fmt.Errorf("%q: want host:port of any node's gossip, as in 127.0.0.1:7946", address)
	}
	return nil
}

func checkAddress(address string) error {
	if _, _, ok := splitAddress(address); !ok {
		return fmt.Errorf("%q: want host:port, as in 127.0.0.1:7948", address)
	}
	return nil
}

func checkHost(host string) error {
	if strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return fmt.Errorf("%q: want a host without a port", host)
	}
	return nil
}

// splitAddress is false unless address is host:port with a number for the port.
func splitAddress(address string) (host string, port int, ok bool) {
	host, text, err := net.SplitHostPort(address)
	n, err2 := strconv.ParseUint(text, 10, 16)
	return host, int(n), err == nil && err2 == nil
}

// origin is where a key was set, or the nearest key above it.
func (cfg *Config) origin(key string) origin {
	for key != "" {
		if o, ok := cfg.origins[key]; ok {
			return o
		}
		key = key[:max(0, strings.LastIndex(key, "."))]
	}
	return origin{name: cfg.name}
}

// place gives a group of keys that is not in the file the place of its first one, which
// a variable has set.
func (cfg *Config) place(group string) {
	if _, ok := cfg.origins[group]; ok {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(cfg.origins)) {
		if strings.HasPrefix(key, group+".") {
			cfg.origins[group] = cfg.origins[key]
			return
		}
	}
}

// Sources are where the keys of a queue have their values from, by their names below the queue. Of a mapping that is where it
// begins, or the variable or flag that has replaced it.
func (cfg *Config) Sources(queue string) map[string]string {
	all, of, prefix := map[string]string{}, map[string]string{}, "queues."+queue+"."
	for _, key := range slices.Sorted(maps.Keys(cfg.origins)) { // what is whole before its parts
		name, below := strings.CutPrefix(key, prefix)
		if name, _, _ = strings.Cut(name, "."); !below || name == "" {
			continue
		}
		from := cfg.origins[key]
		if source, known := of[name]; !known || source != from.name {
			all[name], of[name] = from.place(), from.name
		}
	}
	return all
}

// InFile reports whether a key has its value from the file.
func (cfg *Config) InFile(key string) bool { return cfg.origin(key).name == cfg.name }

// Fault makes an error of a key, for what only the caller can find out.
func (cfg *Config) Fault(key string, err error) error {
	return cfg.origin(key).fault(key, "%v", err)
}

// checkRedis asks the queue package; nothing is connected.
func checkRedis(address string) error {
	client, err := queue.Open(queue.Config{Redis: address})
	if err != nil {
		return err
	}
	return client.Close()
}

// checkHandler wants at most one handler, with fitting options.
func (cfg *Config) checkHandler(key string, h Handler, add func(key string, err error)) {
	switch {
	case h.HTTP != "" && len(h.Exec) > 0:
		add(key+".http", fmt.Errorf("exec is set as well, by %s: want one of them", cfg.origin(key+".exec").place()))
	case h.HTTP == "" && h.Timeout != nil:
		add(key+".timeout", errors.New("it belongs to http; the queue's handler_timeout is for both"))
	case len(h.Exec) == 0 && h.Processes != nil:
		add(key+".processes", errors.New("it belongs to exec"))
	case len(h.Exec) > 0 && h.Exec[0] == "":
		add(key+".exec", errors.New("the command is empty"))
	case h.HTTP != "":
		u, err := url.Parse(h.HTTP)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			add(key+".http", fmt.Errorf("%q: want http://host/path or https://host/path", mask(h.HTTP)))
		}
	}
	for _, name := range h.Events {
		switch lowkiq.EventKind(name) {
		case lowkiq.Recovered, lowkiq.Buried, lowkiq.Exhausted:
		default:
			add(key+".events", fmt.Errorf("%q: want some of %s, %s and %s", name, lowkiq.Recovered, lowkiq.Buried, lowkiq.Exhausted))
		}
	}
}
