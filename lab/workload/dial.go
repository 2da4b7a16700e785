package workload

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// probe is one kind of dial. It fills in the result; dial sets Kind and Error from its
// error.
type probe func(ctx context.Context, o options, r *Result) error

// options are the flags of dial; each probe reads its own.
type options struct {
	target   string
	size     int
	df       bool
	chunk    int
	timeout  time.Duration
	repeat   int
	proto    string
	duration time.Duration
	interval time.Duration
	report   time.Duration
	server   string
	endpoint string
	source   string
	mac      string
	count    int
	verify   string
	emit     func(Result) // prints an intermediate result
}

func probes() map[string]probe {
	return map[string]probe{
		"http": dialHTTP, "tcp": dialTCP, "udp": dialUDP, "stream": dialStream,
		"pmtu": dialPMTU, "dns": dialDNS, "imds": dialIMDS, "spoof": dialSpoof,
	}
}

const dialUsage = "dial http|tcp|udp|stream|pmtu|dns|imds|spoof TARGET [flags]"

// dial is the applet.
func dial(ctx context.Context, args []string, p Process) (bool, error) {
	if len(args) == 0 {
		return false, usagef(dialUsage)
	}
	name := args[0]
	run, ok := probes()[name]
	if !ok {
		return false, usagef("unknown probe %q; %s", name, dialUsage)
	}
	o, err := parseOptions(name, args[1:], p)
	if err != nil {
		return false, err
	}
	out := json.NewEncoder(p.Stdout)
	o.emit = func(r Result) { _ = out.Encode(r) }
	all := true
	for range o.repeat {
		r := Result{Probe: name, Target: o.target}
		started := time.Now()
		err := run(ctx, o, &r)
		if r.LatencyMicros == 0 {
			r.LatencyMicros = time.Since(started).Microseconds()
		}
		if err != nil {
			r.Error, r.Kind = err.Error(), kindOf(err)
		}
		r.OK = err == nil
		all = all && r.OK
		if err := out.Encode(r); err != nil {
			return false, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return all, nil //nolint:nilerr // also when interrupted: the results so far were printed
}

func parseOptions(name string, args []string, p Process) (options, error) {
	var o options
	fs := newFlags("dial "+name, p)
	timeout := 5 * time.Second
	if name == "imds" {
		timeout = 2 * time.Second
	}
	fs.DurationVar(&o.timeout, "timeout", timeout, "timeout of the whole probe; of the connection for stream")
	fs.IntVar(&o.repeat, "repeat", 1, "number of runs")
	switch name {
	case "http", "tcp":
		fs.IntVar(&o.size, "size", 1, "payload in bytes in each direction")
	case "udp":
		fs.IntVar(&o.size, "size", 1, "payload in bytes")
		fs.BoolVar(&o.df, "df", false, "forbid fragments")
		fs.IntVar(&o.chunk, "chunk", 8900, "largest datagram, in bytes")
	case "stream":
		fs.StringVar(&o.proto, "proto", "tcp", "tcp or udp")
		fs.DurationVar(&o.duration, "duration", 10*time.Second, "duration of the stream")
		fs.DurationVar(&o.interval, "interval", 10*time.Millisecond, "interval between two numbers")
		fs.DurationVar(&o.report, "report", 0, "interval of intermediate results; 0 for none")
	case "dns":
		fs.StringVar(&o.server, "server", "", "ADDRESS:PORT of the server; empty is the pod's own")
	case "imds":
		fs.StringVar(&o.endpoint, "endpoint", "http://169.254.169.254", "URL of the metadata service")
	case "spoof":
		fs.StringVar(&o.source, "source", "", "source address; empty is the pod's own")
		fs.StringVar(&o.mac, "mac", "", "source MAC; empty is the pod's own")
		fs.IntVar(&o.count, "count", 3, "number of datagrams")
		fs.StringVar(&o.verify, "verify", "", "HOST:PORT of the receiver's HTTP server")
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.target, args = args[0], args[1:]
	}
	if err := parseFlags(fs, args); err != nil {
		return o, err
	}
	return o, o.check(name, fs)
}

func (o *options) check(name string, fs *flag.FlagSet) error {
	if o.target == "" && fs.NArg() == 1 {
		o.target = fs.Arg(0)
	} else if fs.NArg() > 0 {
		return usagef("unexpected %q", fs.Arg(0))
	}
	if name == "imds" {
		o.target = o.endpoint
	}
	if o.target == "" {
		return usagef("dial %s needs a target", name)
	}
	if _, _, err := net.SplitHostPort(o.target); err != nil && name != "imds" && name != "dns" {
		return usagef("target %q is not HOST:PORT", o.target)
	}
	return o.checkNumbers(name)
}

// checkNumbers validates the values of flags.
func (o *options) checkNumbers(name string) error {
	switch {
	case o.size < 0 || o.size > maxBody:
		return usagef("size %d is not between 0 and %d", o.size, maxBody)
	case name == "udp" && (o.chunk < 1 || o.chunk > 65507):
		return usagef("chunk %d is not between 1 and 65507", o.chunk)
	case o.timeout <= 0:
		return usagef("timeout %s is not positive", o.timeout)
	case o.repeat < 1:
		return usagef("repeat %d is below 1", o.repeat)
	case name == "stream" && (o.interval <= 0 || o.duration <= 0):
		return usagef("interval and duration must be positive")
	case name == "stream" && o.proto != "tcp" && o.proto != "udp":
		return usagef("proto %q is neither tcp nor udp", o.proto)
	}
	return nil
}

// errMismatch is returned if an answer does not match the request.
var errMismatch = errors.New("the answer does not match the request")

// errInterrupted is returned if a connection ended early.
var errInterrupted = errors.New("connection ended early")

// kindOf returns the Kind of an error.
func kindOf(err error) Kind {
	var dns *net.DNSError
	var timeout interface{ Timeout() bool }
	for _, c := range []struct {
		kind Kind
		errs []error
	}{
		{KindMismatch, []error{errMismatch}},
		{KindTooBig, []error{syscall.EMSGSIZE}},
		{KindRefused, []error{syscall.ECONNREFUSED}},
		{KindUnreachable, []error{syscall.EHOSTUNREACH, syscall.ENETUNREACH}},
		{KindReset, []error{syscall.ECONNRESET, syscall.EPIPE, errInterrupted}},
		{KindDenied, []error{syscall.EPERM, syscall.EACCES}},
		{KindTimeout, []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, syscall.ETIMEDOUT}},
	} {
		for _, target := range c.errs {
			if errors.Is(err, target) {
				return c.kind
			}
		}
	}
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return KindNotFound
	case errors.As(err, &timeout) && timeout.Timeout():
		return KindTimeout
	}
	return KindOther
}
