package config

// Minimal is a small configuration file to start from.
const Minimal = `cluster: default
redis: redis://127.0.0.1:6379/0
node:
  http: 127.0.0.1:7948
queues:
  orders:
    shards: 16
    handler: {http: "http://127.0.0.1:9000/orders", timeout: 30s}
  # history:
  #   handler: {exec: [python3, handler.py], processes: 2}
`
