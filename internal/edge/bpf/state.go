package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// What the kernel returns when a map is full: hashes and tries.
const (
	errTooBig  = unix.E2BIG
	errNoSpace = unix.ENOSPC
)

// State is the maps that are memory of this process too: a store is in force with the next packet.
type State struct {
	endpoints, state []byte
}

func newState(raw map[string]*ebpf.Map) (s *State, err error) {
	s = &State{}
	if s.endpoints, err = mapped(raw["tl_endpoints"]); err != nil {
		return nil, err
	}
	if s.state, err = mapped(raw["tl_state"]); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func mapped(m *ebpf.Map) ([]byte, error) {
	page := os.Getpagesize()
	size := (int(m.MaxEntries())*int(m.ValueSize()) + page - 1) / page * page
	b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s into memory: %w", m, err)
	}
	return b, nil
}

func (s *State) close() error {
	var errs []error
	for _, b := range [][]byte{s.endpoints, s.state} {
		if b != nil {
			errs = append(errs, unix.Munmap(b))
		}
	}
	return errors.Join(errs...)
}

// endpointSize is that of struct endpoint.
const endpointSize = 8

func (s *State) endpoint(id endpoint.ID) *atomic.Uint64 {
	id &= endpoint.MaxID // callers use IDs of core/endpoint, which are in range
	return (*atomic.Uint64)(unsafe.Pointer(&s.endpoints[int(id)*endpointSize]))
}

// SetInForce switches an endpoint to a set, by one store. What the set consists of must be written
// before.
func (s *State) SetInForce(id endpoint.ID, set uint32) { s.endpoint(id).Store(uint64(set)) }

// InForce returns the set in force at an endpoint.
func (s *State) InForce(id endpoint.ID) uint32 { return uint32(s.endpoint(id).Load()) }

func (s *State) word(offset int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&s.state[offset]))
}

// NextEpoch has connections judged again: after the class of an address has changed.
func (s *State) NextEpoch() uint32 { return s.word(0).Add(1) }

// Epoch returns the epoch by which connections are judged.
func (s *State) Epoch() uint32 { return s.word(0).Load() }

// LogFlows sets what the flow log has: 0 nothing, 1 denies, n > 1 also one of n first accepts.
func (s *State) LogFlows(n uint32) { s.word(4).Store(n) }

// FlowLog returns what LogFlows has set.
func (s *State) FlowLog() uint32 { return s.word(4).Load() }
