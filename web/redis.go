package web

import (
	"net/http"
	"strconv"
)

// RedisServer is one Redis server. The figures are its own; what it does not say is 0 or "".
type RedisServer struct {
	Address          string `json:"address"`
	Version          string `json:"version"`
	Role             string `json:"role"`
	UptimeDays       int    `json:"uptime_in_days"`
	ConnectedClients int    `json:"connected_clients"`
	UsedMemory       int    `json:"used_memory"` // bytes
	UsedMemoryHuman  string `json:"used_memory_human"`
	PeakMemoryHuman  string `json:"used_memory_peak_human"`
	MaxMemory        int    `json:"maxmemory"` // bytes; 0 = no limit
	MaxMemoryPolicy  string `json:"maxmemory_policy"`
}

// Redis are the Redis servers that hold a cluster's jobs.
type Redis struct {
	URL     string        `json:"url"` // hosts, without credentials
	Servers []RedisServer `json:"servers"`
}

// redis answers what Ruby Lowkiq's dashboard says of Redis, per server.
func (a *api) redis(w http.ResponseWriter, r *http.Request) error {
	found, err := a.client.Info(r.Context())
	if err != nil {
		return err
	}
	servers := make([]RedisServer, len(found))
	for i, one := range found {
		f := one.Fields
		number := func(name string) int { n, _ := strconv.Atoi(f[name]); return n }
		servers[i] = RedisServer{
			Address: one.Address, Version: f["redis_version"], Role: f["role"], UptimeDays: number("uptime_in_days"),
			ConnectedClients: number("connected_clients"), UsedMemory: number("used_memory"), UsedMemoryHuman: f["used_memory_human"],
			PeakMemoryHuman: f["used_memory_peak_human"], MaxMemory: number("maxmemory"), MaxMemoryPolicy: f["maxmemory_policy"],
		}
	}
	return writeJSON(w, Redis{a.client.Redis(), servers})
}
