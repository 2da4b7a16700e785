package cli

import (
	"sync"

	"k8s.io/klog/v2"
)

// execLog keeps what client-go has to say about one command until it is known how the
// command ended. client-go logs how each part of a connection met its end, up to five
// seconds after we have closed it.
type execLog struct {
	mu   sync.Mutex
	over bool
	said []execLine
}

type execLine struct {
	err  error
	msg  string
	rest []any
}

// Init, Enabled, Info, WithValues and WithName implement klog.LogSink.
func (*execLog) Init(klog.RuntimeInfo) {}

// Enabled is as Init.
func (*execLog) Enabled(int) bool { return false }

// Info is as Init.
func (*execLog) Info(int, string, ...any) {}

// WithValues is as Init.
func (l *execLog) WithValues(...any) klog.LogSink { return l }

// WithName is as Init.
func (l *execLog) WithName(string) klog.LogSink { return l }

// Error notes a line; what comes after the end is about a connection we closed.
func (l *execLog) Error(err error, msg string, rest ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.said = append(l.said, execLine{err, msg, rest})
	}
}

// end passes on what was said of a command that came to its end: nothing else tells of
// it. Where the command did not, its error does.
func (l *execLog) end(cameToEnd bool, to klog.Logger) {
	l.mu.Lock()
	said := l.said
	l.over, l.said = true, nil
	l.mu.Unlock()
	for _, line := range said {
		if cameToEnd {
			to.Error(line.err, line.msg, line.rest...)
		}
	}
}
