package xtables

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// ruleOf is a rule of a table that build makes: its comment, and a target: an extension, a verdict, a
// chain, or nothing.
type ruleOf struct {
	comment string
	target  string
}

// chainOf is a chain of it; of a hook if made is false.
type chainOf struct {
	name  string
	made  bool
	rules []ruleOf
}

// build makes a table as libiptc does: hooks' chains first, with their policies at their ends, then
// those that programs have made.
func build(chains ...chainOf) content {
	var c content
	starts := map[string]int{}
	type jump struct {
		verdict int
		to      string
	}
	var jumps []jump
	add := func(matches []byte, name string, rest []byte) (at int) {
		at = len(c.entries)
		target := make([]byte, targetHead, targetHead+len(rest))
		binary.NativeEndian.PutUint16(target, uint16(targetHead+len(rest)))
		copy(target[targetName:], name)
		head := make([]byte, entryLength)
		binary.NativeEndian.PutUint16(head[targetOffset:], uint16(entryLength+len(matches)))
		binary.NativeEndian.PutUint16(head[nextOffset:], uint16(entryLength+len(matches)+len(target)+len(rest)))
		c.entries = slices.Concat(c.entries, head, matches, target, rest)
		c.number++
		return at
	}
	verdict := func(v int) []byte { return binary.NativeEndian.AppendUint64(nil, uint64(uint32(int32(v)))) }
	end := func(name string) {
		b := make([]byte, errorPadded-targetHead)
		copy(b, name)
		add(nil, "ERROR", b)
	}
	for _, chain := range chains {
		if chain.made {
			end(chain.name)
			starts[chain.name] = len(c.entries)
		} else {
			hook := hookOf(chain.name)
			c.validHooks |= 1 << hook
			c.hookEntry[hook] = uint32(len(c.entries))
		}
		for _, r := range chain.rules {
			var matches []byte
			if r.comment != "" {
				matches = make([]byte, commentLength)
				binary.NativeEndian.PutUint16(matches, commentLength)
				copy(matches[targetName:], "comment")
				copy(matches[matchHead:], r.comment)
			}
			switch r.target {
			case "CONNMARK":
				add(matches, r.target, make([]byte, 16))
			case "RETURN":
				add(matches, "", verdict(verdictReturn))
			case "":
				add(matches, "", verdict(len(c.entries)+entryLength+len(matches)+standardLength))
			default:
				at := add(matches, "", verdict(0))
				jumps = append(jumps, jump{at + entryLength + len(matches) + verdictOffset, r.target})
			}
		}
		if chain.made {
			add(nil, "", verdict(verdictReturn))
		} else {
			c.underflow[hookOf(chain.name)] = uint32(len(c.entries))
			add(nil, "", verdict(-2)) // ACCEPT
		}
	}
	end("ERROR")
	for _, j := range jumps {
		binary.NativeEndian.PutUint32(c.entries[j.verdict:], uint32(starts[j.to]))
	}
	return c
}

func hookOf(name string) int {
	for hook := range hooks {
		if hookName(hook) == name {
			return hook
		}
	}
	panic("no hook has the chain " + name)
}

// withForeign is a table of others with chains and rules of AWS's daemon at the begin, in the
// middle and at the end of chains; without is the same table without them.
func withForeign() (with, without content) {
	table := func(foreign bool) content {
		only := func(list ...ruleOf) []ruleOf {
			if foreign {
				return list
			}
			return nil
		}
		chains := []chainOf{
			{"PREROUTING", false, slices.Concat(only(ruleOf{"", "AWS-1"}), []ruleOf{{"portals", "KUBE-1"}, {"counted", ""}}, only(ruleOf{"AWS, CONNMARK", "CONNMARK"}))},
			{"OUTPUT", false, only(ruleOf{"AWS, CONNMARK", ""})},
			{"POSTROUTING", false, slices.Concat([]ruleOf{{"", ""}}, only(ruleOf{"AWS, CONNMARK", "KUBE-2"}, ruleOf{"x", "AWS-2"}), []ruleOf{{"AWS VPN", "KUBE-2"}})},
		}
		if foreign {
			chains = append(chains, chainOf{"AWS-1", true, []ruleOf{{"AWS, CONNMARK", "KUBE-1"}, {"", "AWS-2"}}})
		}
		chains = append(chains, chainOf{"KUBE-1", true, slices.Concat(only(ruleOf{"AWS, CONNMARK", "RETURN"}), []ruleOf{{"", "KUBE-2"}, {"", "CONNMARK"}})})
		if foreign {
			chains = append(chains, chainOf{"AWS-2", true, nil})
		}
		return build(append(chains, chainOf{"KUBE-2", true, only(ruleOf{"", "AWS-1"})})...)
	}
	return table(true), table(false)
}

// foreign is what is removed of it.
func foreign() Foreign {
	return Foreign{
		Chain: func(name string) bool { return strings.HasPrefix(name, "AWS-") },
		Rule:  func(r Rule) bool { return r.Comment == "AWS, CONNMARK" },
	}
}

func (c content) String() string {
	return fmt.Sprintf("hooks %b at %d, policies at %d, %d entries of %d bytes", c.validHooks, c.hookEntry, c.underflow, c.number, len(c.entries))
}

func equal(a, b content) bool { return a.String() == b.String() && bytes.Equal(a.entries, b.entries) }

func TestATableWithoutForeignChainsIsTheOneOfTheOthers(t *testing.T) {
	with, want := withForeign()
	table, err := parseTable(with)
	if err != nil {
		t.Fatal(err)
	}
	got, kept, removed := table.remove(foreign())
	if !equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if chains := []string{"AWS-1", "AWS-2"}; !slices.Equal(removed.Chains, chains) {
		t.Errorf("removed chains %q, want %q", removed.Chains, chains)
	}
	rules := []Rule{
		{"PREROUTING", "", "AWS-1"},
		{"PREROUTING", "AWS, CONNMARK", ""},
		{"OUTPUT", "AWS, CONNMARK", ""},
		{"POSTROUTING", "AWS, CONNMARK", "KUBE-2"},
		{"POSTROUTING", "x", "AWS-2"},
		{"KUBE-1", "AWS, CONNMARK", ""},
		{"KUBE-2", "", "AWS-1"},
	}
	if !slices.Equal(removed.Rules, rules) {
		t.Errorf("removed rules %q, want %q", removed.Rules, rules)
	}
	stay := 0
	for _, k := range kept {
		if k {
			stay++
		}
	}
	if len(kept) != int(with.number) || stay != int(want.number) {
		t.Errorf("%d entries of %d are kept, want %d of %d", stay, len(kept), want.number, with.number)
	}
	again, err := parseTable(got)
	if err != nil {
		t.Fatalf("the new table: %v", err)
	}
	if same, _, removed := again.remove(foreign()); !equal(same, got) || len(removed.Chains)+len(removed.Rules) > 0 {
		t.Errorf("again: %v, removed %v", same, removed)
	}
}

func TestATableThatIsNotAsIptablesWritesItIsAnError(t *testing.T) {
	whole, _ := withForeign()
	if _, err := parseTable(whole); err != nil {
		t.Fatal(err)
	}
	first := int(whole.entries[targetOffset]) // the target of the first rule, a jump
	for name, change := range map[string]func(c *content){
		"no entry":                        func(c *content) { c.entries, c.number = nil, 0 },
		"another number of entries":       func(c *content) { c.number++ },
		"a part of an entry":              func(c *content) { c.entries = c.entries[:len(c.entries)-8] },
		"no end":                          func(c *content) { c.entries, c.number = c.entries[:len(c.entries)-entryLength-errorPadded], c.number-1 },
		"a target in the head":            func(c *content) { binary.NativeEndian.PutUint16(c.entries[targetOffset:], 80) },
		"an entry without a length":       func(c *content) { binary.NativeEndian.PutUint16(c.entries[nextOffset:], 0) },
		"an unaligned entry":              func(c *content) { binary.NativeEndian.PutUint16(c.entries[nextOffset:], 151) },
		"a target without a length":       func(c *content) { binary.NativeEndian.PutUint16(c.entries[first:], 0) },
		"a jump into a chain":             func(c *content) { c.entries[first+verdictOffset]++ },
		"a jump to the first entry":       func(c *content) { binary.NativeEndian.PutUint32(c.entries[first+verdictOffset:], 0) },
		"a jump behind the end":           func(c *content) { binary.NativeEndian.PutUint32(c.entries[first+verdictOffset:], 1<<30) },
		"a hook within a chain":           func(c *content) { c.hookEntry[4] = uint32(first + standardLength) },
		"a hook at no entry":              func(c *content) { c.hookEntry[4] += 8 },
		"one chain of two hooks":          func(c *content) { c.hookEntry[4] = c.hookEntry[0] },
		"a policy at no entry":            func(c *content) { c.underflow[0] += 8 },
		"a policy before its chain":       func(c *content) { c.underflow[3] = 0 },
		"a policy that is a rule":         func(c *content) { c.underflow[0] = 0 },
		"an entry before the first chain": func(c *content) { c.validHooks &^= 1 },
		"a hook without a chain":          func(c *content) { c.validHooks |= 1 << 2; c.hookEntry[2] = 1 << 20 },
		"a comment that is short": func(c *content) {
			at := bytes.Index(c.entries, []byte("comment")) - targetName
			binary.NativeEndian.PutUint16(c.entries[at:], commentLength-8)
		},
		"a match longer than its entry": func(c *content) {
			at := bytes.Index(c.entries, []byte("comment")) - targetName
			binary.NativeEndian.PutUint16(c.entries[at:], 1<<15)
		},
		"a chain without a return": func(c *content) {
			at := len(c.entries) - entryLength - errorPadded - standardLength
			binary.NativeEndian.PutUint32(c.entries[at+verdictOffset:], uint32(0xfffffffe))
		},
		"two chains of one name": func(c *content) { copy(c.entries[bytes.Index(c.entries, []byte("KUBE-2")):], "KUBE-1") },
		"a chain without a name": func(c *content) { clear(c.entries[bytes.Index(c.entries, []byte("KUBE-2")):][:8]) },
	} {
		broken := whole
		broken.entries = slices.Clone(whole.entries)
		if change(&broken); equal(broken, whole) {
			t.Errorf("%s: nothing is changed", name)
		}
		if table, err := parseTable(broken); err == nil {
			t.Errorf("%s: %v", name, table.list)
		}
	}
}

// FuzzRemove changes bytes of a table. What is accepted stays acceptable without the foreign part,
// and every entry that is kept stays as it was, but for offsets.
func FuzzRemove(f *testing.F) {
	whole, _ := withForeign()
	f.Add(0, byte(0), uint8(0))
	f.Add(targetOffset, byte(8), uint8(1))
	f.Add(entryLength+verdictOffset, byte(8), uint8(4))
	f.Fuzz(func(t *testing.T, at int, value byte, hook uint8) {
		c := whole
		c.entries = slices.Clone(whole.entries)
		if at >= 0 && at < len(c.entries) {
			c.entries[at] = value
		}
		c.hookEntry[hook%hooks] += uint32(hook / hooks * 8)
		table, err := parseTable(c)
		if err != nil {
			return
		}
		got, kept, _ := table.remove(foreign())
		after, err := parseTable(got)
		if err != nil {
			t.Fatalf("the table without the foreign part: %v", err)
		}
		if bits.OnesCount32(got.validHooks) != bits.OnesCount32(c.validHooks) {
			t.Errorf("hooks %b, want %b", got.validHooks, c.validHooks)
		}
		next := 0
		for i, e := range table.list {
			if !kept[i] {
				continue
			}
			if n := after.list[next]; n.rule != e.rule || n.length != e.length || n.head != e.head || n.fixed != e.fixed {
				t.Errorf("%v is %v", e, n)
			}
			next++
		}
		if next != len(after.list) {
			t.Errorf("%d entries, want %d", len(after.list), next)
		}
	})
}

// FuzzParseTable reads any bytes.
func FuzzParseTable(f *testing.F) {
	whole, others := withForeign()
	f.Add(whole.entries, whole.number, whole.validHooks)
	f.Add(others.entries, others.number, others.validHooks)
	f.Fuzz(func(t *testing.T, b []byte, number, valid uint32) {
		c := content{validHooks: valid, hookEntry: whole.hookEntry, underflow: whole.underflow, number: number, entries: b}
		table, err := parseTable(c)
		if err != nil {
			return
		}
		if same := table.without(func(entry) bool { return false }); valid < 1<<hooks && !bytes.Equal(same.entries, b) {
			t.Error("nothing is dropped, and the table differs")
		}
	})
}

func TestTheLockOfIptablesIsTakenAndWaitedForWithALimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xtables.lock")
	if _, err := lock(t.Context(), path); err == nil || !strings.Contains(err.Error(), "not mounted") {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		unlock, err := lock(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := lock(t.Context(), path); err == nil || !strings.Contains(err.Error(), path) || time.Since(began) != lockWait {
			t.Errorf("while it is held: %v after %v, want an error after %v", err, time.Since(began), lockWait)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := lock(cancelled, path); err == nil {
			t.Error("a cancelled call has the lock")
		}
		time.AfterFunc(lockWait/2, unlock)
		again, err := lock(t.Context(), path)
		if err != nil || time.Since(began) >= 2*lockWait {
			t.Fatalf("after the other has ended: %v after %v", err, time.Since(began))
		}
		other, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			t.Error("the lock is not held")
		}
		again()
	})
}
