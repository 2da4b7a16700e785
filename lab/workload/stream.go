package workload

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// recordSize is a numbered record of a stream: the number, big-endian.
const recordSize = 8

// settle is how long a UDP stream waits for the last echoes, and how recent a
// number may be without counting as lost.
const settle = 2 * time.Second

// ledger keeps the books of one stream. It is used by one goroutine.
type ledger struct {
	Stream
	sentAt   map[uint64]time.Time // numbers out and not yet back
	began    time.Time
	lastBack time.Time
}

func newLedger(now time.Time) *ledger {
	return &ledger{sentAt: map[uint64]time.Time{}, began: now, lastBack: now}
}

// sent books the next number.
func (l *ledger) sent(now time.Time) uint64 {
	l.Sent++
	l.sentAt[l.Sent] = now
	return l.Sent
}

// back books a number that returned.
func (l *ledger) back(number uint64, now time.Time) error {
	if number == 0 || number > l.Sent {
		return fmt.Errorf("%w: number %d was never sent", errMismatch, number)
	}
	if _, out := l.sentAt[number]; !out {
		l.Duplicates++
		return nil
	}
	delete(l.sentAt, number)
	l.Received++
	if gap := now.Sub(l.lastBack).Microseconds(); gap > l.LongestGapMicros {
		l.LongestGapMicros, l.LongestGapAt = gap, number
	}
	l.lastBack = now
	return nil
}

// close counts what is missing: everything still out that is older than grace.
// Silence up to now counts as a gap too.
func (l *ledger) close(now time.Time, grace time.Duration) Stream {
	s := l.Stream
	s.DurationMicros = now.Sub(l.began).Microseconds()
	for number := uint64(1); number <= l.Sent; number++ {
		at, out := l.sentAt[number]
		if !out || now.Sub(at) < grace {
			continue
		}
		s.Lost++
		if len(s.FirstLost) < 16 {
			s.FirstLost = append(s.FirstLost, number)
		}
	}
	if silence := now.Sub(l.lastBack); len(l.sentAt) > 0 && silence.Microseconds() > s.LongestGapMicros {
		s.LongestGapMicros, s.LongestGapAt = silence.Microseconds(), 0
	}
	return s
}

// dialStream sends a number at every tick and expects each back.
func dialStream(ctx context.Context, o options, r *Result) error {
	d := net.Dialer{Timeout: o.timeout}
	conn, err := d.DialContext(ctx, o.proto, o.target)
	if err != nil {
		return err
	}
	r.Local = addrPort(conn.LocalAddr())
	arrivals := make(chan arrival, 1024)
	first := make(chan []byte, 1)
	go receive(conn, o.proto, first, arrivals) // ends when conn closes
	if o.proto == "tcp" {
		select {
		case line := <-first:
			err = r.heard(line)
		case <-time.After(o.timeout):
			err = context.DeadlineExceeded
		}
	}
	if err == nil {
		err = pump(ctx, o, r, conn, arrivals)
	}
	closeErr := conn.Close()
	for range arrivals { // until receive has ended
	}
	return errors.Join(err, closeErr)
}

// arrival is a number that came back, or why none will.
type arrival struct {
	number uint64
	at     time.Time
	answer []byte // udp: the server's line
	err    error
}

// receive reads until the connection ends.
func receive(conn net.Conn, proto string, first chan<- []byte, out chan<- arrival) {
	defer close(out)
	if proto == "udp" {
		receiveDatagrams(conn, out)
		return
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadBytes('\n')
	first <- line
	if err != nil {
		out <- arrival{err: early(err)}
		return
	}
	record := make([]byte, recordSize)
	for {
		if _, err := io.ReadFull(in, record); err != nil {
			out <- arrival{err: early(err)}
			return
		}
		out <- arrival{number: binary.BigEndian.Uint64(record), at: time.Now()}
	}
}

func receiveDatagrams(conn net.Conn, out chan<- arrival) {
	buf := make([]byte, 2048)
	for {
		n, err := conn.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error: the number counts as lost if it stays away
		}
		now := time.Now()
		for i, c := range buf[:n] {
			if c == '\n' && n >= i+1+recordSize {
				out <- arrival{number: binary.BigEndian.Uint64(buf[i+1:]), at: now, answer: append([]byte(nil), buf[:i]...)}
				break
			}
		}
	}
}

// pump runs the stream to its end and fills in r.Stream.
func pump(ctx context.Context, o options, r *Result, conn net.Conn, arrivals <-chan arrival) (err error) {
	books := newLedger(time.Now())
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	end := time.NewTimer(o.duration)
	defer end.Stop()
	report := make(<-chan time.Time)
	if o.report > 0 {
		t := time.NewTicker(o.report)
		defer t.Stop()
		report = t.C
	}
	for done := false; !done && err == nil; {
		select {
		case <-ctx.Done():
			done = true
		case <-end.C:
			done = true
		case now := <-tick.C:
			err = send(conn, books, o.proto, now)
		case a := <-arrivals:
			err = r.book(books, a)
		case now := <-report:
			s := books.close(now, settle)
			shown := *r
			shown.Stream, shown.OK = &s, s.Lost == 0
			o.emit(shown)
		}
	}
	if err == nil {
		err = drain(r, books, arrivals)
	}
	s := books.close(time.Now(), 0)
	s.Interrupted = errors.Is(err, errInterrupted) || kindOf(err) == KindReset
	r.Stream = &s
	if err == nil && s.Lost > 0 {
		err = fmt.Errorf("%d of %d numbers lost", s.Lost, s.Sent)
	}
	return err
}

// send puts the next number on the wire. A datagram that the kernel refuses is
// as lost as one that vanishes; a refused write on a stream ends it.
func send(conn net.Conn, books *ledger, proto string, now time.Time) error {
	record := binary.BigEndian.AppendUint64(nil, books.sent(now))
	if err := conn.SetWriteDeadline(now.Add(time.Minute)); err != nil {
		return err
	}
	if _, err := conn.Write(record); err != nil && proto == "tcp" {
		return err
	}
	return nil
}

func (r *Result) book(books *ledger, a arrival) error {
	if a.err != nil {
		return a.err
	}
	if r.Server == nil && a.answer != nil {
		if err := r.heard(a.answer); err != nil {
			return err
		}
	}
	return books.back(a.number, a.at)
}

// drain waits for numbers still out.
func drain(r *Result, books *ledger, arrivals <-chan arrival) error {
	wait := time.NewTimer(settle)
	defer wait.Stop()
	for len(books.sentAt) > 0 {
		select {
		case a, ok := <-arrivals:
			if !ok {
				return nil
			}
			if err := r.book(books, a); err != nil {
				return err
			}
		case <-wait.C:
			return nil
		}
	}
	return nil
}
