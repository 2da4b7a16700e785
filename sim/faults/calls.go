package faults

import (
	"sync"
	"time"
)

// Record is one completed API call.
type Record struct {
	Seq       int               `json:"seq"` // counts from 1
	Time      time.Time         `json:"time"`
	Service   string            `json:"service"`
	Action    string            `json:"action"`
	Principal string            `json:"principal,omitempty"` // ARN
	RequestID string            `json:"requestId"`
	Params    map[string]string `json:"params,omitempty"`
	Code      string            `json:"code,omitempty"` // error code; empty is success
	Message   string            `json:"message,omitempty"`
	Millis    float64           `json:"ms"`
	// Fault is the injected fault that ended the call: "no-reply", or empty.
	Fault string `json:"fault,omitempty"`
}

// logLength is how many calls the log keeps.
const logLength = 20000

// Log keeps the latest calls and counts all of them. The zero value is ready.
type Log struct {
	mu     sync.Mutex // guards what follows
	seq    int
	ring   []Record
	counts map[Count]int
	millis map[string]float64 // total per action
}

// Count is the key by which calls are counted.
type Count struct{ Service, Action, Code string }

// Add appends a call.
func (l *Log) Add(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	r.Seq = l.seq
	if len(l.ring) == logLength {
		l.ring = append(l.ring[:0:0], l.ring[logLength/4:]...)
	}
	l.ring = append(l.ring, r)
	if l.counts == nil {
		l.counts, l.millis = map[Count]int{}, map[string]float64{}
	}
	l.counts[Count{r.Service, r.Action, r.Code}]++
	l.millis[r.Action] += r.Millis
}

// Since returns the calls after a sequence number, oldest first, of one action or, if
// the action is empty, of all.
func (l *Log) Since(seq int, action string) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []Record{}
	for _, r := range l.ring {
		if r.Seq > seq && (action == "" || r.Action == action) {
			out = append(out, r)
		}
	}
	return out
}

// Counts returns the number of calls by service, action and result.
func (l *Log) Counts() map[Count]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[Count]int, len(l.counts))
	for k, v := range l.counts {
		out[k] = v
	}
	return out
}
