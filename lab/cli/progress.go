package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// board displays progress: a line for each finished phase, with a mark, the phase, its
// duration and a detail. On a terminal, the last line shows the running phases with a
// spinner; otherwise, a running phase prints a line every half minute.
type board struct {
	w   io.Writer
	tty bool
	now func() time.Time

	mu      sync.Mutex // guards the fields below, and w
	running []*phase   // in the order of their start
	frame   int
	drawn   bool // the last line is the spinner line
	stop    chan struct{}
	ended   chan struct{}
}

type phase struct {
	name    string
	detail  string
	start   time.Time
	printed time.Time // time of its last line
}

// Marks of phases.
const (
	markDone    = "✓"
	markFailed  = "✗"
	markSkipped = "-"
	markRunning = "•"
)

const (
	frameEvery  = 100 * time.Millisecond
	updateEvery = 30 * time.Second
)

// newBoard returns a board, which the caller must close.
func newBoard(w io.Writer, tty bool, now func() time.Time) *board {
	b := &board{w: w, tty: tty, now: now, stop: make(chan struct{}), ended: make(chan struct{})}
	go b.animate()
	return b
}

// close erases the spinner line and ends the animation.
func (b *board) close() {
	close(b.stop)
	<-b.ended
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
}

func (b *board) animate() {
	defer close(b.ended)
	tick := time.NewTicker(frameEvery)
	defer tick.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-tick.C:
			b.mu.Lock()
			b.frame++
			b.draw()
			b.mu.Unlock()
		}
	}
}

// set starts a phase or changes its detail.
func (b *board) set(name, detail string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.find(name)
	if p == nil {
		p = &phase{name: name, start: b.now(), printed: b.now()}
		b.running = append(b.running, p)
	}
	p.detail = detail
	if !b.tty && b.now().Sub(p.printed) >= updateEvery {
		p.printed = b.now()
		b.line(markRunning, p.name, b.now().Sub(p.start), p.detail)
	}
	b.draw()
}

// finish ends a phase with a mark. The phase need not have been started.
func (b *board) finish(mark, name, detail string, elapsed time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, p := range b.running {
		if p.name == name {
			b.running = append(b.running[:i], b.running[i+1:]...)
			break
		}
	}
	b.erase()
	b.line(mark, name, elapsed, detail)
	b.draw()
}

// abort ends every running phase as failed.
func (b *board) abort(why string) {
	b.mu.Lock()
	names := make([]string, 0, len(b.running))
	elapsed := make([]time.Duration, 0, len(b.running))
	for _, p := range b.running {
		names, elapsed = append(names, p.name), append(elapsed, b.now().Sub(p.start))
	}
	b.mu.Unlock()
	for i, name := range names {
		b.finish(markFailed, name, why, elapsed[i])
	}
}

func (b *board) find(name string) *phase {
	for _, p := range b.running {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (b *board) line(mark, name string, elapsed time.Duration, detail string) {
	fmt.Fprintln(b.w, phaseLine(mark, name, elapsed, detail))
}

// phaseLine formats the line of a phase.
func phaseLine(mark, name string, elapsed time.Duration, detail string) string {
	return strings.TrimRight(fmt.Sprintf("%s %-14s %6s  %s", mark, name, inWords(elapsed), detail), " ")
}

// draw writes the spinner line on a terminal.
func (b *board) draw() {
	if !b.tty {
		return
	}
	b.erase()
	if len(b.running) == 0 {
		return
	}
	const frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
	spinner := []rune(frames)[b.frame%10]
	var parts []string
	for _, p := range b.running {
		part := p.name + " " + inWords(b.now().Sub(p.start))
		if p.detail != "" {
			part += " (" + p.detail + ")"
		}
		parts = append(parts, part)
	}
	text := []rune(strings.Join(parts, ", "))
	const width = 76 // a wrapped line could not be erased
	if len(text) > width {
		text = append(text[:width-1], '…')
	}
	fmt.Fprintf(b.w, "%c %s", spinner, string(text))
	b.drawn = true
}

func (b *board) erase() {
	if b.drawn {
		fmt.Fprint(b.w, "\r\x1b[K")
		b.drawn = false
	}
}

// inWords formats a duration as 0.8s, 12.3s or 4m05s.
func inWords(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}
