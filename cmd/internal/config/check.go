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

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
)

// check checks what types and ranges do not express.
func (cfg *Config) check() error {
	var errs []error
	add := func(key string, err error) {
		if err != nil {
			errs = append(errs, cfg.findOrigin(key).newError(key, "%v", err))
		}
	}
	for _, text := range []struct {
		key, value string
		check      func(string) error
	}{
		{"cluster", cfg.Cluster, func(name string) error { return protocol.CheckName("cluster", name) }},
		{"redis", cfg.Redis, checkRedis},
		{"node.name", cfg.Node.Name, func(name string) error { return protocol.CheckName("node", name) }},
		{"node.http", cfg.Node.HTTP, checkAddress},
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
	cfg.checkStatic(add)
	cfg.checkTLS(add)
	for _, name := range slices.Sorted(maps.Keys(cfg.Queues)) {
		key := "queues." + name
		add(key, cmp.Or(protocol.CheckName("queue", name), protocol.CheckNotReserved(name)))
		cfg.checkHandler(key+".handler", cfg.Queues[name].Handler, add)
		for _, wrong := range cfg.Queues[name].Contradictions() { // Set has checked each rule by itself
			other := key + "." + wrong.Other
			if where, set := cfg.origins[other]; set {
				add(key+"."+wrong.Key, fmt.Errorf("%s (%s: %s)", wrong.Reason, where.place(), other))
			} else {
				add(key+"."+wrong.Key, errors.New(wrong.Reason))
			}
		}
	}
	cfg.checkRecurring(add)
	return errors.Join(errs...)
}

// checkRecurring names the wrong key of an entry, or the entry if a key is missing.
func (cfg *Config) checkRecurring(add func(key string, err error)) {
	if n := len(cfg.Recurring); n > recurring.MaxEntries {
		add("recurring", fmt.Errorf("%d entries, at most %d are allowed", n, recurring.MaxEntries))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Recurring)) {
		key, err := "recurring."+name, cfg.Recurring[name].Check(name)
		if wrong := (*recurring.FieldError)(nil); errors.As(err, &wrong) {
			key, err = key+"."+wrong.Field, errors.New(wrong.Reason())
		} else if err != nil {
			err = errors.New(strings.TrimPrefix(err.Error(), fmt.Sprintf("%v %q: ", recurring.ErrSpec, name)))
		}
		add(key, err)
	}
}

// checkStatic refuses half a share of the shards, and keys of a cluster beside it.
func (cfg *Config) checkStatic(add func(key string, err error)) {
	of, number := cfg.Node.Of, cfg.Node.Number
	switch {
	case of == nil && number == nil:
		return
	case of == nil:
		add("node.number", errors.New("node.of is missing, must be the number of static nodes"))
		return
	case number == nil:
		add("node.of", fmt.Errorf("node.number is missing, must be 0 to %d and another on each node", *of-1))
	case *number >= *of:
		add("node.number", fmt.Errorf("%d is too large, must be 0 to %d because node.of is %d", *number, *of-1, *of))
	}
	for _, key := range []string{"node.bind", "node.join", "node.weight", "node.gossip_key_file", "node.tls.peer_name"} {
		if _, set := cfg.origins[key]; set {
			add(key, fmt.Errorf("a static node takes part in no cluster; this key or node.of must be left out (%s: node.of)", cfg.findOrigin("node.of").place()))
		}
	}
}

// checkTLS checks the keys of certificates. It reads no file.
func (cfg *Config) checkTLS(add func(key string, err error)) {
	cfg.placeGroup("node.tls")
	cfg.placeGroup("redis_tls")
	files := cfg.Node.TLS.Files()
	add("node.tls", cmp.Or(files.ValidatePeer(cfg.Node.TLS.PeerName), files.ValidateServer(cfg.Node.TLS.RequiresClientCerts())))
	if cfg.RedisTLS == (RedisTLS{}) {
		return
	}
	add("redis_tls", cfg.RedisTLS.Files().Validate())
	if !strings.HasPrefix(cfg.Redis, "rediss") {
		add("redis_tls", errors.New("it is for a redis URL with TLS: rediss://, rediss+sentinel:// or rediss+cluster://"))
	}
}

// checkBind refuses a port that leaves no room for the port of Raft above it.
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

// splitAddress splits host:port. It reports whether the address has this form, with a number as the port.
func splitAddress(address string) (host string, port int, ok bool) {
	host, text, err := net.SplitHostPort(address)
	n, err2 := strconv.ParseUint(text, 10, 16)
	return host, int(n), err == nil && err2 == nil
}

// findOrigin returns where a key was set, or where the nearest key above it was set.
func (cfg *Config) findOrigin(key string) origin {
	for key != "" {
		if o, ok := cfg.origins[key]; ok {
			return o
		}
		key = key[:max(0, strings.LastIndex(key, "."))]
	}
	return origin{name: cfg.name}
}

// placeGroup gives a group of keys that is not in the file the place of its first key, which a variable has set.
func (cfg *Config) placeGroup(group string) {
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

// Sources returns where the values of a queue's keys come from, by key. A mapping comes from the place where it begins, or
// from the variable or flag that has replaced it.
func (cfg *Config) Sources(queue string) map[string]string {
	all, of, prefix := map[string]string{}, map[string]string{}, "queues."+queue+"."
	for _, key := range slices.Sorted(maps.Keys(cfg.origins)) { // a mapping before its keys
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

// InFile reports whether the value of a key comes from the file.
func (cfg *Config) InFile(key string) bool { return cfg.findOrigin(key).name == cfg.name }

// ErrorAt returns the error of a key. It is for errors that only the caller can find.
func (cfg *Config) ErrorAt(key string, err error) error {
	return cfg.findOrigin(key).newError(key, "%v", err)
}

// checkRedis lets package queue/protocol check the address. It does not connect.
func checkRedis(address string) error {
	client, err := protocol.Open(protocol.Config{Redis: address})
	if err != nil {
		return err
	}
	return client.Close()
}

// checkHandler refuses a second handler, and options of another kind of handler.
func (cfg *Config) checkHandler(key string, h Handler, add func(key string, err error)) {
	switch {
	case h.HTTP != "" && len(h.Exec) > 0:
		add(key+".http", fmt.Errorf("exec is set as well, by %s: want one of them", cfg.findOrigin(key+".exec").place()))
	case h.HTTP == "" && h.Timeout != nil:
		add(key+".timeout", errors.New("it belongs to http; the queue's handler_timeout is for both"))
	case len(h.Exec) == 0 && h.Processes != nil:
		add(key+".processes", errors.New("it belongs to exec"))
	case len(h.Exec) > 0 && h.Exec[0] == "":
		add(key+".exec", errors.New("the command is empty"))
	case h.HTTP != "":
		u, err := url.Parse(h.HTTP)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			add(key+".http", fmt.Errorf("%q: want http://host/path or https://host/path", maskSecrets(h.HTTP)))
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
