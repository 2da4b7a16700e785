// Package xtables lists the chains of iptables-legacy, which are not in nftables, and removes
// those of another program. It reads and replaces the tables of the kernel's ip_tables as
// iptables-legacy does, and only tables that the namespace has, because a question about another
// one makes the kernel load a module. Package edge/nft calls it. It needs CAP_NET_ADMIN.
package xtables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// namesFile lists the tables of the namespace of the thread that reads it. It exists where the
// module ip_tables is loaded.
const namesFile = "/proc/thread-self/net/ip_tables_names"

// Chains returns the names of the chains that programs have made in an IPv4 table of
// iptables-legacy, in the namespace ns: none if the namespace has no such table.
func Chains(ns *os.File, table string) (chains []string, err error) {
	err = open(ns, table, func(s socket) error {
		c, err := s.read()
		if err != nil {
			return err
		}
		chains, err = parse(c.entries)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the table %s of iptables-legacy: %w", table, err)
	}
	return chains, nil
}

// Options and structures of linux/netfilter_ipv4/ip_tables.h and linux/netfilter/x_tables.h.
const (
	optionInfo    = 64 // IPT_SO_GET_INFO
	optionEntries = 65 // IPT_SO_GET_ENTRIES

	nameLength  = 32              // XT_TABLE_MAXNAMELEN
	infoLength  = nameLength + 52 // struct ipt_getinfo; its last field is the size of the entries
	entriesHead = nameLength + 8  // struct ipt_get_entries: the name, the size, padding
	maxEntries  = 32 << 20        // bytes; the agent's memory is limited, the kernel allows 512 MiB
	hooks       = 5               // NF_INET_NUMHOOKS
)

// tries is how often a table is read, or replaced, that changes meanwhile.
const tries = 5

// socket asks the kernel about one table.
type socket struct {
	fd    int
	table string
}

// open calls do in the namespace ns if this has the table, with the socket of any protocol: a raw
// one would need CAP_NET_RAW too.
func open(ns *os.File, table string, do func(socket) error) error {
	return netns.Do(ns, func() error {
		names, err := os.ReadFile(namesFile)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(names)), table) {
			return nil
		}
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return do(socket{fd, table})
	})
}

// content is a table as the kernel describes it.
type content struct {
	validHooks uint32        // a bit for each
	hookEntry  [hooks]uint32 // offset of the first entry of a hook's chain
	underflow  [hooks]uint32 // and of its last one, the policy
	number     uint32        // of entries
	entries    []byte
}

// read returns a table.
func (s socket) read() (content, error) {
	for range tries {
		info := make([]byte, infoLength)
		copy(info[:nameLength-1], s.table)
		if err := getsockopt(s.fd, optionInfo, info); err != nil {
			return content{}, err
		}
		var c content
		var size uint32
		at := nameLength
		for _, field := range []any{&c.validHooks, &c.hookEntry, &c.underflow, &c.number, &size} {
			n, err := binary.Decode(info[at:], binary.NativeEndian, field)
			if err != nil {
				return content{}, err
			}
			at += n
		}
		if size > maxEntries {
			return content{}, fmt.Errorf("it has %d bytes, more than the %d that are read", size, maxEntries)
		}
		entries := make([]byte, entriesHead+int(size))
		copy(entries[:nameLength-1], s.table)
		binary.NativeEndian.PutUint32(entries[nameLength:], size)
		switch err := getsockopt(s.fd, optionEntries, entries); {
		case err == nil:
			c.entries = entries[entriesHead:]
			return c, nil
		case !errors.Is(err, unix.EAGAIN): // the kernel's answer if the size has changed
			return content{}, err
		}
	}
	return content{}, fmt.Errorf("it changed during %d reads", tries)
}

// getsockopt fills b, which begins with what the kernel is asked for.
func getsockopt(fd, option int, b []byte) error {
	length := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(&length)), 0)
	runtime.KeepAlive(b)
	if errno != 0 {
		return errno
	}
	return nil
}

// Offsets in struct ipt_entry, and in the struct xt_error_target with which the kernel marks
// the beginning of a chain that a program has made, and the end of the table.
const (
	targetOffset = 88
	nextOffset   = 90
	entryLength  = 112
	targetName   = 2
	errorName    = 32
	errorLength  = errorName + 30
)

// parse returns the chains that programs have made, in the order of a table's entries.
func parse(entries []byte) (chains []string, err error) {
	for at := 0; at < len(entries); {
		entry := entries[at:]
		if len(entry) < entryLength {
			return nil, fmt.Errorf("the entry at %d has %d bytes of %d", at, len(entry), entryLength)
		}
		target, next := int(binary.NativeEndian.Uint16(entry[targetOffset:])), int(binary.NativeEndian.Uint16(entry[nextOffset:]))
		if target < entryLength || next < target+errorName || next > len(entry) {
			return nil, fmt.Errorf("the entry at %d has %d bytes, its target begins at %d and it ends at %d", at, len(entry), target, next)
		}
		at += next
		if text(entry[target+targetName:target+errorName-1]) != "ERROR" || next < target+errorLength || at == len(entries) {
			continue
		}
		chains = append(chains, text(entry[target+errorName:target+errorLength]))
	}
	return chains, nil
}

// text is a string that ends at its first zero byte.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
