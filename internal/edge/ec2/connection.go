package ec2

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
)

// connection records whether a call got a connection to EC2. Without one nothing of the call was
// sent, whatever error the SDK makes of it: of a call that ended while it waited for one, it
// keeps only that.
type connection struct{ began, made atomic.Bool }

type connectionKey struct{}

// withConnection returns a context that has the connections of its HTTP requests recorded.
func withConnection(ctx context.Context) (context.Context, *connection) {
	c := &connection{}
	return context.WithValue(ctx, connectionKey{}, c), c
}

// connecting returns the context of a request of a client that reports its connections.
func connecting(ctx context.Context) context.Context {
	c, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return ctx
	}
	c.began.Store(true)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { c.made.Store(true) },
	})
}

// missing reports whether a request began and never got a connection.
func (c *connection) missing() bool { return c.began.Load() && !c.made.Load() }
