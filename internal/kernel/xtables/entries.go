package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Structures of linux/netfilter/x_tables.h and linux/netfilter/xt_comment.h.
const (
	targetHead     = 32              // struct xt_entry_target: the size, the name, the revision
	matchHead      = 32              // struct xt_entry_match: the size, the name, the revision
	commentLength  = matchHead + 256 // with struct xt_comment_info
	standardLength = 40              // struct xt_standard_target: a head of 32 bytes, a verdict, padding
	verdictOffset  = 32
	errorPadded    = 64 // struct xt_error_target, padded to 8 bytes
	verdictReturn  = -5 // XT_RETURN
)

// entry is one of a table, at an offset.
type entry struct {
	at, length int
	verdict    int  // offset within the table's bytes of the verdict; 0 if the target is another
	jump       int  // offset of the entry that it leads to; 0 if the verdict leads to none
	head       bool // the beginning of a chain that a program has made
	fixed      bool // a chain's beginning or its last entry, which only the whole chain can lose
	rule       Rule
}

// parsed is a table with the chain of each of its entries.
type parsed struct {
	content
	list []entry
}

// parser reads the entries of a table in their order.
type parser struct {
	content
	starts  map[int]int    // hook by the offset of its chain's first entry
	chains  map[int]string // of programs, by the offset of the first entry after the chain's beginning
	list    []entry
	chain   string // of the entries that follow; empty between chains
	until   int    // offset of the policy, if chain is a hook's
	policy  bool   // chain is a hook's
	entered int    // hooks
}

// parseTable reads every entry of a table. A table that is not as iptables-legacy writes it is an
// error, so that no other is replaced. Source: libiptc/libiptc.c (parse_table) of iptables.
func parseTable(c content) (parsed, error) {
	p := parser{content: c, starts: map[int]int{}, chains: map[int]string{}}
	for hook := range hooks {
		if c.validHooks&(1<<hook) != 0 {
			p.starts[int(c.hookEntry[hook])] = hook
		}
	}
	for at := 0; at < len(c.entries); {
		e, err := p.next(at)
		if err != nil {
			return parsed{}, fmt.Errorf("the entry at %d: %w", at, err)
		}
		p.list = append(p.list, e)
		at += e.length
	}
	if len(p.list) != int(c.number) || len(p.list) == 0 || p.chain != "" || !p.list[len(p.list)-1].head {
		return parsed{}, fmt.Errorf("%d entries of %d are read, and the last one is not the end of a table", len(p.list), c.number)
	}
	if want := bits.OnesCount32(c.validHooks); p.entered != want {
		return parsed{}, fmt.Errorf("%d chains of hooks of %d are found", p.entered, want)
	}
	return parsed{c, p.list}, p.resolve()
}

// next reads the entry at an offset.
func (p *parser) next(at int) (entry, error) {
	b := p.entries[at:]
	if len(b) < entryLength {
		return entry{}, fmt.Errorf("%d bytes of %d", len(b), entryLength)
	}
	target, length := int(binary.NativeEndian.Uint16(b[targetOffset:])), int(binary.NativeEndian.Uint16(b[nextOffset:]))
	if target < entryLength || length < target+targetHead || length > len(b) || target%8 != 0 || length%8 != 0 {
		return entry{}, fmt.Errorf("%d bytes follow, its target begins at %d and it ends at %d", len(b), target, length)
	}
	size := int(binary.NativeEndian.Uint16(b[target:]))
	if size < targetHead || size > length-target {
		return entry{}, fmt.Errorf("its target has %d bytes of %d", size, length-target)
	}
	comment, err := commentOf(b[entryLength:target])
	if err != nil {
		return entry{}, err
	}
	e := entry{at: at, length: length, rule: Rule{Comment: comment}}
	switch name := text(b[target+targetName : target+errorName-1]); {
	case name == "ERROR":
		err = p.enter(&e, target, length)
		return e, err
	case name == "" && length-target != standardLength:
		return entry{}, fmt.Errorf("its verdict has %d bytes, want %d", length-target, standardLength)
	case name == "":
		e.verdict = at + target + verdictOffset
	}
	err = p.place(&e)
	return e, err
}

// commentOf returns the text of the match comment, and checks the sizes of all matches.
func commentOf(matches []byte) (comment string, err error) {
	for len(matches) > 0 {
		if len(matches) < matchHead {
			return "", fmt.Errorf("a match has %d bytes of %d", len(matches), matchHead)
		}
		size := int(binary.NativeEndian.Uint16(matches))
		if size < matchHead || size > len(matches) {
			return "", fmt.Errorf("a match has %d bytes, and %d follow", size, len(matches))
		}
		if text(matches[targetName:matchHead-1]) == "comment" {
			if size != commentLength {
				return "", fmt.Errorf("a comment has %d bytes, want %d", size, commentLength)
			}
			comment = text(matches[matchHead:size])
		}
		matches = matches[size:]
	}
	return comment, nil
}

// enter reads the beginning of a chain that a program has made, or the end of the table.
func (p *parser) enter(e *entry, target, length int) error {
	if target != entryLength || length-target != errorPadded {
		return fmt.Errorf("the beginning of a chain has %d bytes with its target at %d", length, target)
	}
	if p.policy {
		return fmt.Errorf("a chain begins within the chain %s", p.chain)
	}
	if err := p.leave(); err != nil {
		return err
	}
	at := e.at + target
	name := text(p.entries[at+errorName : at+errorLength])
	e.head, e.fixed = true, true
	if e.at+length == len(p.entries) {
		p.chain = ""
		return nil
	}
	for _, c := range p.chains {
		if c == name {
			return fmt.Errorf("the chain %s begins twice", name)
		}
	}
	if name == "" {
		return errors.New("a chain has no name")
	}
	e.rule.Chain, p.chain = name, name
	p.chains[e.at+length] = name
	return nil
}

// leave checks the last entry of a chain that a program has made: without a match, it returns.
func (p *parser) leave() error {
	if p.chain == "" {
		return nil
	}
	last := &p.list[len(p.list)-1]
	if last.head || last.length != entryLength+standardLength || p.verdict(*last) != verdictReturn {
		return fmt.Errorf("the chain %s before it does not end with a return", p.chain)
	}
	last.fixed = true
	return nil
}

// place finds the chain of a rule.
func (p *parser) place(e *entry) error {
	if hook, ok := p.starts[e.at]; ok {
		if p.chain != "" {
			return fmt.Errorf("the chain of hook %d begins within the chain %s", hook, p.chain)
		}
		p.chain, p.until, p.policy = hookName(hook), int(p.underflow[hook]), true
		p.entered++
	}
	if p.chain == "" {
		return errors.New("it is of no chain")
	}
	e.rule.Chain = p.chain
	switch {
	case !p.policy || e.at < p.until:
		return nil
	case e.at > p.until || e.length != entryLength+standardLength || p.verdict(*e) >= 0:
		return fmt.Errorf("the chain %s has no policy at %d", p.chain, p.until)
	}
	e.fixed, p.chain, p.policy = true, "", false
	return nil
}

// verdict is that of a standard target: an offset, or less than 0; 0 if the target is another.
func (c content) verdict(e entry) int {
	if e.verdict == 0 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(c.entries[e.verdict:])))
}

// resolve names the chains that rules lead to. A rule without a target leads to the entry after it.
func (p *parser) resolve() error {
	for i := range p.list {
		e := &p.list[i]
		to := p.verdict(*e)
		if e.verdict == 0 || to < 0 {
			continue
		}
		if e.fixed {
			return fmt.Errorf("the last entry of the chain %s leads to %d", e.rule.Chain, to)
		}
		e.jump = to
		if to == e.at+e.length {
			continue
		}
		chain, ok := p.chains[to]
		if !ok {
			return fmt.Errorf("the entry at %d leads to %d, where no chain begins", e.at, to)
		}
		e.rule.To = chain
	}
	return nil
}

// hookName is the name of a hook's chain.
func hookName(hook int) string {
	return []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}[hook]
}

// without returns the table without the entries that drop names, which is asked in their order.
// No entry may lead to a chain that is dropped.
func (t parsed) without(drop func(entry) bool) content {
	c := content{validHooks: t.validHooks}
	moved := make(map[int]int, len(t.list)) // new offsets, of the next entry for one that is dropped
	kept := make([]entry, 0, len(t.list))
	size := 0
	for _, e := range t.list {
		moved[e.at] = size
		if !drop(e) {
			kept = append(kept, e)
			size += e.length
		}
	}
	c.entries = make([]byte, 0, size)
	for _, e := range kept {
		at := len(c.entries)
		c.entries = append(c.entries, t.entries[e.at:e.at+e.length]...)
		if e.jump > 0 {
			binary.NativeEndian.PutUint32(c.entries[at+e.verdict-e.at:], uint32(moved[e.jump]))
		}
	}
	for hook := range hooks {
		if t.validHooks&(1<<hook) != 0 {
			c.hookEntry[hook] = uint32(moved[int(t.hookEntry[hook])])
			c.underflow[hook] = uint32(moved[int(t.underflow[hook])])
		}
	}
	c.number = uint32(len(kept))
	return c
}
