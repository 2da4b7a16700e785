package cli

import (
	"sync"

	"k8s.io/klog/v2"
)

// execLog buffers the log records of client-go about one command until the command's
// result is known. client-go logs an error for each stream of a connection, up to five
// seconds after we have closed it.
type execLog struct {
	mu      sync.Mutex
	ended   bool
	records []execRecord
}

type execRecord struct {
	err           error
	msg           string
	keysAndValues []any
}

// Init implements klog.LogSink.
func (*execLog) Init(klog.RuntimeInfo) {}

// Enabled implements klog.LogSink.
func (*execLog) Enabled(int) bool { return false }

// Info implements klog.LogSink.
func (*execLog) Info(int, string, ...any) {}

// WithValues implements klog.LogSink.
func (l *execLog) WithValues(...any) klog.LogSink { return l }

// WithName implements klog.LogSink.
func (l *execLog) WithName(string) klog.LogSink { return l }

// Error buffers a record. Records after end are about a connection that we closed, and
// are dropped.
func (l *execLog) Error(err error, msg string, keysAndValues ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.records = append(l.records, execRecord{err, msg, keysAndValues})
	}
}

// end forwards the buffered records if the command exited, and drops them otherwise: the
// error that the caller returns then has the same information.
func (l *execLog) end(exited bool, to klog.Logger) {
	l.mu.Lock()
	records := l.records
	l.ended, l.records = true, nil
	l.mu.Unlock()
	if !exited {
		return
	}
	for _, r := range records {
		to.Error(r.err, r.msg, r.keysAndValues...)
	}
}
