package node

import (
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/node/internal/lease"
)

// LeaseInfo is what a lease says of its instance.
type LeaseInfo = identity.Lease

var sinceBoot = lease.SinceBoot
