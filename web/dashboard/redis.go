package dashboard

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
)

// redisBody is the page about Redis.
type redisBody struct {
	Address string
	Servers []serverView
}

// serverView is a Redis server.
type serverView struct {
	Address string
	Groups  []factGroup
}

type factGroup struct {
	Title string
	Facts []fact
}

// fact is a name and a value. Class marks values that an operator should check.
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

// serverOf returns the facts about a server. The class bad marks what an operator must mend. The class warn marks what an
// operator should look at.
func serverOf(info protocol.Server) serverView {
	f := info.Fields
	return serverView{Address: info.Address, Groups: []factGroup{
		{"Server", knownFacts(fact{"Version", f["redis_version"], ""}, fact{"Mode", f["redis_mode"], ""}, fact{"Role", f["role"], ""},
			fact{"Uptime", formatUptime(f["uptime_in_seconds"]), ""}, fact{"System", f["os"], ""})},
		{"Work", knownFacts(fact{"Commands per second", formatNumber(f["instantaneous_ops_per_sec"]), ""}, fact{"Commands so far", formatNumber(f["total_commands_processed"]), ""},
			fact{"Clients", formatNumber(f["connected_clients"]), ""}, fact{"Clients waiting", formatNumber(f["blocked_clients"]), ""},
			fact{"Refused connections", formatNumber(f["rejected_connections"]), classIf(f["rejected_connections"] != "0", "warn")})},
		{"Memory", knownFacts(fact{"Used", f["used_memory_human"], ""}, fact{"At most so far", f["used_memory_peak_human"], ""},
			fact{"Limit", formatMemoryLimit(f["maxmemory"], f["maxmemory_human"]), ""}, fact{"Fragmentation", f["mem_fragmentation_ratio"], ""},
			fact{"When full", f["maxmemory_policy"], classIf(f["maxmemory_policy"] != "noeviction", "bad")},
			fact{"Evicted keys", formatNumber(f["evicted_keys"]), classIf(f["evicted_keys"] != "0", "bad")})},
		{"Persistence", knownFacts(fact{"Append-only file", onOff(f["aof_enabled"]), classIf(f["aof_enabled"] == "0", "warn")},
			fact{"Last AOF write", f["aof_last_write_status"], classIf(f["aof_last_write_status"] != "ok", "bad")},
			fact{"Last snapshot", f["rdb_last_bgsave_status"], classIf(f["rdb_last_bgsave_status"] != "ok", "bad")},
			fact{"Snapshot made", formatSince(f["rdb_last_save_time"]), ""}, fact{"Changes since", formatNumber(f["rdb_changes_since_last_save"]), ""})},
		{"Replication", knownFacts(fact{"Replicas", formatNumber(f["connected_slaves"]), ""}, fact{"Master", f["master_host"], ""},
			fact{"Link to the master", f["master_link_status"], classIf(f["master_link_status"] != "up", "bad")})},
	}}
}

// knownFacts leaves out facts without a value.
func knownFacts(all ...fact) []fact {
	var some []fact
	for _, f := range all {
		if f.Value != "" {
			some = append(some, f)
		}
	}
	return some
}

func classIf(mark bool, class string) string {
	if mark {
		return class
	}
	return ""
}

func formatNumber(text string) string {
	if n, err := strconv.Atoi(text); err == nil {
		return formatCount(n)
	}
	return text
}

func onOff(text string) string {
	return map[string]string{"0": "off", "1": "on"}[text]
}

func formatUptime(text string) string {
	seconds, err := strconv.Atoi(text)
	if err != nil {
		return ""
	}
	return formatLag(time.Duration(seconds) * time.Second)
}

func formatSince(text string) string {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds == 0 {
		return ""
	}
	return formatClock(time.Unix(seconds, 0)) + " UTC"
}

func formatMemoryLimit(bytes, human string) string {
	if bytes == "0" {
		return "none"
	}
	return strings.TrimSpace(human)
}
