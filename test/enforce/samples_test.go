package enforce

import "time"

// wirings is how often a pod is wired in a sample, and in `make suites`.
const (
	wiringsSampled = 104
	wiringsFull    = 10_000
	wiringsAtOnce  = 8
)

// Flips of a sample, and of `make suites`; one every 10 ms.
const (
	flipsSampled = 400
	flipsFull    = 12_000
	flipEvery    = 10 * time.Millisecond
)

// Ends of agents in a sample, and in `make suites`.
const (
	endsSampled = 16
	endsFull    = 200
)

// Frames of a sample, and of `make suites`.
const (
	framesSampled = 30_000
	framesFull    = 2_000_000
)

// Connections that are traced in a sample, and in `make suites`. The policies change every so many.
const (
	tracedSampled = 10_000
	tracedFull    = 100_000
	tracedAtOnce  = 1_000
)
