package nft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/portfilter"
)

// watchBuffer is the size of the listener's receive buffer in bytes: the reports of a
// whole ruleset.
const watchBuffer = 4 << 20

// Watch calls dirty, with a reason, when another program changes one of our tables, and
// when the kernel dropped reports because the receive buffer was full. It runs until ctx
// ends. dirty must not block; its caller runs Apply soon after.
func (f *Firewall) Watch(ctx context.Context, dirty func(why string)) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(f.ns.Fd())})
	if err != nil {
		return fmt.Errorf("listen to nftables: %w", err)
	}
	defer func() { _ = c.Close() }()
	// The kernel withholds reports of our own changes; a port that the connection uses
	// before or after is recognised below.
	own, err := portfilter.Without(f.conn.Port())
	if err == nil {
		err = c.SetBPF(own)
	}
	if err != nil {
		return fmt.Errorf("listen to nftables: %w", err)
	}
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("listen to nftables: %w", err)
	}
	_ = c.SetReadBuffer(watchBuffer)
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		messages, err := c.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			dirty("more changes than the kernel could report")
			continue
		case err != nil:
			return fmt.Errorf("listen to nftables: %w", err)
		}
		for _, m := range messages {
			if !f.conn.Wrote(m.Header.PID) && tableNamed(m) == hostnet.Table {
				dirty("another program changed table " + hostnet.Table)
				break
			}
		}
	}
}

// tableNamed is the name of the table that a message reports a change of. It is the
// first attribute of all message types except NFT_MSG_NEWGEN, the end of a transaction.
func tableNamed(m netlink.Message) string {
	const header = 4 // struct nfgenmsg
	if int(m.Header.Type)&0xff == unix.NFT_MSG_NEWGEN || len(m.Data) < header {
		return ""
	}
	d, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return ""
	}
	for d.Next() {
		if d.Type() == unix.NFTA_TABLE_NAME {
			return d.String()
		}
	}
	return ""
}
