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

// recordSize is the size of a numbered record of a stream: the number, big-endian.
const recordSize = 8

// settle is how long a UDP stream waits for the last echoes. A number sent within it does
// not count as lost.
const settle = 2 * time.Second

// counts holds the statistics of one stream. It is used by one goroutine.
type counts struct {
	Stream
	sentAt     map[uint64]time.Time // numbers that have not returned yet
	started    time.Time
	lastReturn time.Time
}

func newCounts(now time.Time) *counts {
	return &counts{sentAt: map[uint64]time.Time{}, started: now, lastReturn: now}
}

// sent records and returns the next number.
func (c *counts) sent(now time.Time) uint64 {
	c.Sent++
	c.sentAt[c.Sent] = now
	return c.Sent
}

// returned records a number that returned.
func (c *counts) returned(number uint64, now time.Time) error {
	if number == 0 || number > c.Sent {
		return fmt.Errorf("%w: number %d was never sent", errMismatch, number)
	}
	if _, pending := c.sentAt[number]; !pending {
		c.Duplicates++
		return nil
	}
	delete(c.sentAt, number)
	c.Received++
	if gap := now.Sub(c.lastReturn).Microseconds(); gap > c.LongestGapMicros {
		c.LongestGapMicros, c.LongestGapAt = gap, number
	}
	c.lastReturn = now
	return nil
}

// result returns the statistics at now. Pending numbers older than grace count as lost.
// The time since the last return counts as a gap.
func (c *counts) result(now time.Time, grace time.Duration) Stream {
	s := c.Stream
	s.DurationMicros = now.Sub(c.started).Microseconds()
	for number := uint64(1); number <= c.Sent; number++ {
		at, pending := c.sentAt[number]
		if !pending || now.Sub(at) < grace {
			continue
		}
		s.Lost++
		if len(s.FirstLost) < 16 {
			s.FirstLost = append(s.FirstLost, number)
		}
	}
	if gap := now.Sub(c.lastReturn); len(c.sentAt) > 0 && gap.Microseconds() > s.LongestGapMicros {
		s.LongestGapMicros, s.LongestGapAt = gap.Microseconds(), 0
	}
	return s
}

// dialStream sends a number every interval and expects each number back.
func dialStream(ctx context.Context, o options, r *Result) error {
	d := net.Dialer{Timeout: o.timeout}
	conn, err := d.DialContext(ctx, o.proto, o.target)
	if err != nil {
		return err
	}
	r.Local = addrPort(conn.LocalAddr())
	arrivals := make(chan arrival, 1024)
	first := make(chan []byte, 1)
	go receive(conn, o.proto, first, arrivals) // ends when conn is closed
	if o.proto == "tcp" {
		select {
		case line := <-first:
			err = r.parseAnswer(line)
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

// arrival is a number that returned, or the error that ended the stream.
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
			continue // an ICMP error: the number counts as lost unless it returns
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

// pump runs the stream to its end and sets r.Stream.
func pump(ctx context.Context, o options, r *Result, conn net.Conn, arrivals <-chan arrival) (err error) {
	stats := newCounts(time.Now())
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
			err = send(conn, stats, o.proto, now)
		case a := <-arrivals:
			err = r.record(stats, a)
		case now := <-report:
			s := stats.result(now, settle)
			intermediate := *r
			intermediate.Stream, intermediate.OK = &s, s.Lost == 0
			o.emit(intermediate)
		}
	}
	if err == nil {
		err = drain(r, stats, arrivals)
	}
	s := stats.result(time.Now(), 0)
	s.Interrupted = errors.Is(err, errInterrupted) || kindOf(err) == KindReset
	r.Stream = &s
	if err == nil && s.Lost > 0 {
		err = fmt.Errorf("%d of %d numbers lost", s.Lost, s.Sent)
	}
	return err
}

// send sends the next number. A UDP datagram that cannot be sent counts as lost; a failed
// write on a TCP connection ends the stream.
func send(conn net.Conn, stats *counts, proto string, now time.Time) error {
	record := binary.BigEndian.AppendUint64(nil, stats.sent(now))
	if err := conn.SetWriteDeadline(now.Add(time.Minute)); err != nil {
		return err
	}
	if _, err := conn.Write(record); err != nil && proto == "tcp" {
		return err
	}
	return nil
}

func (r *Result) record(stats *counts, a arrival) error {
	if a.err != nil {
		return a.err
	}
	if r.Server == nil && a.answer != nil {
		if err := r.parseAnswer(a.answer); err != nil {
			return err
		}
	}
	return stats.returned(a.number, a.at)
}

// drain waits for pending numbers.
func drain(r *Result, stats *counts, arrivals <-chan arrival) error {
	wait := time.NewTimer(settle)
	defer wait.Stop()
	for len(stats.sentAt) > 0 {
		select {
		case a, ok := <-arrivals:
			if !ok {
				return nil
			}
			if err := r.record(stats, a); err != nil {
				return err
			}
		case <-wait.C:
			return nil
		}
	}
	return nil
}
