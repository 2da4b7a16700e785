package ec2_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// errDial is the error of a connection that EC2's host refuses.
func errDial() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
}

// EC2 cannot have created an interface by a call that it did not get: there is nothing to
// search for.
func TestACallThatWasNeverSentIsRepeatedWithoutARead(t *testing.T) {
	for _, kind := range []string{"CreateNetworkInterface", "AssignPrivateIpAddresses"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				action := w.createAction(1)
				if kind == "AssignPrivateIpAddresses" {
					action = cloud.Action{Kind: cloud.AssignAddresses, ENI: w.created(1).ID, Count: 1}
				}
				failures := 12 // more than Tries
				w.wire.cut(func(called string) error {
					if called != kind || failures == 0 {
						return nil
					}
					failures--
					return errDial()
				}, nil)
				before := len(w.wire.calls)
				w.do(action)
				if calls := w.wire.calls[before:]; len(calls) != 13 || slices.ContainsFunc(calls, func(c string) bool { return c != kind }) {
					t.Errorf("calls %v, want %s alone, until one is answered", calls, kind)
				}
			})
		})
	}
}

func TestACallThatWasNeverSentIsNotOpenWhenTheAgentStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.wire.cut(func(string) error { return errDial() }, nil)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if _, err := w.Do(ctx, w.withID(w.createAction(1))); err == nil || errors.Is(err, ec2.ErrOpen) {
			t.Errorf("%v, want an error that is definite: EC2 got no call", err)
		}
	})
}

// The server accepts the connection and never answers the TLS handshake, and the agent stops.
func TestAnEndBeforeTheConnectionIsReadySendsNothing(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
			stop()
		}
	}()
	clients := ec2.NewClients(aws.Config{
		Region: region, BaseEndpoint: aws.String("https://" + l.Addr().String()),
		Credentials: credentials.NewStaticCredentialsProvider("AKIA", "secret", ""),
	})
	x, err := ec2.NewExecutor(ec2.Options{Clients: clients, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = x.Do(ctx, cloud.Action{ID: "a", Kind: cloud.DeleteENI, ENI: "eni-1", Began: time.Now()})
	if err == nil || errors.Is(err, ec2.ErrOpen) {
		t.Errorf("%v, want an error that is definite: EC2 got no call", err)
	}
	if c := <-accepted; c != nil {
		_ = c.Close()
	}
}
