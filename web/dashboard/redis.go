package dashboard

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

// redisBody is the page about Redis.
type redisBody struct {
	Address string
	Servers []serverView
}

// serverView is one Redis server.
type serverView struct {
	Address string
	Groups  []factGroup
}

type factGroup struct {
	Title string
	Facts []fact
}

// fact is a name and a value; Class marks what an operator should look at.
type fact struct{ Name, Value, Class string }

func (d *Dashboard) redisPage(r *http.Request) (view, error) {
	servers, err := d.client.Info(r.Context())
	if err != nil {
		return view{}, err
	}
	b := redisBody{Address: d.client.Redis()}
	for _, one := range servers {
		b.Servers = append(b.Servers, serverOf(one))
	}
	return view{Page: "redis", Title: "Redis", Nav: "/redis", Body: b}, nil
}

func serverOf(info queue.Server) serverView {
	f := info.Fields
	return serverView{Address: info.Address, Groups: []factGroup{
		{"Server", known(fact{"Version", f["redis_version"], ""}, fact{"Mode", f["redis_mode"], ""}, fact{"Role", f["role"], ""},
			fact{"Uptime", uptime(f["uptime_in_seconds"]), ""}, fact{"System", f["os"], ""})},
		{"Work", known(fact{"Commands per second", number(f["instantaneous_ops_per_sec"]), ""}, fact{"Commands so far", number(f["total_commands_processed"]), ""},
			fact{"Clients", number(f["connected_clients"]), ""}, fact{"Clients waiting", number(f["blocked_clients"]), ""},
			fact{"Refused connections", number(f["rejected_connections"]), marked(f["rejected_connections"] != "0", "warn")})},
		{"Memory", known(fact{"Used", f["used_memory_human"], ""}, fact{"At most so far", f["used_memory_peak_human"], ""},
			fact{"Limit", limit(f["maxmemory"], f["maxmemory_human"]), ""}, fact{"Fragmentation", f["mem_fragmentation_ratio"], ""},
			fact{"When full", f["maxmemory_policy"], marked(f["maxmemory_policy"] != "noeviction", "bad")},
			fact{"Evicted keys", number(f["evicted_keys"]), marked(f["evicted_keys"] != "0", "bad")})},
		{"Persistence", known(fact{"Append-only file", onOff(f["aof_enabled"]), marked(f["aof_enabled"] == "0", "warn")},
			fact{"Last AOF write", f["aof_last_write_status"], marked(f["aof_last_write_status"] != "ok", "bad")},
			fact{"Last snapshot", f["rdb_last_bgsave_status"], marked(f["rdb_last_bgsave_status"] != "ok", "bad")},
			fact{"Snapshot made", since(f["rdb_last_save_time"]), ""}, fact{"Changes since", number(f["rdb_changes_since_last_save"]), ""})},
		{"Replication", known(fact{"Replicas", number(f["connected_slaves"]), ""}, fact{"Master", f["master_host"], ""},
			fact{"Link to the master", f["master_link_status"], marked(f["master_link_status"] != "up", "bad")})},
	}}
}

// known leaves out what the server does not tell.
func known(all ...fact) []fact {
	var some []fact
	for _, f := range all {
		if f.Value != "" {
			some = append(some, f)
		}
	}
	return some
}

func marked(mark bool, class string) string {
	if mark {
		return class
	}
	return ""
}

func number(text string) string {
	if n, err := strconv.Atoi(text); err == nil {
		return count(n)
	}
	return text
}

func onOff(text string) string {
	return map[string]string{"0": "off", "1": "on"}[text]
}

func uptime(text string) string {
	seconds, err := strconv.Atoi(text)
	if err != nil {
		return ""
	}
	return lag(time.Duration(seconds) * time.Second)
}

func since(text string) string {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds == 0 {
		return ""
	}
	return clock(time.Unix(seconds, 0))
}

func limit(bytes, human string) string {
	if bytes == "0" {
		return "none"
	}
	return strings.TrimSpace(human)
}
