package bpf

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Timeouts of connections without packets, as in bpf/connection.h; a test compares them.
const (
	timeoutTCPOpening     = 60 * time.Second
	timeoutTCPEstablished = 2 * time.Hour
	timeoutTCPClosing     = 30 * time.Second
	timeoutRevoked        = 5 * time.Minute
	timeoutUDPOpening     = 30 * time.Second
	timeoutUDPEstablished = 3 * time.Minute
	timeoutICMP           = 30 * time.Second
	timeoutOther          = 10 * time.Minute
)

// timeoutOf returns how long an entry without packets is valid.
func timeoutOf(protocol uint8, state ConnectionState) time.Duration {
	switch {
	case state == Revoked:
		return timeoutRevoked
	case protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_SCTP:
		switch state {
		case Established:
			return timeoutTCPEstablished
		case Closing:
			return timeoutTCPClosing
		default:
			return timeoutTCPOpening
		}
	case protocol == unix.IPPROTO_UDP && state == Established:
		return timeoutUDPEstablished
	case protocol == unix.IPPROTO_UDP:
		return timeoutUDPOpening
	case protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6:
		return timeoutICMP
	}
	return timeoutOther
}

// Occupancy is how full the connection table is. When it is full, the kernel deletes the entries
// that were used least recently.
type Occupancy struct {
	Valid   int // entries that have not expired
	Deleted int // expired entries that this pass deleted
	Size    int // of the table
}

// CollectConnections deletes the entries that have expired: the programs ignore them, but they
// would take the place of others.
func (d *Datapath) CollectConnections() (Occupancy, error) {
	o := Occupancy{Size: int(d.Maps.Connections.m.MaxEntries())}
	now, err := Monotonic()
	if err != nil {
		return o, err
	}
	var expired []ConnectionKey
	seconds := uint32(now / time.Second)
	err = d.Maps.Connections.batches(func(keys []ConnectionKey, values []Connection) error {
		for i, c := range values {
			age := time.Duration(int32(seconds-c.Seen)) * time.Second // negative: seen since
			if age < timeoutOf(keys[i].Protocol, c.State) {
				o.Valid++
			} else {
				expired = append(expired, keys[i])
			}
		}
		return nil
	})
	if err != nil {
		return o, fmt.Errorf("collect connections: %w", err)
	}
	for _, key := range expired {
		if err := d.Maps.Connections.Delete(key); err != nil {
			return o, fmt.Errorf("collect connections: %w", err)
		}
		o.Deleted++
	}
	return o, nil
}

// Monotonic returns the time of CLOCK_MONOTONIC, which flow records and connections have.
func Monotonic() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
