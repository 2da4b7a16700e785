package nfnetlink

import (
	"encoding/binary"
	"fmt"
	"slices"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

func (c *Conn) readSets(name nftables.TableName) ([]nftables.Set, error) {
	replies, err := c.dump(unix.NFT_MSG_GETSET, name, text(unix.NFTA_SET_TABLE, name.Name))
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	var sets []nftables.Set
	for _, m := range replies {
		s, err := decodeSet(m)
		if err != nil {
			return nil, fmt.Errorf("list sets: %w", err)
		}
		if s.anonymous {
			continue // part of a rule that is not ours
		}
		if s.Elements, err = c.readElements(name, s.Set, s.count); err != nil {
			return nil, err
		}
		sets = append(sets, s.Set)
	}
	return sets, nil
}

// setVerdict is the type of the values of verdict maps (NFT_DATA_VERDICT).
const setVerdict = 0xffffff00

// Flags that the kernel's headers have and the unix package has not.
const (
	setConcat = 0x80
	setExpr   = 0x100
)

// Attributes of a set that the unix package has not: what its elements have besides
// their data, one expression or several, and their number (Linux 6.16).
const (
	attrSetExpr        = 0x11
	attrSetExpressions = 0x12
	attrSetCount       = 0x14
)

// set is a set in the kernel.
type set struct {
	nftables.Set
	anonymous bool
	count     uint32 // of elements, 0 if the kernel does not report it
}

func decodeSet(m netlink.Message) (s set, err error) {
	attrs, err := attributes(m)
	if err != nil {
		return s, err
	}
	var flags uint32
	element := "" // the expression in each element
	for attrs.Next() {
		switch attrs.Type() {
		case unix.NFTA_SET_NAME:
			s.Name = attrs.String()
		case unix.NFTA_SET_FLAGS:
			flags = attrs.Uint32()
		case unix.NFTA_SET_KEY_TYPE:
			s.Key = typesOf(attrs.Uint32())
		case unix.NFTA_SET_DATA_TYPE:
			s.Value = typesOf(attrs.Uint32())
		case attrSetExpr:
			attrs.Nested(func(e *netlink.AttributeDecoder) error {
				element = expressionName(e)
				return e.Err()
			})
		case attrSetCount:
			s.count = attrs.Uint32()
		case attrSetExpressions:
			element = "several expressions"
		}
	}
	s.anonymous = flags&unix.NFT_SET_ANONYMOUS != 0
	s.Interval = flags&unix.NFT_SET_INTERVAL != 0
	s.Counter = element == "counter"
	s.Foreign = foreign(flags, element)
	if s.Interval {
		s.count = 0 // of ranges, while their bounds are listed; such sets are not moved
	}
	return s, attrs.Err()
}

// foreign names what package nftables does not describe of a set's properties.
func foreign(flags uint32, element string) string {
	const described = unix.NFT_SET_ANONYMOUS | unix.NFT_SET_INTERVAL | unix.NFT_SET_MAP | setConcat | setExpr
	switch {
	case element != "" && element != "counter":
		return element + " in each element"
	case flags&^described != 0:
		return fmt.Sprintf("flags 0x%x", flags&^described)
	default:
		return ""
	}
}

func expressionName(e *netlink.AttributeDecoder) (name string) {
	for e.Next() {
		if e.Type() == unix.NFTA_EXPR_NAME {
			name = e.String()
		}
	}
	return name
}

// typesOf takes the number of a concatenation apart: six bits for each type, the last
// lowest.
func typesOf(number uint32) (types []nftables.Type) {
	if number == setVerdict {
		return []nftables.Type{nftables.TypeVerdict}
	}
	for ; number != 0; number >>= nft.SetConcatTypeBits {
		types = append(types, nftables.Type(number&nft.SetConcatTypeMask))
	}
	slices.Reverse(types)
	return types
}

// listElements lists the elements of a set. The kernel moves those of a set that grew
// to a larger table in the background, and a list meanwhile may have some twice and
// lack others; count, if it is not 0, is how many there are.
func (c *Conn) listElements(name nftables.TableName, set string, count uint32) ([]nft.SetElement, error) {
	t, err := tableOf(name)
	if err != nil {
		return nil, err
	}
	for range readRounds {
		found, err := c.batch.GetSetElements(&nft.Set{Table: t, Name: set})
		if err != nil {
			return nil, fmt.Errorf("list elements of set %s: %w", set, err)
		}
		if !repeats(found) && (count == 0 || int(count) == len(found)) {
			return found, nil
		}
	}
	return nil, fmt.Errorf("list elements of set %s: %w", set, ErrChanged)
}

func repeats(list []nft.SetElement) bool {
	type key struct {
		first string
		end   bool
	}
	seen := make(map[key]bool, len(list))
	for _, e := range list {
		k := key{string(e.Key), e.IntervalEnd}
		if seen[k] {
			return true
		}
		seen[k] = true
	}
	return false
}

func (c *Conn) readElements(name nftables.TableName, s nftables.Set, count uint32) ([]nftables.Element, error) {
	found, err := c.listElements(name, s.Name, count)
	if err != nil {
		return nil, err
	}
	if s.Interval && len(s.Key) == 1 {
		return pairRanges(found), nil
	}
	elements := make([]nftables.Element, len(found))
	for i, f := range found {
		e := nftables.Element{Key: nftables.Data(f.Key), Last: nftables.Data(f.KeyEnd)}
		if s.Interval && e.Last == "" {
			e.Last = e.Key
		}
		if slices.Equal(s.Value, []nftables.Type{nftables.TypeVerdict}) {
			if e.Verdict, err = decodeVerdict(f.Val); err != nil {
				return nil, fmt.Errorf("verdict in map %s: %w", s.Name, err)
			}
		} else {
			e.Value = nftables.Data(f.Val)
		}
		elements[i] = e
	}
	return elements, nil
}

// pairRanges joins the starts and ends of ranges. The kernel may add an end of its
// own before the first start.
func pairRanges(found []nft.SetElement) (ranges []nftables.Element) {
	slices.SortFunc(found, func(a, b nft.SetElement) int {
		if c := slices.Compare(a.Key, b.Key); c != 0 || a.IntervalEnd == b.IntervalEnd {
			return c
		}
		if a.IntervalEnd { // the end of one range before the start of the next
			return -1
		}
		return 1
	})
	open := false
	for _, f := range found {
		last := len(ranges) - 1
		switch {
		case f.IntervalEnd && open:
			ranges[last].Last = nftables.Data(previous(f.Key))
			open = false
		case !f.IntervalEnd:
			if open { // it touches the next one
				ranges[last].Last = nftables.Data(previous(f.Key))
			}
			ranges = append(ranges, nftables.Element{
				Key: nftables.Data(f.Key), Last: nftables.Data(slices.Repeat([]byte{0xff}, len(f.Key))), Value: nftables.Data(f.Val),
			})
			open = true
		}
	}
	return ranges
}

// previous is the value before one that is not zero.
func previous(b []byte) []byte {
	before := slices.Clone(b)
	for i := len(before) - 1; i >= 0; i-- {
		before[i]--
		if before[i] != 0xff {
			break
		}
	}
	return before
}

// decodeVerdict reads the value of a verdict map.
func decodeVerdict(b []byte) (v nftables.Verdict, err error) {
	attrs, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return v, err
	}
	attrs.ByteOrder = binary.BigEndian
	for attrs.Next() {
		switch attrs.Type() {
		case unix.NFTA_VERDICT_CODE:
			v.Kind = verdictName(expr.VerdictKind(int32(attrs.Uint32())))
		case unix.NFTA_VERDICT_CHAIN:
			v.Chain = attrs.String()
		}
	}
	return v, attrs.Err()
}

// Count is what matched an element since it was added.
type Count struct{ Packets, Bytes uint64 }

// Counts reads the counters of a set's elements, by key.
func (c *Conn) Counts(name nftables.TableName, set string) (map[nftables.Data]Count, error) {
	found, err := c.listElements(name, set, 0)
	if err != nil {
		return nil, err
	}
	counts := make(map[nftables.Data]Count, len(found))
	for _, e := range found {
		if e.Counter != nil {
			counts[nftables.Data(e.Key)] = Count{e.Counter.Packets, e.Counter.Bytes}
		}
	}
	return counts, nil
}
