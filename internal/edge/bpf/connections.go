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

// TicksOf returns how many whole ticks a duration has: units of 2^30 ns, in which the programs keep
// when a connection was seen.
func TicksOf(d time.Duration) uint32 { return uint32(d >> 30) }

// timeoutOf returns how long an entry without packets is valid.
func timeoutOf(protocol uint8, c Connection) time.Duration {
	switch {
	case c.Revoked == 1:
		return timeoutRevoked
	case protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_SCTP:
		switch c.State {
		case Established:
			return timeoutTCPEstablished
		case Closing:
			return timeoutTCPClosing
		default:
			return timeoutTCPOpening
		}
	case protocol == unix.IPPROTO_UDP && c.State == Established:
		return timeoutUDPEstablished
	case protocol == unix.IPPROTO_UDP:
		return timeoutUDPOpening
	case protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6:
		return timeoutICMP
	}
	return timeoutOther
}

// validFor returns in how many ticks an entry without packets expires.
func validFor(protocol uint8, c Connection) uint32 { return TicksOf(timeoutOf(protocol, c)) + 1 }

// Occupancy is how full the connection table is. When it is full, the kernel deletes the entries
// that were used least recently.
type Occupancy struct {
	Valid   int // entries that have not expired
	Deleted int // expired entries that this pass deleted
	Size    int // of the table
}

// CollectConnections deletes the entries of a table that have expired: the programs ignore them, but
// they would take the place of others. One that is used again meanwhile may be deleted as well, as
// where the table is full.
func CollectConnections(table Map[ConnectionKey, Connection]) (Occupancy, error) {
	o := Occupancy{Size: int(table.m.MaxEntries())}
	now, err := Monotonic()
	if err != nil {
		return o, err
	}
	var expired []ConnectionKey
	ticks := TicksOf(now)
	err = table.batches(func(keys []ConnectionKey, values []Connection) error {
		for i, c := range values {
			age := int32(ticks - c.Seen) // negative: seen since
			if age < int32(validFor(keys[i].Protocol, c)) {
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
		if err := table.Delete(key); err != nil {
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
