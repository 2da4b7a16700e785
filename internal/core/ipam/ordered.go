package ipam

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// timed is an entry of a list of addresses that byTime orders.
type timed struct {
	at   time.Time
	addr netip.Addr
}

func byTime(a, b timed) int { return cmp.Or(a.at.Compare(b.at), a.addr.Compare(b.addr)) }

// insert adds x to an ordered list that does not have it.
func insert[T any](list []T, x T, compare func(a, b T) int) []T {
	i, _ := slices.BinarySearchFunc(list, x, compare)
	return slices.Insert(list, i, x)
}

// remove removes x from an ordered list that has it.
func remove[T any](list []T, x T, compare func(a, b T) int) []T {
	i, _ := slices.BinarySearchFunc(list, x, compare)
	return slices.Delete(list, i, i+1)
}
