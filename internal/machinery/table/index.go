package table

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Index finds rows of T by keys of type K. Make one with By or ByEach, give it to
// Register in a Schema, and query the table with what Query and From return. An
// Index is a value without state: a function that returns one may be called for
// every query.
type Index[T, K any] struct {
	spec   indexSpec[T]
	encode func(b []byte, key K) []byte
}

// Indexer is an Index of rows of T by keys of any type.
type Indexer[T any] interface {
	index() indexSpec[T]
}

// indexSpec is an Index without its key type.
type indexSpec[T any] struct {
	name   string
	unique bool
	many   bool
	keys   func(row T) [][]byte
	text   func(row T) string // the key, for people
}

// By is an index with one key for each row. encode is one of String, Number, Addr,
// Prefix and Encoded, or joins several of them for a key of several parts.
func By[T, K any](name string, key func(row T) K, encode func(b []byte, key K) []byte) Index[T, K] {
	return Index[T, K]{
		spec: indexSpec[T]{
			name: name,
			keys: func(row T) [][]byte { return [][]byte{encode(nil, key(row))} },
			text: func(row T) string { return fmt.Sprint(key(row)) },
		},
		encode: encode,
	}
}

// ByEach is an index with any number of keys for each row: each of them finds it.
func ByEach[T, K any](name string, keys func(row T) []K, encode func(b []byte, key K) []byte) Index[T, K] {
	return Index[T, K]{
		spec: indexSpec[T]{
			name: name,
			many: true,
			keys: func(row T) (encoded [][]byte) {
				for _, k := range keys(row) {
					encoded = append(encoded, encode(nil, k))
				}
				return encoded
			},
			text: func(row T) string { return fmt.Sprint(keys(row)) },
		},
		encode: encode,
	}
}

// Unique is the index with at most one row for each key: Insert of a second one
// returns ErrConflict.
func (x Index[T, K]) Unique() Index[T, K] {
	x.spec.unique = true
	return x
}

func (x Index[T, K]) index() indexSpec[T] { return x.spec }

// Query finds the rows that have a key: in a non-unique index in the order of
// their primary keys.
func (x Index[T, K]) Query(key K) Query[T] {
	return Query[T]{index: x.spec.name, key: x.encode(nil, key), kind: exact}
}

// From finds the rows with this key or a greater one, in the order of the index.
func (x Index[T, K]) From(key K) Query[T] {
	return Query[T]{index: x.spec.name, key: x.encode(nil, key), kind: from}
}

// Query is a question to a table. The zero Query finds every row, in the order of
// the primary keys.
type Query[T any] struct {
	index string
	key   []byte
	kind  queryKind
}

type queryKind uint8

const (
	every queryKind = iota
	exact
	from
)

// Encoders append a key to b so that encoded keys compare, byte by byte, as the
// keys do and none begins with another one. Encoders joined one after another keep
// both properties.

// String encodes strings, ordered by bytes.
func String[K ~string](b []byte, key K) []byte {
	b = slices.Grow(b, len(key)+1)
	for i := range len(key) {
		if c := key[i]; c > 1 {
			b = append(b, c)
		} else {
			b = append(b, 1, c+1) // zero ends the string
		}
	}
	return append(b, 0)
}

// Number encodes integers, ordered by value.
func Number[K ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64](b []byte, key K) []byte {
	n := uint64(key)
	if zero := K(0); zero-1 < zero { // signed: negative numbers first
		n ^= 1 << 63
	}
	return binary.BigEndian.AppendUint64(b, n)
}

// Addr encodes addresses as netip.Addr.Compare orders them: the invalid one, IPv4,
// IPv6.
func Addr(b []byte, key netip.Addr) []byte {
	b = append(b, byte(key.BitLen()))
	if !key.IsValid() {
		return b
	}
	zone := key.Zone()
	b = append(b, key.WithZone("").AsSlice()...)
	if key.Is4() {
		return b
	}
	return String(b, zone)
}

// Prefix encodes prefixes, ordered by address and then by length.
func Prefix(b []byte, key netip.Prefix) []byte {
	return append(Addr(b, key.Addr()), byte(key.Bits()+1))
}

// Encoded encodes the primary keys of another table, in its order.
func Encoded(b []byte, key Key) []byte { return append(b, key...) }

// Key is a row's encoded primary key: comparable, and ordered as the table is. It is
// not for people; see Table.KeyText.
type Key string
