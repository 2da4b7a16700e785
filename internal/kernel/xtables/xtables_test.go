package xtables

import (
	"encoding/binary"
	"slices"
	"testing"
)

// oneEntry is one of a table: the beginning of a chain if it has a name, else a rule with the
// target ACCEPT.
func oneEntry(chain string) []byte {
	length := entryLength + 40 // struct xt_standard_target
	if chain != "" {
		length = entryLength + 64 // struct xt_error_target, padded to 8 bytes
	}
	b := make([]byte, length)
	binary.NativeEndian.PutUint16(b[targetOffset:], entryLength)
	binary.NativeEndian.PutUint16(b[nextOffset:], uint16(length))
	binary.NativeEndian.PutUint16(b[entryLength:], uint16(length-entryLength))
	if chain != "" {
		copy(b[entryLength+targetName:], "ERROR")
		copy(b[entryLength+errorName:], chain)
	}
	return b
}

// table has rules of a built-in chain, two chains and the table's end.
func table() []byte {
	return slices.Concat(oneEntry(""), oneEntry(""), oneEntry("AWS-SNAT-CHAIN-0"), oneEntry(""), oneEntry("KUBE-SERVICES"), oneEntry(""), oneEntry("ERROR"))
}

func TestTheChainsOfATableAreThoseThatProgramsMade(t *testing.T) {
	got, err := parse(table())
	if want := []string{"AWS-SNAT-CHAIN-0", "KUBE-SERVICES"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if got, err := parse(nil); err != nil || len(got) > 0 {
		t.Errorf("of no entry: %q, %v", got, err)
	}
}

func TestATruncatedOrBrokenTableIsAnError(t *testing.T) {
	whole := table()
	ends := map[int]bool{0: true}
	for at := 0; at < len(whole); {
		at += int(binary.NativeEndian.Uint16(whole[at+nextOffset:]))
		ends[at] = true
	}
	for length := range whole {
		if got, err := parse(whole[:length]); !ends[length] && err == nil {
			t.Errorf("%d bytes: %q", length, got)
		}
	}
	for name, at := range map[string]int{"an entry without a length": nextOffset, "a target in the entry's head": targetOffset} {
		broken := slices.Clone(whole)
		binary.NativeEndian.PutUint16(broken[at:], 0)
		if got, err := parse(broken); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(table())
	f.Add(table()[:200])
	f.Fuzz(func(t *testing.T, b []byte) {
		chains, err := parse(b)
		if err != nil && len(chains) > 0 {
			t.Errorf("%q and %v", chains, err)
		}
		if len(chains) > len(b)/entryLength {
			t.Errorf("%d chains in %d bytes", len(chains), len(b))
		}
		for _, c := range chains {
			if len(c) >= errorLength-errorName+1 {
				t.Errorf("chain %q is longer than the kernel's", c)
			}
		}
	})
}
