package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
)

// ttl is how long answers may be cached: short, because addresses move when instances
// are replaced.
const ttl = 60 * time.Second

// negativeTTL is how long "no such name" may be cached.
const negativeTTL = 5 * time.Second

// ednsSize is the largest UDP answer we send, as on AWS: 4096 bytes when the
// client offers that much.
const ednsSize = 4096

// Server answers queries. It is safe for use by any number of goroutines.
type Server struct {
	names Names
	log   *slog.Logger
}

// New makes a server over names. log may be nil.
func New(names Names, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{names: names, log: log}
}

// Serve answers on both until ctx ends, then closes them. Either may be nil. It
// returns nil after ctx ended.
func (s *Server) Serve(ctx context.Context, udp net.PacketConn, tcp net.Listener) error {
	var servers []*mdns.Server
	if udp != nil {
		servers = append(servers, &mdns.Server{PacketConn: udp, Handler: s})
	}
	if tcp != nil {
		servers = append(servers, &mdns.Server{Listener: tcp, Handler: s})
	}
	var run errgroup.Group
	stopped := context.AfterFunc(ctx, func() {
		for _, srv := range servers {
			closeListeners(srv)
		}
	})
	defer stopped()
	for _, srv := range servers {
		run.Go(func() error {
			err := srv.ActivateAndServe()
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil //nolint:nilerr // the listener was closed by ctx
			}
			return err
		})
	}
	return run.Wait()
}

// closeListeners stops a server, whether or not it already serves; Shutdown alone
// refuses a server that does not.
func closeListeners(srv *mdns.Server) {
	if srv.PacketConn != nil {
		_ = srv.PacketConn.Close()
	}
	if srv.Listener != nil {
		_ = srv.Listener.Close()
	}
	_ = srv.Shutdown()
}

// ServeDNS implements the library's Handler.
func (s *Server) ServeDNS(w mdns.ResponseWriter, query *mdns.Msg) {
	reply := s.answer(query)
	limit := mdns.MinMsgSize
	if opt := query.IsEdns0(); opt != nil {
		limit = min(max(int(opt.UDPSize()), mdns.MinMsgSize), ednsSize)
	}
	if w.RemoteAddr().Network() != "udp" {
		limit = mdns.MaxMsgSize
	}
	reply.Truncate(limit)
	if err := w.WriteMsg(reply); err != nil {
		s.log.Debug("answer not sent", "client", w.RemoteAddr().String(), "err", err)
	}
}

// answer decides the reply to one query.
func (s *Server) answer(query *mdns.Msg) *mdns.Msg {
	reply := new(mdns.Msg)
	reply.SetReply(query)
	reply.RecursionAvailable = true
	if opt := query.IsEdns0(); opt != nil {
		reply.SetEdns0(ednsSize, opt.Do())
		if opt.Version() != 0 {
			reply.Rcode = mdns.RcodeBadVers
			return reply
		}
	}
	switch {
	case query.Opcode != mdns.OpcodeQuery:
		reply.Rcode = mdns.RcodeNotImplemented
		return reply
	case len(query.Question) != 1:
		reply.Rcode = mdns.RcodeFormatError
		return reply
	case query.Question[0].Qclass != mdns.ClassINET:
		reply.Rcode = mdns.RcodeRefused
		return reply
	}
	s.resolve(reply, query.Question[0])
	return reply
}

// resolve sets answer, authority and code for one question.
func (s *Server) resolve(reply *mdns.Msg, q mdns.Question) {
	name := strings.ToLower(q.Name)
	head := mdns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: mdns.ClassINET, Ttl: uint32(ttl.Seconds())}
	exists := false
	if a, partial, ok := reverseAddress(name); ok {
		var target string
		if target, exists = s.names.Reverse(a); exists && (q.Qtype == mdns.TypePTR || q.Qtype == mdns.TypeANY) {
			head.Rrtype = mdns.TypePTR
			reply.Answer = append(reply.Answer, &mdns.PTR{Hdr: head, Ptr: target})
		}
	} else if partial {
		exists = true // the zones above an address are not empty
	} else {
		var addresses []netip.Addr
		addresses, exists = s.names.Forward(name)
		for _, a := range addresses {
			if rr := addressRecord(head, q.Qtype, a); rr != nil {
				reply.Answer = append(reply.Answer, rr)
			}
		}
	}
	if !exists {
		reply.Rcode = mdns.RcodeNameError
	}
	if len(reply.Answer) == 0 {
		reply.Ns = append(reply.Ns, negative())
	}
}

// addressRecord returns the record of a if qtype requests its family.
func addressRecord(head mdns.RR_Header, qtype uint16, a netip.Addr) mdns.RR {
	a = a.Unmap()
	switch {
	case a.Is4() && (qtype == mdns.TypeA || qtype == mdns.TypeANY):
		head.Rrtype = mdns.TypeA
		return &mdns.A{Hdr: head, A: a.AsSlice()}
	case a.Is6() && (qtype == mdns.TypeAAAA || qtype == mdns.TypeANY):
		head.Rrtype = mdns.TypeAAAA
		return &mdns.AAAA{Hdr: head, AAAA: a.AsSlice()}
	}
	return nil
}

// negative is the authority record with the time that caches keep a negative answer
// (RFC 2308).
func negative() mdns.RR {
	seconds := uint32(negativeTTL.Seconds())
	return &mdns.SOA{
		Hdr: mdns.RR_Header{Name: ".", Rrtype: mdns.TypeSOA, Class: mdns.ClassINET, Ttl: seconds},
		Ns:  "resolver.", Mbox: "hostmaster.resolver.",
		Serial: 1, Refresh: seconds, Retry: seconds, Expire: seconds, Minttl: seconds,
	}
}

// reverseAddress parses a name in in-addr.arpa or ip6.arpa. partial is true for these
// zones themselves and for well-formed names shorter than an address.
func reverseAddress(name string) (a netip.Addr, partial, ok bool) {
	if body, found := reverseBody(name, "in-addr.arpa."); found {
		return joinLabels(body, 4, ".", 1)
	}
	if body, found := reverseBody(name, "ip6.arpa."); found {
		return joinLabels(body, 32, ":", 4)
	}
	return netip.Addr{}, name == "arpa." || name == ".", false
}

func reverseBody(name, zone string) (string, bool) {
	if name == zone {
		return "", true
	}
	return strings.CutSuffix(name, "."+zone)
}

// joinLabels turns reversed labels into an address: want labels in all, joined
// in groups of size by separator.
func joinLabels(body string, want int, separator string, size int) (netip.Addr, bool, bool) {
	if body == "" {
		return netip.Addr{}, true, false
	}
	labels := strings.Split(body, ".")
	if len(labels) > want {
		return netip.Addr{}, false, false
	}
	var text strings.Builder
	for i := range labels {
		label := labels[len(labels)-1-i]
		if label == "" || len(label) > 3 || (want == 32 && len(label) != 1) {
			return netip.Addr{}, false, false
		}
		if i > 0 && i%size == 0 {
			text.WriteString(separator)
		}
		text.WriteString(label)
	}
	if len(labels) < want {
		return netip.Addr{}, true, false
	}
	a, err := netip.ParseAddr(text.String())
	return a, false, err == nil
}
