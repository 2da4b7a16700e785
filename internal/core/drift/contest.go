package drift

import "time"

// How a contest goes on: an object is deleted twice without a pause, because an operator may
// have made it by mistake, and then after pauses that double. A contest in which nothing was
// deleted for forgetAfter is over.
const (
	withoutPause = 2
	firstPause   = 30 * time.Second
	longestPause = 10 * time.Minute
	forgetAfter  = time.Hour
)

// Contest is about objects that another program makes again each time they are deleted: each
// deletion makes the pause before the next one longer, so that the two do not take turns
// without end. An object that may stay can be left alone as soon as it is contested. The zero
// value is ready. It is not safe for concurrent use.
type Contest[K comparable] struct {
	deleted map[K]deletions
}

// deletions of one object.
type deletions struct {
	times int
	last  time.Time
}

// until is the end of the pause.
func (d deletions) until() time.Time {
	if d.times <= withoutPause {
		return d.last
	}
	pause := firstPause
	for range d.times - withoutPause - 1 {
		if pause *= 2; pause >= longestPause {
			return d.last.Add(longestPause)
		}
	}
	return d.last.Add(pause)
}

// Deleted notes that an object was deleted.
func (c *Contest[K]) Deleted(k K, now time.Time) {
	if c.deleted == nil {
		c.deleted = map[K]deletions{}
	}
	for other, d := range c.deleted {
		if now.Sub(d.last) >= forgetAfter {
			delete(c.deleted, other)
		}
	}
	c.deleted[k] = deletions{c.deleted[k].times + 1, now}
}

// Contested returns the objects that were made again after each deletion without a pause, each
// with the time at which the contest is over if they are not deleted any more.
func (c *Contest[K]) Contested(now time.Time) map[K]time.Time {
	contested := map[K]time.Time{}
	for k, d := range c.deleted {
		if over := d.last.Add(forgetAfter); d.times >= withoutPause && now.Before(over) {
			contested[k] = over
		}
	}
	return contested
}

// Paused returns the objects that are not to be deleted now, each with the end of its pause.
func (c *Contest[K]) Paused(now time.Time) map[K]time.Time {
	paused := map[K]time.Time{}
	for k, d := range c.deleted {
		if until := d.until(); now.Before(until) {
			paused[k] = until
		}
	}
	return paused
}
